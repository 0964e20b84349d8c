"""The local launcher beside the real srun: its options, output and exit status."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from by_version import expected
from local_run import SPEAK, files, run
from side_by_side import run_side_by_side
from slurm_cluster import SlurmCluster
from time_limits import NO_SIGNALS, NO_TIMES, SIGNALS, TIMES

from slurm_resolver.slurm.time_limit import parse_time

pytestmark = pytest.mark.slurm


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


OUTPUTS = """\
-o o-%t.log
-o one.log
-l -o o-%t.log
-l -o one.log
-o both -e both
-o none
-o %N-%n-%s-%u-%x
-o 5
-o all -e none
-o None -e ALL
-o 1 -e none
-o o-%t -e e-%t
-l -e e-%t.log
-o one.log -e e-%t
-o one.log -e none""".splitlines()

Written = Tuple[Dict[str, List[str]], List[str], List[str]]  # files, standard output, errors


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
    folders = [tmp_path / str(number) for number in range(len(OUTPUTS))]
    steps = []
    for text, folder in zip(OUTPUTS, folders):
        folder.mkdir()
        steps.append((["-Qn2", *shlex.split(text), "sh", "-c", SPEAK], folder))
    ran = run_side_by_side(real_slurm, steps)
    for text, folder, (node, done) in zip(OUTPUTS, folders, ran):
        theirs = written(folder, done, node)
        assert theirs == written_by_us[text], text
