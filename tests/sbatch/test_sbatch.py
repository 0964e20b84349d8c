"""The batch files that `slurm-resolver sbatch` prints, and the values that it refuses."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from captured import Captured
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import Strings
from local_run import captured, printed_batch_file, refused
from programs_on_path import stand_ins

from slurm_resolver.sbatch.script import batch_file
from slurm_resolver.sbatch.settings import BatchSettings

# lines of the file without its comments, by options
PARTS = {
    "-N 2 --tasks-per-node 2 -c 4 --gpus-per-node a100:4 -t 1-00 --requeue --signal TERM@90": """\
#SBATCH --output=%x-%j.out
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@90
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=a100:4
#SBATCH --cpus-per-task=4
#SBATCH --time=1-00

set -eo pipefail


set -u
""",
    "-N 2 --requeue": """\
status=0
quiet "${step[@]}" --kill-on-bad-exit=0 --wait=120 \\
    python train.py "$@" || status=$?

slurm-resolver requeue --max-restarts 100 "$status"
""",
    "-N 3 --ps 1 --requeue": """\
end_job() {
    trap : USR1
    slurm-resolver requeue --max-restarts 100 "$1"
    exit "$?"
}
trap 'end_job 75' USR1

"${step[@]}" --kill-on-bad-exit=1 \\
    slurm-resolver check --timeout 120 --jobs chief=1,ps=1,worker=-1 || end_job "$?"

quiet "${step[@]}" --kill-on-bad-exit=1 \\
    python train.py "$@" &
status=0
wait $! || status=$?
end_job "$status"
""",
    "-N 1": "step=(srun --label)\n",
    "-N 4 --tasks-per-node 4": "step=(srun --label --distribution=block)\n",
    "-N 4 --tasks-per-node 2 --restarts 3 --spare-nodes 2": (
        "#SBATCH --no-kill\n#SBATCH --nodes=6\n"
    ),
    "-N 4 --tasks-per-node 2 --restarts 3 --min-nodes 3": """\
quiet slurm-resolver supervise --restarts 3 \\
    --nodes 4 --min-nodes 3 --ntasks-per-node 2 -- \\
    "${step[@]}" --kill-on-bad-exit=1 \\
    python train.py "$@"
""",
    "-N 2 --restarts 9 --requeue --signal USR1@300": (
        "quiet slurm-resolver supervise --restarts 9 --requeue --least-time 360 \\\n"
        "    --nodes 2 --ntasks-per-node 1 -- \\\n"
        '    "${step[@]}" --kill-on-bad-exit=0 --wait=300 \\\n'
        '    python train.py "$@" || status=$?\n'
    ),
}


@pytest.mark.parametrize("options", PARTS)
def test_parts_of_the_text(options: str, capsys: Captured) -> None:
    assert PARTS[options] in re.sub(
        r"^# .*\n|  # .*", "", printed_batch_file(options, "python train.py", capsys), flags=re.M
    )


@pytest.mark.parametrize(
    "options",
    [
        "-N 2",
        "-N 2 --requeue",
        "-N 3 --ps 1 --requeue",
        "-N 2 --restarts 1",
    ],
)
def test_tensorflows_notes_are_removed_from_standard_error(
    options: str, tmp_path: Path, capsys: Captured
) -> None:
    """All other lines reach their stream, and the exit status is the step's, on a full disk too."""
    train = "echo out; echo 'x.cc:1] oneDNN custom operations are on' >&2; echo err >&2; exit 7"
    program = f'#!/bin/bash\n[ "$1" = requeue ] && exit "$4"\n{train}\n'
    path = stand_ins(tmp_path, program, "srun", "slurm-resolver")
    text = printed_batch_file(f"{options} --no-check", "train", capsys)
    for start, errors in (
        ("", "err\n"),
        ("TF_CPP_MIN_LOG_LEVEL=0\n", "x.cc:1] oneDNN custom operations are on\nerr\n"),
        ("exec 2>/dev/full\n", ""),
    ):
        done = captured(
            ["bash", "-c", start + text],
            env={"PATH": path},
        )
        assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", errors)


REFUSED = {
    "--nodes 0": "argument -N/--nodes: '0': expected a number from 1 to 1000000",
    "--requeue --signal B:USR1@60": "--signal 'B:USR1@60': expected SIGNAL[@SECONDS]",
    "--requeue --signal CONT@60": "expected one of USR1, USR2, TERM",
    "--signal KILL@60": "--signal KILL@60: a training cannot save at this signal",
    # 0 would be no limit for srun's --wait
    "--requeue --signal USR1@0": "--signal USR1@0: a training cannot save at this signal",
    "--requeue --time 3": "the signal up to 60 s early",
    "--time soon": "--time 'soon': expected minutes",
    "--partition gpu": "--partition. Give Slurm's other options to sbatch, as in sbatch --part",
    "-A ours --nodes 2": "-A. Give Slurm's other options to sbatch",
    "--ntasks 8": "unrecognized arguments: --ntasks. Give",  # which is not --ntasks-per-node
    "--gpus 4": "unrecognized arguments: --gpus. Give",  # of the job, not of each node
    "--gpus-per-node two": "--gpus-per-node two: expected a number, such as 4 or a100:4, and a mu",
    "--tasks-per-node 2 --gpus-per-node 3": "--gpus-per-node 3: expected a number",
    "--tasks-per-node 4 --gpus-per-node a100:6": "a multiple of --tasks-per-node 4: Tensor",
    "--ps 0": "argument --ps: '0': expected a number from 1",
    "--ps 3 --nodes 4": "--ps 3: with the chief and a worker, these need 5 tasks or more, but 4 n",
    "--spare-nodes 1": "--spare-nodes and --min-nodes: expected --restarts as well",
    "--restarts 1 --nodes 2 --min-nodes 3": "--min-nodes 3: expected at most --nodes 2",
    "--restarts 1 -N 3 --min-nodes 2 --ps 1": "need 3 tasks or more, but 2 nodes have 2",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_is_refused(options: str, capsys: Captured) -> None:
    errors = refused(capsys, "sbatch", *shlex.split(options), "--", "python", "train.py")
    assert errors.startswith("slurm-resolver")
    assert REFUSED[options] in errors


@pytest.mark.parametrize("gpus", ["2", "4", "a100:2", "1", "0", "3 --nodes 2 --ps 1"])
def test_gpus_for_two_tasks(gpus: str, capsys: Captured) -> None:
    text = printed_batch_file(f"--tasks-per-node 2 --gpus-per-node {gpus}", "train", capsys)
    assert f"#SBATCH --gpus-per-node={gpus.partition(' ')[0]}\n" in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "no command"),
        (["-x"], "srun reads a first word that is empty or begins with '-' as its own"),
        (["python", "train.py", ":", "b"], "':' as the start of another component"),
        (["python", "-c", "1\r\n"], "neither carriage returns nor bytes that are not UTF-8"),
        (["python", "\udcff"], "neither carriage returns nor bytes that are not UTF-8"),
    ],
)
def test_commands_that_srun_would_misread(command: Strings, message: str, capsys: Captured) -> None:
    assert message in refused(capsys, "sbatch", "--", *command)


WORDS = st.lists(
    st.one_of(
        st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=12),
        st.sampled_from(["\n#SBATCH --x\n", "$(touch x)", "`x`", "'\"\\", "~", "*", "\n'x"]),
    ).filter(lambda word: word != ":"),
    max_size=5,
)
STUB = '#!/bin/bash\nwhile [ "$1" != program ]; do shift; done\nprintf \'%s\\0\' "$@" > "$ARGV"\n'


@settings(max_examples=15)
@given(words=WORDS)
def test_the_words_of_the_command_arrive(
    words: Strings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "stub"
    folder.mkdir(exist_ok=True)
    subprocess.run(
        ["bash", "-s", "one more"],
        input=batch_file(
            BatchSettings(["program", *words], check=False)
        ).encode(),  # valid UTF-8 for all words
        env={
            "PATH": stand_ins(folder, STUB, "srun"),
            "ARGV": str(folder / "argv"),
            "LC_ALL": "C",
        },
        check=True,
        timeout=180,
    )
    assert (folder / "argv").read_bytes().split(b"\0")[:-1] == [
        b"program",
        *map(os.fsencode, words),
        b"one more",
    ]
