"""The tasks of steps with PMI-2 meet, on the real Slurm: by the secret that they share, and late.

Ranks 0 and 1 run on n9, ranks 2 and 3 on n10. The cases run beside each other, as most only wait.
"""

from __future__ import annotations

import json
import shlex
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.newest]

READY = shlex.join([sys.executable, str(HELPERS / "slurm_ready.py")])
STEP = "srun --mpi=pmi2 -w n9,n10 -N2 --ntasks-per-node=2 -m plane=2"
BY_PMI2, BY_NOTHING = "PMI-2", ""


class Case(NamedTuple):
    """A command in which READY stands for the program; what it tells in each rank that is left.

    `told` is an error, or None where all are ready; `means` is how they came by their secret.
    """

    command: str
    means: str = BY_PMI2
    told: Optional[str] = None
    ranks: str = "0 1 2 3"


def missing(rank: int) -> str:
    return f"1 of 4 tasks are missing.*: rank {rank} (worker {rank} on n{9 + rank // 2})"


CASES = {
    "together": Case(f"{STEP} READY"),
    "another late": Case(f"""{STEP} READY --timeout 40 --late '{{"3": 3}}'"""),
    "host late": Case(f"""{STEP} READY --timeout 40 --late '{{"0": 3, "1": 1.5}}'"""),
    "never": Case(
        f"{STEP} READY --timeout 15 --fault 'never starts' --in-rank 2",
        BY_NOTHING,
        missing(2),
        "0 1 3",
    ),
    "one that only resolves": Case(
        f"{STEP} READY --timeout 15 --fault 'only resolves' --in-rank 1",
        BY_NOTHING,
        missing(1),
        "0 2 3",
    ),
    # Nobody can be asked where the nodes are: neither a name server nor Slurm.
    "no names, no scontrol": Case(f"{STEP} env PATH=/nowhere READY --node-address=-nowhere"),
    "few files": Case(f"{STEP} bash -c 'ulimit -n 64; exec READY'"),
    "then a child of each": Case(f"{STEP} READY --child"),
    "not wanted": Case(f"{STEP} env SLURM_RESOLVER_PMI2=off READY", BY_NOTHING),
    "a wrong layout": Case(
        f"{STEP} READY --fault 'a wrong layout' --in-rank 2",
        BY_PMI2,
        "disagree on where the ranks run: rank 2 (",
    ),
}


@pytest.fixture(scope="module")
def running(
    real_slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Dict[str, Future[Dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("meetings")

    def run(name: str) -> Dict[str, Any]:
        output, events = folder / name.replace(" ", "-"), folder / f"events of {name}"
        output.mkdir()
        env = {"TASK_OUTPUT": str(output)}
        if "late" in CASES[name].command:
            events.mkdir()
            env["TASK_EVENTS"] = str(events)
        command = CASES[name].command.replace("READY", READY)
        real_slurm.run(command, env=env, check=False, timeout=120)
        return {path.name: json.loads(path.read_text()) for path in output.iterdir()}

    with ThreadPoolExecutor(len(CASES)) as pool:
        yield {name: pool.submit(run, name) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_what_each_task_tells(running: Dict[str, Future[Dict[str, Any]]], name: str) -> None:
    case, outcomes = CASES[name], running[name].result()
    for rank in case.ranks.split():
        error = outcomes[rank]["error"]
        assert (case.told is None) == (error is None), error
        assert all(part in (error or "") for part in (case.told or "").split(".*")), error
        assert outcomes[rank]["means"] == case.means
    children = {name: one for name, one in outcomes.items() if name.startswith("child-")}
    assert len(children) == (4 if "--child" in case.command else 0)
    for outcome in children.values():  # which have not touched what their tasks use
        assert (outcome["error"], outcome["means"]) == (None, BY_NOTHING)
    assert len(outcomes) == len(case.ranks.split()) + len(children)


def test_who_is_missing_where_no_variable_tells_the_layout(real_slurm: SlurmCluster) -> None:
    check = shlex.join([sys.executable, "-m", "slurm_resolver", "check", "--timeout", "6"])
    program = f"[ $SLURM_PROCID != 2 ] || exec sleep 9; exec {check}"
    done = real_slurm.run(
        f"srun --mpi=pmi2 -m arbitrary -w n10,n9,n10 -n3 bash -c {shlex.quote(program)}",
        check=False,
    )
    assert done.returncode == 1
    assert "1 of 3 tasks are missing" in done.stdout + done.stderr
    assert "rank 2. They have not started" in done.stdout + done.stderr


def test_the_next_program_of_a_task_meets_without(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    twice = f"{READY} --prefix first- && exec {READY}"
    real_slurm.run(f"{STEP} bash -c {shlex.quote(twice)}", env={"TASK_OUTPUT": str(tmp_path)})
    for path in tmp_path.iterdir():
        outcome = json.loads(path.read_text())
        means = BY_PMI2 if path.name.startswith("first-") else BY_NOTHING
        assert (outcome["error"], outcome["means"]) == (None, means)
    assert len(list(tmp_path.iterdir())) == 8
