"""PMI-2 on the real Slurm: the layout by its store, and where it is left alone."""

from __future__ import annotations

import ctypes
import itertools
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
from by_version import expected
from folders import HELPERS
from slurm_cluster import Node, SlurmCluster, SlurmUnavailable, slurm_or_skip, started
from slurm_installation import Installation
from task_accounts import TASK, Line, accounts, assert_right, run

pytestmark = pytest.mark.slurm

PMI2 = shlex.join([sys.executable, str(HELPERS / "slurm_pmi2.py")])

PLAIN = "-w n8,n9,n10 -N3 --ntasks-per-node=4"
COMPONENTS = "-N1 -n1 -w n10 TASK : -N2 -n3 -w n8,n9 TASK"
THREE = "-m arbitrary -w n10,n8,n10 -n3"  # a step whose layout no variable tells

# Steps where PMI-2 is there, and where their layout is from.
STEPS: Dict[str, Any] = {
    "block": ("srun -N3 -w n8,n9,n10 -n6 TASK", {"22.05": "environment", "26.05": "pmi2"}),
    "arbitrary": ("srun -m arbitrary -w n10,n8,n10,n9,n9,n8 -n6 TASK", {"22.05": "pmi2"}),
    "heterogeneous": ("srun -N1 -n2 -w n10 TASK : -N2 -n3 -w n8,n9 TASK", {"22.05": "pmi2"}),
    # Its fence would never end: each component has a store of its own, but for the tasks of all.
    # Slurm 24.11 cannot run such a step with PMI-2: srun ends a third of them as they start.
    "heterogeneous, plain": (
        f"salloc {PLAIN} srun {COMPONENTS}",
        {"22.05": "rendezvous", "24.11": None, "26.05": "rendezvous"},
    ),
    "late, with few files": (
        f"srun {THREE} bash -c 'ulimit -n 64; [ $SLURM_PROCID != 1 ] || sleep 1; exec TASK'",
        {"22.05": "pmi2"},
    ),
    "without its socket": (
        f"srun {THREE} bash -c 'eval \"exec $PMI_FD>&-\"; exec TASK'",
        {"22.05": "rendezvous"},
    ),
}


def with_pmi2(command: str) -> str:
    return re.sub(r"\bsrun\b", "srun --mpi=pmi2", command)


@pytest.mark.parametrize(("command", "sources"), STEPS.values(), ids=STEPS)
def test_every_task_knows_the_true_cluster(
    real_slurm: SlurmCluster, command: str, sources: Dict[str, Optional[str]], output: Path
) -> None:
    source = expected(sources, real_slurm.installation)
    if source is None:
        pytest.skip("this version of Slurm cannot run it")
    assert_source(run(real_slurm, with_pmi2(command), output), source)


def test_the_next_program_of_a_task_meets_over_tcp(real_slurm: SlurmCluster, output: Path) -> None:
    """slurmstepd would take a second greeting for the end of another task."""
    for name in ("first", "second"):
        (output / name).mkdir()
    real_slurm.run(
        f"srun --mpi=pmi2 {THREE} bash -c "
        f"'TASK_OUTPUT={output}/first {TASK}; TASK_OUTPUT={output}/second {TASK}'"
    )
    for name, source in (("first", "pmi2"), ("second", "rendezvous")):
        lines = accounts(output / name)
        assert_right(lines)
        assert {line["cluster"]["layout_source"] for line in lines} == {source}


def test_the_tasks_share_what_they_like(real_slurm: SlurmCluster, output: Path) -> None:
    lines = run(
        real_slurm,
        f"srun --mpi=pmi2 -N2 -w n8,n9 --ntasks-per-node=2 -m cyclic {PMI2} share",
        output,
    )
    assert len(lines) == 4
    for line in lines:
        assert line["addresses"] == ["n8", "n9"]
        assert line["secret"] == lines[0]["secret"]
    # Rank 1 has not come a third time.
    assert "those of this node have" in lines[0]["error"]
    assert "those of this node have" in lines[2]["error"]
    assert "of this node, 1 of 2 are missing: rank 1." in lines[3]["error"]


# Steps, where their layout is from, and by what the tasks know each other when they meet.
MEETINGS: Dict[str, Any] = {
    "arbitrary": (THREE, {"22.05": "pmi2"}, {"22.05": "PMI-2"}),
    "cyclic": ("-w n8,n9 -N2 -n3 -m cyclic", {"22.05": "environment"}, {"22.05": "PMI-2"}),
    "one of MPI": (
        f"{THREE} env LD_PRELOAD=libmpich.so.12",
        {"22.05": "rendezvous"},
        {"22.05": ""},
    ),
    "heterogeneous, plain": (
        f"{COMPONENTS}".replace("TASK", f"{PMI2} ready"),
        {"22.05": "rendezvous", "24.11": None, "26.05": "rendezvous"},
        {"22.05": ""},
    ),
}


@pytest.mark.usefixtures("_mpich")
@pytest.mark.parametrize("name", MEETINGS)
def test_they_know_each_other_by_it_when_they_meet(
    real_slurm: SlurmCluster, output: Path, name: str
) -> None:
    step, sources, means = MEETINGS[name]
    source = expected(sources, real_slurm.installation)
    if source is None:
        pytest.skip("this version of Slurm cannot run it")
    command = f"srun {step}" if "ready" in step else f"srun {step} {PMI2} ready"
    if "ready" in step:
        command = f"salloc {PLAIN} {command}"
    lines = run(real_slurm, with_pmi2(command), output)
    told = (source, expected(means, real_slurm.installation))
    assert {(line["source"], line["means"]) for line in lines} == {told}


# Slurm's own word of the layout, and on which versions it is true.
MAPPED: Dict[str, Any] = {
    "block": ("-N3 -w n8,n9,n10 -n6", {"22.05": True, "26.05": False}),
    "cyclic": ("-N3 -w n8,n9,n10 -n5 -m cyclic", {"22.05": True}),
    "plane": ("-N3 -w n8,n9,n10 -n7 -m plane=2", {"22.05": True}),
    "arbitrary": ("-m arbitrary -w n10,n8,n10,n9 -n4", {"22.05": False, "24.05": True}),
    "heterogeneous": ("-N1 -n2 -w n10 MAPPING : -N2 -n3 -w n8,n9", {"22.05": False}),
}


@pytest.fixture
def tree(installation: Installation, tmp_path: Path) -> Iterator[SlurmCluster]:
    """A site that has PMI-2 by default, and a topology in another order than the list of nodes."""
    switches = ["SwitchName=s0 Switches=s[1-2]", "SwitchName=s1 Nodes=n8,n10"]
    text = "\n".join([*switches, "SwitchName=s2 Nodes=n9,n11", ""])
    (tmp_path / "topology.conf").write_text(text)
    nodes = [Node(f"n{number}") for number in range(8, 12)]
    conf = ["TopologyPlugin=topology/tree", "MpiDefault=pmi2"]
    with started(
        SlurmCluster(nodes, tmp_path, extra_conf=conf, installation=installation)
    ) as cluster:
        yield cluster


def test_slurms_own_mapping_is_wrong_where_no_variable_tells_either(
    tree: SlurmCluster, installation: Installation, tmp_path: Path
) -> None:
    commands = []
    for name, (options, _) in MAPPED.items():
        (tmp_path / name).mkdir()
        step = f"{options} MAPPING".replace("MAPPING", f"{PMI2} mapping")
        commands.append((name, f"env TASK_OUTPUT={tmp_path / name} srun {step}"))
    script = tmp_path / "script"
    ours = tmp_path / "ours"
    ours.mkdir()
    resolved = f"env TASK_OUTPUT={ours} srun {MAPPED['block'][0]} {TASK}"
    script.write_text("\n".join([*(command for _, command in commands[:-1]), resolved]))
    # One job, as the nodes of a job that has ended are not free at once.
    tree.run(f"salloc -N3 -w n8,n9,n10 --ntasks-per-node=8 bash -e {script}")
    tree.run(commands[-1][1])  # its components need a job of their own
    assert_source(accounts(ours), expected(STEPS["block"][1], installation))
    found = {}
    for name, (options, _) in MAPPED.items():
        lines = accounts(tmp_path / name)
        nodes = [host for host in ("n8", "n9", "n10") if host in options]
        found[name] = mapped(lines[0]["mapping"], nodes) == [line["host"] for line in lines]
        assert len({line["mapping"] for line in lines}) == 1
    assert found == {name: expected(true, installation) for name, (_, true) in MAPPED.items()}


def mapped(mapping: str, nodes: List[str]) -> List[str]:
    """The node of each rank, as ``(vector,(first node,nodes,ranks a node),…)`` says it."""
    blocks = re.findall(r"\((\d+),(\d+),(\d+)\)", mapping)
    ranks = [
        [first + node] * count
        for first, number, count in (map(int, block) for block in blocks)
        for node in range(number)
    ]
    return [nodes[node] if node < len(nodes) else "none" for node in itertools.chain(*ranks)]


@pytest.fixture
def stand_in(tmp_path: Path) -> Dict[str, str]:
    """The environment of programs that have mpi4py, as far as can be seen without importing it."""
    (tmp_path / "packages" / "mpi4py").mkdir(parents=True)
    (tmp_path / "packages" / "mpi4py" / "__init__.py").write_text("raise ImportError")
    (tmp_path / "first").mkdir()
    return {"PYTHONPATH": str(tmp_path / "packages"), "FIRST_OUTPUT": str(tmp_path / "first")}


@pytest.fixture
def _mpich() -> None:
    try:
        ctypes.CDLL("libmpich.so.12")
    except OSError as error:
        slurm_or_skip(SlurmUnavailable(f"{error}; `make slurm` gets MPICH"))


THEN_MPI = f"srun --mpi=pmi2 {THREE} bash -c 'TASK_OUTPUT=$FIRST_OUTPUT {TASK}; exec {PMI2} mpi'"


@pytest.mark.usefixtures("_mpich")
def test_a_program_that_may_use_mpi_finds_pmi_unused(
    real_slurm: SlurmCluster, output: Path, stand_in: Dict[str, str]
) -> None:
    real_slurm.run(THEN_MPI, env={"TASK_OUTPUT": str(output), **stand_in})
    assert_source(accounts(Path(stand_in["FIRST_OUTPUT"])), "rendezvous")
    assert [line["mpi"] for line in accounts(output)] == [[rank, 3] for rank in range(3)]


@pytest.mark.usefixtures("_mpich")
def test_mpi_fails_at_once_after_a_program_that_was_told_not_to_expect_it(
    real_slurm: SlurmCluster, output: Path, stand_in: Dict[str, str]
) -> None:
    env = {"TASK_OUTPUT": str(output), "SLURM_RESOLVER_PMI2": "on", **stand_in}
    done = real_slurm.run(THEN_MPI, env=env, check=False)
    assert done.returncode != 0
    assert "MPI_Init" in done.stderr
    assert_source(accounts(Path(stand_in["FIRST_OUTPUT"])), "pmi2")
    # slurmstepd has come to no harm: the nodes take the next step.
    real_slurm.run("srun -N3 -w n8,n9,n10 true")


def assert_source(lines: List[Line], source: str) -> None:
    assert_right(lines)
    assert {line["cluster"]["layout_source"] for line in lines} == {source}


def test_exec_leaves_it_to_the_program_that_it_starts(real_slurm: SlurmCluster) -> None:
    program = shlex.join([sys.executable, "-m", "slurm_resolver", "exec"])
    told = real_slurm.run(
        f"srun --mpi=pmi2 {THREE} {program} -- sh -c 'echo $SLURM_RESOLVER_LAYOUT'"
    )
    assert [line.split()[1] for line in told.stdout.splitlines()] == ["rendezvous"] * 3


def test_check_tells_of_it(real_slurm: SlurmCluster) -> None:
    program = shlex.join([sys.executable, "-m", "slurm_resolver", "check"])
    for step, layout in ((THREE, "arbitrary, from pmi2"), ("-w n8,n9 -N2 -m cyclic", "cyclic")):
        told = real_slurm.run(f"srun --mpi=pmi2 {step} {program}", check=False)
        assert layout in told.stdout
        assert "the tasks know each other by what they shared by PMI-2" in told.stdout
