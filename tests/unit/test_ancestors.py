"""What started a process, as the kernel tells it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Dict, Optional, Tuple

import pytest

from slurm_resolver.slurm import ancestors
from slurm_resolver.slurm.ancestors import Ancestors, find_ancestors, is_component
from slurm_resolver.slurm.step import SlurmStep

FIND = "from slurm_resolver.slurm.ancestors import find_ancestors as f; print(f({}))"


def found_below(name: str, folder: Path, task_pid: str) -> str:
    """What a process finds whose parent's parent has this name."""
    program = folder / name
    program.write_text('#!/bin/sh\nsh -c \'"$@"; true\' sh "$@"; true\n')
    program.chmod(0o755)
    command = [str(program), sys.executable, "-c", FIND.format(task_pid)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return str(done.stdout)


@pytest.mark.parametrize(
    ("name", "launcher"),
    [("orted", "'orted'"), ("mpiexec.hydra", "'mpiexec.hydra'"), ("mpirun_all", "None")],
)
def test_a_launcher_is_found_above_a_wrapper(name: str, launcher: str, tmp_path: Path) -> None:
    assert f"launcher={launcher}" in found_below(name, tmp_path, "None")


def test_what_is_above_the_task_did_not_start_it(tmp_path: Path) -> None:
    found = found_below("orted", tmp_path, "str(__import__('os').getpid())")
    assert "launcher=None" in found
    assert "complete=True" in found


@pytest.mark.parametrize(
    ("title", "expected", "is_in_step"),
    [
        ("slurmstepd: [42.0] ", ("42", "0"), True),
        ("slurmstepd: [42.0+1] ", ("42", "0"), True),
        ("slurmstepd: [42+1.3]", ("42+1", "3"), True),
        ("slurmstepd: [42.batch]  ", ("42", "batch"), False),
        ("/usr/sbin/slurmstepd", (None, None), True),
    ],
)
def test_the_title_of_slurmstepd_tells_the_step(
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    expected: Tuple[Optional[str], Optional[str]],
    is_in_step: bool,
) -> None:
    chain = {"stat": "5 (slurmstepd) S 1 5 5", "cmdline": title}
    monkeypatch.setattr(ancestors, "read_proc", lambda path: chain[path.rpartition("/")[2]])
    found = find_ancestors(None)
    assert (found.job_id, found.step_id) == expected
    assert found.is_in_step is is_in_step
    assert found.complete


@pytest.mark.parametrize(
    ("sockets", "expected"),
    [("/run/n9_42.0.1", True), ("/run/n9_42.0", False), ("/run/n19_42.0.1", False), ("", False)],
)
def test_the_socket_of_slurmstepd_tells_a_component(
    monkeypatch: pytest.MonkeyPatch, sockets: str, expected: bool
) -> None:
    line = "0000000000000000: 00000002 00000000 00010000 0001 01 25078"
    text = f"Num RefCount …\n{line} /run/other\n{line} {sockets}\n"
    monkeypatch.setattr(ancestors, "read_proc", {"/proc/net/unix": text}.__getitem__)
    assert is_component("n9", "42", "0") is expected


OPEN_MPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("ancestors", "environ", "launcher"),
    [
        (Ancestors(), OPEN_MPI, "Open MPI's mpirun"),  # as in a container
        (Ancestors(), {"MPI_LOCALRANKID": "1"}, "the mpirun of MPICH (Hydra)"),
        (Ancestors("orted", complete=True), {}, "orted"),
        (Ancestors(complete=True), OPEN_MPI, None),  # srun inside a script that mpirun started
        (Ancestors(), {}, None),
    ],
)
def test_a_launcher_is_known_by_its_variables_where_it_cannot_be_seen(
    ancestors: Ancestors, environ: Dict[str, str], launcher: Optional[str]
) -> None:
    assert SlurmStep.read(environ).replace(ancestors=ancestors).launcher == launcher


def test_where_nothing_can_be_read_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancestors, "read_proc", lambda _: "")
    assert find_ancestors("1") == Ancestors()
