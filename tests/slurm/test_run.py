"""The local launcher beside the real srun: its options, variables, output and exit status."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from by_version import expected
from local_run import FIELDS, SPEAK, files, run
from side_by_side import run_side_by_side
from slurm_cluster import SlurmCluster
from slurm_installation import Installation
from time_limits import NO_SIGNALS, NO_TIMES, SIGNALS, TIMES

from slurm_resolver.cli.run import add_arguments
from slurm_resolver.errors import LaunchError
from slurm_resolver.local import IMITATED_SLURM
from slurm_resolver.local.output import file_name
from slurm_resolver.local.signal_thread import read_ignored_signals
from slurm_resolver.slurm.time_limit import parse_time

pytestmark = pytest.mark.slurm


def test_every_option_of_the_real_srun_is_known(real_slurm: SlurmCluster) -> None:
    """Also those that --help leaves out, where srun tells them to a shell that completes a line."""
    known = argparse.ArgumentParser()
    add_arguments(known)
    lines = real_slurm.run("srun --help; srun --autocomplete=-- || true").stdout.splitlines()
    options = {
        option
        for line in lines
        for option in re.findall(r"(?:^|\s)(--?[A-Za-z][a-z0-9_-]*)", line[:30])
        if re.match(r" {0,8}-", line)
    }
    assert len(options) > 120
    assert options - set(known._option_string_actions) == set()


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


# What older versions refuse.
OLD_SIGNALS: Dict[str, List[str]] = {"22.05": ["CHLD", "PIPE"], "24.11": []}


def test_signals_are_the_real_slurms(real_slurm: SlurmCluster) -> None:
    script = 'for one; do srun --test-only --signal="$one" true 2>&1 | grep -c Invalid; done; true'
    words = [*SIGNALS, *NO_SIGNALS]
    shown = real_slurm.run(["bash", "-c", script, "signals", *words]).stdout.split()
    refused = [*NO_SIGNALS, *expected(OLD_SIGNALS, real_slurm.installation)]
    assert shown == ["1" if word in refused else "0" for word in words]


IGNORED = ["USR1", "SIGUSR1", "usr1", "10", "USR1,USR2", "INT,TERM,HUP,QUIT", "USR1,"]
NOT_IGNORED = [
    "",
    ",",
    "FOO",
    "USR1,FOO",
    "ALRM",
    "CONT",
    "PIPE",
    "CHLD",
    "9",
    "64",
    "0",
    "USR1 INT",
]
KNOW_IGNORED: Dict[str, bool] = {"22.05": False, "26.05": True}


def test_signals_that_are_ignored_are_the_real_sruns(real_slurm: SlurmCluster) -> None:
    words = [*IGNORED, *NOT_IGNORED]
    for text in words:
        with contextlib.nullcontext() if text in IGNORED else pytest.raises(LaunchError):
            assert read_ignored_signals(text)
    if expected(KNOW_IGNORED, real_slurm.installation):
        script = (
            'for one; do srun -n1 --ignore-signals="$one" true 2>&1 | grep -c error:; done; true'
        )
        shown = real_slurm.run(["bash", "-c", script, "signals", *words]).stdout.split()
        assert shown == ["0"] * len(IGNORED) + ["1"] * len(NOT_IGNORED)


OUTPUTS = """\
-o o-%t.log
-o one.log
-l -o o-%t.log
-l -o one.log
-o o-%3t -e none
-o both -e both
-o none
-o %N -e %n-%u-%s-%x-%%
-l -e e-%t.log
-o 1
-o 01
-o 5
-o all -e none
-o None -e ALL
-o '' -e all
-o 1 -e all
-o 1 -e none
-o 0 -e one.log
-o o-%t -e e-%t
-o o-%t -e 1
-o o-%t -e one.log
-l -o o-%t -e all
-o one.log -e e-%t
-o one.log -e none
-o one.log -e 0""".splitlines()

# What older versions put elsewhere: the errors of tasks whose output is a file of their own, or
# of which one alone is shown.
Written = Tuple[Dict[str, List[str]], List[str], List[str]]  # files, standard output, errors
OUT = {rank: ["", f"out {rank}", "tail"] for rank in (0, 1)}
OLDER_WRITTEN: Dict[str, Written] = {
    "-o %N -e %n-%u-%s-%x-%%": (
        {"localhost": sorted(OUT[0] + OUT[1])[1:], "0-root-0-sh-%": ["", "err 0", "err 1"]},
        [],
        [],
    ),
    "-o o-%3t -e none": ({"o-000": OUT[0], "o-001": OUT[1]}, [], []),
    "-o '' -e all": ({}, ["out 0", "tail"], ["err 0", "err 1"]),
    "-o 1 -e all": ({}, ["out 1", "tail"], ["err 0", "err 1"]),
    "-o 0 -e one.log": ({"one.log": ["", "err 0", "err 1"]}, ["out 0", "tail"], []),
    "-o o-%t -e one.log": (
        {"o-0": OUT[0], "o-1": OUT[1], "one.log": ["", "err 0", "err 1"]},
        [],
        [],
    ),
    "-l -o o-%t -e all": (
        {f"o-{rank}": ["", "", f"{rank}: out {rank}", f"{rank}: tail"] for rank in (0, 1)},
        [],
        ["0: err 0", "1: err 1"],
    ),
}
OTHERWISE_WRITTEN: Dict[str, Dict[str, Written]] = {"22.05": OLDER_WRITTEN, "26.05": {}}


def written(
    folder: Path, done: subprocess.CompletedProcess[str], node: str = "localhost"
) -> Written:
    def lines(text: str) -> List[str]:
        return sorted(line for line in text.replace("tail", "tail\n").split("\n") if line)

    found = {name.replace(node, "localhost"): text for name, text in files(folder).items()}
    return found, lines(done.stdout), lines(done.stderr)


@pytest.fixture(scope="session")
def written_by_us(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Written]:
    """By options, where this launcher's tasks write to: once for all versions."""
    found = {}
    for text in OUTPUTS:
        folder = tmp_path_factory.mktemp("ours")
        label = [] if "-l" in text.split() else ["--no-label"]
        done = run("run", "-n2", *label, *shlex.split(text), "--", "sh", "-c", SPEAK, cwd=folder)
        found[text] = written(folder, done)
    return found


def test_output_goes_where_the_real_srun_writes_it(
    real_slurm: SlurmCluster, written_by_us: Dict[str, Written], tmp_path: Path
) -> None:
    others = expected(OTHERWISE_WRITTEN, real_slurm.installation)
    folders = [tmp_path / str(number) for number in range(len(OUTPUTS))]
    steps = []
    for text, folder in zip(OUTPUTS, folders):
        folder.mkdir()
        steps.append((["-Qn2", *shlex.split(text), "sh", "-c", SPEAK], folder))
    ran = run_side_by_side(real_slurm, steps)
    for text, folder, (node, done) in zip(OUTPUTS, folders, ran):
        theirs = written(folder, done, node)
        assert theirs == others.get(text, written_by_us[text]), text


NAMES = ["%4t-%n-%3n-%N-%2N", "%j-%J-%s-%x-%u", "%6j-%02s-%15J-%12t", "%A_%a", "a\\b-%t"]
NAMES += ["100%%-%t", "%%t", "x%", "%q-%i-%z", "%b-%r-%3u-%3x", "%0t-%3q", "%%-%%%t", "%a%%a-%t"]
NAMES += ["x%%3%t", "%%j%%%%-%t"]
# Where older versions name files otherwise: all names, with {j} for the job.
OLDER_NAMED: Dict[str, List[str]] = {
    "%A_%a": ["{j}_4294967294"],
    "x%": ["x%"],
    "%0t-%3q": ["0t-3q"],
    "%%-%%%t": ["%-%%t"],
    "%a%%a-%t": ["4294967294%a-0", "4294967294%a-1"],
    "x%%3%t": ["x%0", "x%1"],
    "%%j%%%%-%t": ["%j%%-0", "%j%%-1"],
}
OTHERWISE_NAMED: Dict[str, Dict[str, List[str]]] = {
    "22.05": {**OLDER_NAMED, "%b-%r-%3u-%3x": ["%b-%r-%root-na me"]},
    "24.11": {**OLDER_NAMED, "%b-%r-%3u-%3x": ["4-%r-%root-na me"]},
    "26.05": {},
}


def test_file_names_are_the_real_sruns(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    others = expected(OTHERWISE_NAMED, real_slurm.installation)
    show = "echo $SLURM_JOB_ID $SLURM_JOB_USER"
    folders = [tmp_path / str(number) for number in range(len(NAMES))]
    steps = []
    for pattern, folder in zip(NAMES, folders):
        folder.mkdir()
        steps.append((["-n2", "-J", "na me", "-o", pattern, "sh", "-c", show], folder))
    ran = run_side_by_side(real_slurm, steps)
    for pattern, folder, (node, done) in zip(NAMES, folders, ran):
        assert done.returncode == 0, done.stderr
        [(job, user), *_] = [path.read_text().split("\n")[0].split() for path in folder.iterdir()]
        fields = {**FIELDS, "j": job, "A": job, "s": "0", "J": f"{job}.0", "u": user, "N": node}
        ours = {file_name(pattern, {**fields, "t": rank}) for rank in ("0", "1")}
        names = {name.replace("{j}", job) for name in others.get(pattern, ours)}
        assert {path.name for path in folder.iterdir()} == names, pattern


def test_nothing_differs_from_the_imitated_version() -> None:
    assert max(OTHERWISE_WRITTEN) == max(OTHERWISE_NAMED) == max(KNOW_IGNORED) == IMITATED_SLURM
    assert not OTHERWISE_WRITTEN[IMITATED_SLURM]
    assert not OTHERWISE_NAMED[IMITATED_SLURM]
    assert not expected(OLD_SIGNALS, Installation(IMITATED_SLURM))
