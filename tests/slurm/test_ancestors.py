"""The ancestors of a process show what started it."""

from __future__ import annotations

import os

import pytest
from kinds import Texts

from slurm_resolver.slurm import ancestors
from slurm_resolver.slurm.ancestors import Ancestors, find_ancestors
from slurm_resolver.slurm.step_variables import SlurmStep


@pytest.mark.parametrize(
    ("title", "expected", "is_in_step"),
    [
        ("slurmstepd: [42.0] ", ("42", "0"), True),
        ("slurmstepd: [42.0+1] ", ("42", "0"), True),
        ("slurmstepd: [42+1.3]", ("42+1", "3"), True),
        ("slurmstepd: [42.batch]  ", ("42", "batch"), False),
        # /proc hides slurmstepd
        ("5:devices:/slurm_n9/uid_0/job_42/step_0/task_1", ("42", "0"), True),
        ("0::/system.slice/slurmstepd.scope/job_42/step_batch/user", ("42", "batch"), False),
        ("0::/user.slice", (None, None), False),
    ],
)
def test_the_title_of_slurmstepd_or_a_cgroup_tells_the_step(
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    expected: tuple[str | None, str | None],
    is_in_step: bool,
) -> None:
    files = dict.fromkeys(["/proc/1/cmdline", "/proc/self/cgroup"], title)
    files[f"/proc/{os.getpid()}/status"] = "Name:\tpython\nUmask:\t0022\nPPid:\t1\n"
    is_seen = ":/" not in title
    if is_seen:
        files["/proc/1/status"] = "Name:\tslurmstepd\nPPid:\t0\n"
    monkeypatch.setattr(ancestors, "read_proc", lambda path: files.get(path, ""))
    found = find_ancestors(None)
    assert (found.job_id, found.step_id) == expected
    assert found.is_in_step is is_in_step
    assert found.complete is is_seen
    assert found.hidden is ("user.slice" in title)


REMAINS = {
    "SLURM_LOCALID SLURMD_NODENAME SLURM_CONF": ("SLURMD_NODENAME", "SLURM_LOCALID"),
    "SLURM_JOB_ID": ("SLURM_JOB_ID",),
    "SLURM_CONF SLURM_JOB_NAME": (),  # as users set them
    "SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_TASKS_PER_NODE": (),  # a batch script
}


@pytest.mark.parametrize("names", REMAINS)
def test_what_remains_where_ancestors_are_hidden(
    monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    monkeypatch.setattr(
        "slurm_resolver.slurm.step_variables.find_ancestors", lambda _: Ancestors(hidden=True)
    )
    for name in names.split():
        monkeypatch.setenv(name, "1")
    assert SlurmStep.read().remains == REMAINS[names]


OPEN_MPI = {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("ancestors", "environ", "launcher"),
    [
        (Ancestors(), OPEN_MPI, "mpirun"),  # for example in a container
        (Ancestors(), {"MPI_LOCALRANKID": "1"}, "mpirun"),
        (Ancestors("orted", complete=True), {}, "orted"),
        (Ancestors(complete=True), OPEN_MPI, None),  # srun inside a script that mpirun started
        (Ancestors(), {}, None),
    ],
)
def test_a_launcher_is_known_by_its_variables_where_it_cannot_be_seen(
    ancestors: Ancestors, environ: Texts, launcher: str | None
) -> None:
    assert SlurmStep.read(environ).replace(ancestors=ancestors).launcher == launcher
