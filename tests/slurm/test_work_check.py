"""`slurm-resolver check --speed` on the real Slurm: a task whose CPU is slow, for real."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.newest]

CHECK = shlex.join([sys.executable, "-m", "slurm_resolver", "check", "--json", "--speed"])
CGROUPS = Path("/sys/fs/cgroup/cpu")


def results(output: str) -> Dict[str, Any]:
    return {check["id"]: check for check in json.loads(output)["checks"]}


def test_cpus_that_are_alike(real_slurm: SlurmCluster) -> None:
    done = real_slurm.run(f"srun -w n8,n9,n10 -N3 --ntasks-per-node=2 {CHECK}", timeout=120)
    checks = results(done.stdout)
    assert list(checks).index("work") == list(checks).index("speed") + 1
    assert checks["work"]["status"] == "ok", checks["work"]
    assert re.match(r"a CPU hashes [\d.]+ [MG]B/s, copies ", checks["work"]["detail"])


@contextlib.contextmanager
def quota(part: float) -> Iterator[Path]:
    """A cgroup whose processes get this part of a CPU together; the file that takes them in."""
    if os.geteuid() or not os.access(CGROUPS / "tasks", os.W_OK):
        pytest.skip(f"needs root, and {CGROUPS} of cgroup v1")
    folder = CGROUPS / f"slow{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text(str(int(100000 * part)))
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def test_the_task_that_gets_little_of_its_cpu_is_named(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Rank 1 is slowed when it has called rank 0, and only then does rank 2 come."""
    slowed = tmp_path / "slowed"
    called = "grep -q ' 01004D0A:[0-9A-F]* 01 ' /proc/net/tcp"  # 10.77.0.1, ESTABLISHED
    with quota(0.02) as procs:
        script = f"""
            [ $SLURM_PROCID != 2 ] || until [ -e {slowed} ]; do sleep 0.05; done
            {CHECK} &
            if [ $SLURM_PROCID = 1 ]; then
                until {called}; do sleep 0.02; done
                echo $! >{procs} && touch {slowed}
            fi
            wait $!"""
        step = f"srun -w n8,n9,n10 -N3 -n3 bash -c {shlex.quote(script)}"
        work = results(real_slurm.run(step, timeout=120).stdout)["work"]
    assert work["status"] == "warning"
    assert re.match(
        r"rank 1 on n9: the CPU (hashes|copies) \d+ MB/s \(median [\d.]+ [MG]B/s\).*: look at what "
        r"else runs there: the task got \d+% of a CPU, or do without the node \(sbatch "
        r"--exclude=n9\)$",
        work["detail"],
    ), work
