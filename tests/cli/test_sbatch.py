"""The batch files that `slurm-resolver sbatch` prints, and the values that it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from typing import List

import pytest
from batch_files import printed
from hypothesis import given, settings
from hypothesis import strategies as st

import slurm_resolver
from slurm_resolver.cli import main
from slurm_resolver.sbatch.script import batch_file
from slurm_resolver.sbatch.settings import BatchSettings

VERSION = slurm_resolver.__version__

PLAIN = f"""\
#!/bin/bash
# Made by slurm-resolver sbatch {VERSION}. Submit it with sbatch; arguments after
# the file's name are passed on to the program.
#SBATCH --job-name=train
#SBATCH --output=%x-%j.out
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
# All tasks of a node see all its GPUs; slurm_resolver gives each its share.
#SBATCH --gpus-per-node=4
# Slurm ends the job after this time. The shorter it is, the sooner it may start.
#SBATCH --time=01:00:00

set -euo pipefail

# Replace this by what puts the right python and slurm-resolver first in PATH:
# source ~/venv/bin/activate  # or: module load TensorFlow

export PYTHONUNBUFFERED=1  # what Python prints appears in the output at once
export TF_CPP_MIN_LOG_LEVEL=${{TF_CPP_MIN_LOG_LEVEL:-1}}  # 0 shows all notes

# The options of all steps. --label: the rank before each line of output.
# --distribution: ranks in the order of the nodes, whatever the topology is.
step=(srun --label --distribution=plane=4)

# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a
# name that does not resolve, a port that is taken or cannot be reached.
"${{step[@]}}" --kill-on-bad-exit=1 \\
    slurm-resolver check --timeout 120

# TensorFlow 2.21 writes these notes before it reads TF_CPP_MIN_LOG_LEVEL.
quiet() {{
    [ "$TF_CPP_MIN_LOG_LEVEL" != 0 ] || exec cat
    trap '' TERM  # srun ends first
    exec sed -uE '/absl::InitializeLog\\(\\)|\\] (oneDNN custom|Could not find cuda)/d'
}}

# --kill-on-bad-exit: else the other tasks wait for one that has failed.
"${{step[@]}}" --kill-on-bad-exit=1 \\
    python train.py "$@" 2>&1 | quiet
"""

REQUEUED = f"""\
#!/bin/bash
# Made by slurm-resolver sbatch {VERSION}. Submit it with sbatch; arguments after
# the file's name are passed on to the program.
#SBATCH --job-name="a \\"b\\""
#SBATCH --array=0-3%2
#SBATCH --output=%x-%A_%a.out
# Slurm may stop the job and start it again, with the same id and output file.
#SBATCH --requeue
#SBATCH --open-mode=append
# Sent to every task 90 s before the time limit, or earlier.
#SBATCH --signal=TERM@90
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --exclusive
# Slurm ends the job after this time. The shorter it is, the sooner it may start.
#SBATCH --time=1-00
#SBATCH --partition=p
#SBATCH --account=a
#SBATCH --qos=q
#SBATCH --constraint=[x|y]&z*2

set -euo pipefail

set +u  # for scripts that use variables which are not set
# shellcheck source=/dev/null
module load cuda/12
# shellcheck source=/dev/null
source ~/venv/bin/activate
set -u

export PYTHONUNBUFFERED=1  # what Python prints appears in the output at once
export TF_CPP_MIN_LOG_LEVEL=${{TF_CPP_MIN_LOG_LEVEL:-1}}  # 0 shows all notes

# The options of all steps. --label: the rank before each line of output.
# --distribution: ranks in the order of the nodes, whatever the topology is.
# --cpus-per-task: srun does not get it from the batch job.
step=(srun --label --distribution=plane=2 --cpus-per-task=4)

# TensorFlow 2.21 writes these notes before it reads TF_CPP_MIN_LOG_LEVEL.
quiet() {{
    [ "$TF_CPP_MIN_LOG_LEVEL" != 0 ] || exec cat
    trap '' TERM  # srun ends first
    exec sed -uE '/absl::InitializeLog\\(\\)|\\] (oneDNN custom|Could not find cuda)/d'
}}

status=0
# A task that gets the signal saves, and requeues the job with scontrol. Where there is none
# (in a container) it ends with exit status 75, and the lines below requeue the job.
# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the status into
# 143. --wait ends them 90 s after the first task has ended, whatever its status is.
# The script has to ask for the same jobs:
#   SlurmClusterResolver({{"chief": 1, "worker": -1}})
# shellcheck disable=SC1003,SC2016,SC2088  # these quotes keep the words as is
"${{step[@]}}" --kill-on-bad-exit=0 --wait=90 \\
    python train.py --name '$x' "$@" 2>&1 | quiet || status=$?

# Requeues the job after exit status 75.
slurm-resolver requeue --max-restarts 3 "$status"
"""

WITH_SERVERS = """\
# Under ParameterServerStrategy nothing saves at the signal: the training continues from
# the last save of BackupAndResume. So only this script gets it, and requeues the job.
end_job() {  # with the exit status of a step
    trap : USR1  # one that comes now changes nothing any more
    slurm-resolver requeue --max-restarts 100 "$1"
    exit "$?"
}
trap 'end_job 75' USR1

# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a
# name that does not resolve, a port that is taken or cannot be reached.
"${step[@]}" --kill-on-bad-exit=1 \\
    slurm-resolver check --timeout 120 --jobs chief=1,ps=1,worker=-1 || end_job "$?"

# --kill-on-bad-exit: else the other tasks wait for one that has failed.
# In the background, as bash heeds a signal at once only while it waits.
# The script has to ask for the same jobs:
#   SlurmClusterResolver({"chief": 1, "ps": 1, "worker": -1})
"${step[@]}" --kill-on-bad-exit=1 \\
    python train.py "$@" &
status=0
wait $! || status=$?
end_job "$status"
"""

ALL_OPTIONS = """--job-name 'a "b"' -N 2 --tasks-per-node 2 -c 4 --jobs chief=1,worker=-1 --mem 8G
-t 1-00 -p p -A a -q q -C '[x|y]&z*2' --array 0-3%2 --exclusive --requeue --signal TERM@90
--max-restarts 3 --env-setup 'module load cuda/12'
--env-setup 'source ~/venv/bin/activate' --no-check"""


@pytest.mark.parametrize(
    ("options", "command", "text"),
    [
        ("--nodes 4 --tasks-per-node 4 --gpus-per-node 4", "python train.py", PLAIN),
        (ALL_OPTIONS, "python train.py --name '$x'", REQUEUED),
    ],
)
def test_the_exact_text(
    options: str, command: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sbatch", *shlex.split(options), "--", *shlex.split(command)]) == 0
    assert capsys.readouterr() == (text, "")


# options: what the file has
PARTS = {
    "-N 2 --jobs mesh=-1 --exec": "    slurm-resolver exec --wait 120 --jobs mesh=-1 -- \\\n",
    "-N 4 --segment 2": "#SBATCH --nodes=4\n#SBATCH --segment=2\n#SBATCH --ntasks-per-node=1\n",
    "-N 3 --ps 1 --requeue": WITH_SERVERS,
    "-N 1": "step=(srun --label)\n",
    # counts without a rest are those of the training, which has fewer tasks than the checks
    "-N 2 --restarts 1 --spare-nodes 1 --jobs ps=1,worker=-1": (
        "    slurm-resolver check --timeout 120 --jobs ps=1,worker=-1\n"
    ),
    "-N 2 --restarts 1 --spare-nodes 1 --jobs ps=1,worker=1": (
        "    slurm-resolver check --timeout 120\n"
    ),
    "-N 2 --restarts 9 --requeue --signal USR1@300": (
        "slurm-resolver supervise --restarts 9 --requeue --least-time 360 \\\n"
        "    --nodes 2 --ntasks-per-node 1 -- \\\n"
        '    "${step[@]}" --kill-on-bad-exit=0 --wait=300 \\\n'
        '    python train.py "$@" 2>&1 | quiet || status=$?\n'
    ),
    "-N 3 --restarts 9 --ps 1 --requeue": (
        "slurm-resolver supervise --restarts 9 --requeue --least-time 180 \\\n"
        "    --nodes 3 --ntasks-per-node 1 -- \\\n"
        '    "${step[@]}" --kill-on-bad-exit=1 \\\n'
        '    python train.py "$@" &\n'
    ),
}


@pytest.mark.parametrize("options", PARTS)
def test_parts_of_the_text(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert PARTS[options] in printed(options, "python train.py", capsys)


SUPERVISED = """\
# supervise: starts the step again, on nodes that are healthy, when a task or a node has
# failed, and says why. It ends the other tasks of one that has failed.
slurm-resolver supervise --restarts 3 \\
    --nodes 4 --min-nodes 3 --ntasks-per-node 2 -- \\
    "${step[@]}" --kill-on-bad-exit=1 \\
    slurm-resolver exec --wait 120 -- \\
    python train.py "$@" 2>&1 | quiet
"""


def test_restarts_inside_the_allocation(capsys: pytest.CaptureFixture[str]) -> None:
    options = "-N 4 --tasks-per-node 2 --restarts 3 --spare-nodes 2 --min-nodes 3 --exec"
    text = printed(options, "python train.py", capsys)
    assert "# 4 nodes for the step, 2 to spare.\n#SBATCH --no-kill\n#SBATCH --nodes=6\n" in text
    assert text.endswith(SUPERVISED)


def test_exec_starts_both_steps_with_the_same_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("-N 4 --jobs ps=2,worker=-1 --exec --wait 9", "./train {index}", capsys)
    assert "    slurm-resolver check --timeout 9 --jobs ps=2,worker=-1\n" in text
    assert "    slurm-resolver exec --wait 9 --jobs ps=2,worker=-1 -- \\\n" in text
    assert "    ./train '{index}' \"$@\" 2>&1 | quiet\n" in text
    assert "#SBATCH --job-name=train\n" in text


def test_parameter_servers_on_further_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "-N 4 --tasks-per-node 2 --gpus-per-node 2 --ps 2 --ps-nodes 1 --ps-partition cpu -p g"
    )
    text = printed(options, "python train.py", capsys)
    workers, servers = text.split("#SBATCH hetjob\n")
    assert "--nodes=4\n#SBATCH --ntasks-per-node=2\n" in workers
    assert "--partition=g\n" in workers
    assert "--nodes=1\n#SBATCH --ntasks=3\n" in servers
    assert "--partition=cpu\n" in servers
    assert "gpus" not in servers
    arguments = re.findall(r"SlurmClusterResolver\((.*), het_groups=(.*)\)", text)
    assert [json.loads(part) for part in arguments[0]] == [
        {"chief": 1, "ps": 2, "worker": -1},
        {"chief": 1, "ps": 1, "worker": 0},
    ]


# Options, for whom the signal is, and the signals in the file. Without a requeue it is as the user
# has asked for.
SIGNALS = [
    ("--requeue --signal TERM@90", "every task", ["TERM@90"]),
    ("--requeue --ps 1 --signal TERM@90", "this script", ["B:TERM@90"]),
    ("--requeue --ps 1 --ps-nodes 2", "this script", ["B:USR1@120"]),
    ("--requeue --jobs chief=1,worker=-1", "every task", ["USR1@120"]),
    ("--ps 1 --signal USR2@60", "every task", ["USR2@60"]),
]


@pytest.mark.parametrize(("options", "whom", "signals"), SIGNALS)
def test_who_gets_the_signal(
    options: str, whom: str, signals: List[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(f"-N 3 {options}", "python train.py", capsys)
    assert re.findall("# Sent to (.*) [0-9]+ s before", text) == [whom]
    assert re.findall("--signal=(.*)", text) == signals
    assert (text.count("trap 'end_job 75' "), text.count('" &\n')) == (
        (1, 1) if whom == "this script" else (0, 0)
    )


REFUSED = {
    "--nodes 0": "--nodes 0: expected a whole number from 1 on",
    "--requeue --signal B:USR1@60": "--signal 'B:USR1@60': expected one of USR1",
    "--requeue --time 3": "the signal up to 60 s early",
    "--requeue --signal CONT@60": "expected one of USR1, USR2, TERM",
    "--time soon": "--time 'soon': expected minutes",
    "--job-name a/b": "--job-name 'a/b': expected no slash",
    "--job-name $'a\\n#SBATCH --x'": "--job-name 'a\\n#SBATCH --x': expected text of printable",
    "--partition ''": "--partition '': expected text",
    "--env-setup $'a\\nb'": "expected one line",
    "--ps 0": "--ps 0: expected a whole number from 1 on",
    "--ps 1 --jobs ps=1,worker=-1": "expected one",
    "--ps 3 --nodes 4": "--ps 3: the jobs leave none of the 4 tasks (4 nodes with 1 task each) for",
    "--ps 2 --nodes 1": "--ps 2: the jobs need 3 tasks or more, but 1 node with 1 task each",
    "--jobs 9=-1 --nodes 2": "--jobs 9=-1: TensorFlow takes no job '9'",
    "--jobs ps=1,worker=1 --nodes 3": "need 2 tasks",
    "--jobs ps=-1,worker=1 --nodes 3": "expected a number of parameter servers",
    "--ps-nodes 1": "--ps-nodes: expected --ps as well",
    "--ps 1 --ps-nodes 3": "--ps-nodes 3: expected at most 2",
    "--ps 1 --ps-nodes 1 --array 0-1": "no array of heterogeneous jobs",
    "--ps-partition cpu": "expected both",
    "--spare-nodes 1": "--spare-nodes 1: expected --restarts N as well",
    "--restarts 0": "--restarts 0: expected a whole number from 1 on",
    "--restarts 1 --nodes 2 --min-nodes 3": "--min-nodes 3: expected at most --nodes 2",
    "--restarts 1 -N 2 --ps 1 --ps-nodes 1": "does not restart a step of a heterogeneous job",
    "--restarts 1 -N 3 --min-nodes 2 --jobs ps=1,worker=2": "expected one job to be -1, the rest",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_is_refused(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    # bash reads the table's $'…', which shlex does not
    words = re.sub(r"\$'([^']*)'", lambda m: shlex.quote(m[1].replace("\\n", "\n")), options)
    assert main(["sbatch", *shlex.split(words), "--", "python", "train.py"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("slurm-resolver sbatch: ")
    assert REFUSED[options] in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "no command"),
        (["-x"], "srun would read it as an option"),
        (["python", "train.py", ":", "b"], "the word ':' of the command"),
        (["python", "-c", "1\r\n"], "no carriage return and no bytes that are not UTF-8"),
        (["python", "\udcff"], "no carriage return and no bytes that are not UTF-8"),
    ],
)
def test_commands_that_srun_would_misread(
    command: List[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sbatch", "--", *command]) == 2
    assert message in capsys.readouterr().err


WORDS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=12),
        st.sampled_from(["\n#SBATCH --x\n", "$(touch x)", "`x`", "'\"\\", "~", "*", "\n'x"]),
    ).filter(lambda word: word != ":"),
    max_size=5,
)
STUB = '#!/bin/bash\nwhile [ "$1" != program ]; do shift; done\nprintf \'%s\\0\' "$@" > "$ARGV"\n'


@settings(max_examples=40)
@given(words=WORDS)
def test_the_words_of_the_command_arrive(
    words: List[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "stub"
    folder.mkdir(exist_ok=True)
    (folder / "srun").write_text(STUB)
    (folder / "srun").chmod(0o755)
    text = batch_file(BatchSettings(["program", *words], check=False))
    subprocess.run(
        ["bash", "-s", "one more"],
        input=text.encode(),  # it is text, whatever the words are
        env={"PATH": f"{folder}:{os.environ['PATH']}", "ARGV": str(folder / "argv"), "LC_ALL": "C"},
        check=True,
        timeout=180,
    )
    arrived = (folder / "argv").read_bytes().split(b"\0")[:-1]
    assert arrived == [b"program", *map(os.fsencode, words), b"one more"]


def test_any_locale_can_print_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slurm_resolver", "sbatch", "--job-name", "é", "--", "echo", "ű"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert {"é", "ű"} <= set(done.stdout.decode())
