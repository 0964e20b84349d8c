"""The local launcher beside the real srun: its options, variables, output and exit status."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

import pytest
from local_run import FIELDS, SPEAK, files, run
from slurm_cluster import Node, SlurmCluster, SlurmUnavailable, slurm_or_skip
from time_limits import NO_SIGNALS, NO_TIMES, SIGNALS, TIMES

from slurm_resolver.cli.run import add_arguments
from slurm_resolver.local.output import file_name
from slurm_resolver.slurm.time_limit import parse_time

pytestmark = pytest.mark.slurm


def test_every_option_of_the_real_srun_is_known(real_slurm: SlurmCluster) -> None:
    known = argparse.ArgumentParser()
    add_arguments(known)
    lines = real_slurm.run("srun --help").stdout.splitlines()
    options = {
        option
        for line in lines
        for option in re.findall(r"(?:^|\s)(--?[A-Za-z][a-z-]*)", line[:30])
        if re.match(r" {1,8}-", line)
    }
    assert len(options) > 120
    help_and_version = {"--usage", "-V", "--version"}
    assert options - set(known._option_string_actions) - help_and_version == set()


GPU_OPTIONS = """\
--gpus=2
-G3
--gpus-per-node=2
--gpus-per-node 2 --gpus 2
--gpus-per-task=2
--gpus-per-task 1 --gpus 2
--gpus-per-task 1 --gpus-per-node 2
--gpus 2 --gpu-bind none
--gpus 2 --gpu-bind closest
--gpus 2 --gpu-bind single:1
--gpus 4 --gpu-bind single:2
--gpus 2 -n4 --gpu-bind single:2
--gpus 2 -n3 --gpu-bind single:1
--gpus 2 --gpu-bind verbose,single:1
--gpus-per-task 2 --gpu-bind single:1
--gpus-per-task 1 --gpu-bind none
--gpus-per-task 1 --gpu-bind closest
--gpus 4 --gpu-bind per_task:2
--gpus 4 --gpu-bind per_task:1
--gpus 4 --gpu-bind per_task:3
--gpus 2 -n4 --gpu-bind per_task:1
--gpu-bind single:1
-c2 --gpus 2
-m cyclic
-m plane=2
-m block:cyclic
-m *
-m nopack
-m BLOCK
-m cyclic:block,Pack""".splitlines()


def variables(folder: Path) -> List[Dict[str, str]]:
    """Each task's variables that the options are about, from files by rank."""
    tasks = []
    for path in sorted(folder.iterdir()):
        entries = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
        about = ("GPU", "CUDA", "ROCR", "ZE_AFF", "TRES", "SLURM_DIST", "SLURM_NTASKS", "PER_TASK")
        tasks.append({k: v for k, v in entries.items() if any(word in k for word in about)})
        assert entries["SLURM_PROCID"] == path.name
    return tasks


# One process for all steps, as Python takes longer to start than they do.
LOOP = """
import sys
from slurm_resolver.cli import main
for line in sys.stdin:
    assert main(["run", "-n2", *line.rstrip("\\n").split("\\0"), "--", "env", "-0"]) == 0
"""


def test_variables_are_the_real_sruns(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    steps = [shlex.split(text) for text in GPU_OPTIONS]
    for number, options in enumerate(steps):
        for folder in (f"srun-{number}", f"run-{number}"):
            (tmp_path / folder).mkdir()
        pattern = f"{tmp_path}/srun-{number}/%t"
        real_slurm.run(["srun", "-wn9", "-n2", *options, "-o", pattern, "env", "-0"])
    lines = ["\0".join([*o, "-o", f"{tmp_path}/run-{n}/%t"]) for n, o in enumerate(steps)]
    command = [sys.executable, "-c", LOOP]
    subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=60)
    for number, text in enumerate(GPU_OPTIONS):
        ours = variables(tmp_path / f"run-{number}")
        assert ours == variables(tmp_path / f"srun-{number}"), text


CPU_BINDINGS = ["none", "rank", "threads", "quiet,threads", "verbose,threads"]


def test_cpu_binding_is_the_real_sruns(tmp_path: Path) -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs the CPUs 0 and 1")
    show = "cat /proc/self/status; env | grep CPU_BIND"

    def told(text: str) -> Dict[str, str]:
        pairs = (re.split("[:=]\\s*", line, maxsplit=1) for line in text.splitlines())
        return {k: v for k, v in pairs if "CPU_BIND" in k or k == "Cpus_allowed_list"}

    conf = ["TaskPlugin=task/affinity", "SelectTypeParameters=CR_CPU"]
    directory = Path(tempfile.mkdtemp(prefix="cpu"))
    try:
        with SlurmCluster([Node("n8", cpus=2)], directory, extra_conf=conf) as slurm:
            for binding in CPU_BINDINGS:
                command = ["-n2", "--cpu-bind", binding, "-o", f"{tmp_path}/%t"]
                slurm.run(["srun", *command, "sh", "-c", show])
                theirs = [told((tmp_path / rank).read_text()) for rank in ("0", "1")]
                done = run("run", *command, "--", "sh", "-c", show)
                assert [told((tmp_path / rank).read_text()) for rank in ("0", "1")] == theirs
                assert (binding.startswith("verbose")) == ("is bound to CPU" in done.stderr)
    except SlurmUnavailable as error:
        slurm_or_skip(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize(
    "script",
    [
        "exit $SLURM_PROCID",
        "exit $((3 + SLURM_PROCID))",
        "kill -SEGV $$",
        "[ $SLURM_PROCID = 1 ] && exit 255",
        "[ $SLURM_PROCID = 0 ] && kill -KILL $$; exit 3",
    ],
)
def test_exit_status_is_the_real_sruns(real_slurm: SlurmCluster, script: str) -> None:
    srun = real_slurm.run(["srun", "-wn9", "-n2", "sh", "-c", script], check=False)
    assert run("run", "-n2", "-K0", "--", "sh", "-c", script).returncode == srun.returncode


def test_time_limits_are_the_real_slurms(real_slurm: SlurmCluster) -> None:
    """Slurm rounds up to minutes."""
    script = """
for time; do
    job=$(sbatch -H --parsable -t "$time" --wrap true 2>/dev/null) || { echo refused; continue; }
    scontrol --oneliner show job $job | sed 's/.* TimeLimit=\\([^ ]*\\).*/\\1/'
    scancel $job
done"""
    words = [*TIMES, *NO_TIMES]
    shown = real_slurm.run(["bash", "-c", script, "times", *words]).stdout.split("\n")
    for text, answer in zip(words, shown):
        if text in NO_TIMES:
            assert answer == "refused", text
            continue
        seconds = None if answer == "UNLIMITED" else parse_time(answer)
        own = TIMES[text]
        assert seconds == (None if own is None else -(-own // 60) * 60), text


def test_signals_are_the_real_slurms(real_slurm: SlurmCluster) -> None:
    script = 'for one; do srun --test-only --signal="$one" true 2>&1 | grep -c Invalid; done; true'
    words = [*SIGNALS, *NO_SIGNALS]
    shown = real_slurm.run(["bash", "-c", script, "signals", *words]).stdout.split()
    assert shown == ["0"] * len(SIGNALS) + ["1"] * len(NO_SIGNALS)


OUTPUTS: List[List[str]] = [
    ["-o", "o-%t.log"],
    ["-o", "one.log"],
    ["-l", "-o", "o-%t.log"],
    ["-l", "-o", "one.log"],
    ["-o", "o-%3t", "-e", "none"],
    ["-o", "both", "-e", "both"],
    ["-o", "none"],
    ["-o", "%N", "-e", "%n-%u-%s-%x-%%"],
    ["-l", "-e", "e-%t.log"],
    ["-o", "1"],
    ["-o", "5"],
    ["-o", "all", "-e", "none"],
]


def test_output_goes_where_the_real_srun_writes_it(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    for number, options in enumerate(OUTPUTS):
        theirs, ours = tmp_path / f"srun-{number}", tmp_path / f"run-{number}"
        theirs.mkdir()
        ours.mkdir()
        if "-l" not in options:
            options = ["--no-label", *options]
        real = [option for option in options if option != "--no-label"]
        srun = real_slurm.run(["srun", "-wn9", "-Qn2", *real, "sh", "-c", SPEAK], cwd=theirs)
        done = run("run", "-n2", *options, "--", "sh", "-c", SPEAK, cwd=ours)
        expected = {name.replace("n9", "localhost"): text for name, text in files(theirs).items()}
        assert files(ours) == expected, options

        def lines(text: str) -> List[str]:
            return sorted(line for line in text.replace("tail", "tail\n").split("\n") if line)

        assert lines(done.stdout) == lines(srun.stdout), options
        assert lines(done.stderr) == lines(srun.stderr), options


def test_file_names_are_the_real_sruns(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    patterns = ["%4t-%n-%3n-%N-%2N", "%j-%J-%s-%x-%u", "%6j-%02s-%15J-%12t", "%A_%a", "a\\b-%t"]
    patterns += ["100%%-%t", "%%t", "x%", "%q-%i-%z"]
    for number, pattern in enumerate(patterns):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = ["srun", "-wn9", "-n2", "-J", "na me", "-o", f"{folder}/{pattern}"]
        if "\\" in pattern:
            command[-1] = pattern
        show = "echo $SLURM_JOB_ID $SLURM_JOB_USER"
        real_slurm.run([*command, "sh", "-c", show], cwd=folder)
        [(job, user), *_] = [path.read_text().split("\n")[0].split() for path in folder.iterdir()]
        fields = {**FIELDS, "j": job, "A": job, "s": "0", "J": f"{job}.0", "u": user}
        expected = {file_name(pattern, {**fields, "t": rank}) for rank in ("0", "1")}
        assert {path.name for path in folder.iterdir()} == expected, pattern
