"""The process that started this one: a task's slurmstepd, or another launcher, such as mpirun.

An environment can be cleaned, copied or inherited; the chain of parents in /proc cannot. In a
container with its own process ids the chain ends at the container, and /proc may hide the processes
of other users (hidepid in proc(5)). Where Slurm uses cgroups, their names show the step as well.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

# mpirun and its daemons. proc(5): the names of processes are cut after 15 bytes.
_LAUNCHERS = re.compile(
    r"orterun|prterun|(mpirun|mpiexec)(\.(openmpi|mpich|hydra))?"
    r"|orted|prted|hydra_pmi_proxy|hydra_bstrap_pr|pmi_proxy|mpispawn"
)


class Ancestors(NamedTuple):
    """The processes above this one.

    Attributes:
        launcher: the launcher's process that started this one, such as ``orted``.
        complete: whether all processes up to the one that Slurm started are known, so that no
            launcher is hidden.
        job_id, step_id: of the slurmstepd that started this process or one of its ancestors, such
            as ``42`` and ``0``; None if unknown.
        hidden: whether /proc hides one of the processes, and no cgroup shows a step.
    """

    launcher: str | None = None
    complete: bool = False
    job_id: str | None = None
    step_id: str | None = None
    hidden: bool = False

    @property
    def is_in_step(self) -> bool:
        """Whether srun started this process: batch scripts and shells of salloc are no steps."""
        return self.step_id not in (None, "batch", "extern", "interactive")


def find_ancestors(task_pid: str | None) -> Ancestors:
    """Returns the processes above this one.

    `task_pid` is SLURM_TASK_PID, the process that Slurm started. A launcher above it did not start
    this process as a rank.
    """
    launcher = None
    complete = False
    pid = this_pid = os.getpid()
    for _ in range(64):  # a chain that changes meanwhile may not end
        fields = dict(re.findall(r"^(Name|PPid):\t(.*)$", read_proc(f"/proc/{pid}/status"), re.M))
        name = fields.get("Name", "")
        if not complete and not launcher and _LAUNCHERS.fullmatch(name):
            launcher = name
        complete |= str(pid) == task_pid
        is_known = name == "slurmstepd"
        if is_known or fields.get("PPid", "0") == "0":
            break
        pid = int(fields["PPid"])
    if is_known:
        # "slurmstepd: [42.0]" or "[42.batch]", and "[42.0+1]" for a component in Slurm 22.05
        title = read_proc(f"/proc/{pid}/cmdline")
        step = re.match(r"slurmstepd: \[([^\].]+)\.(\w+)[^\]]*\]", title)
    else:
        # A task's cgroup is such as "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0".
        step = re.search(r"/job_(\d+)/step_(\w+)", read_proc("/proc/self/cgroup"))
    return Ancestors(
        launcher=launcher,
        complete=is_known or complete,
        job_id=step and step[1],
        step_id=step and step[2],
        hidden=not step and pid != this_pid and not name,
    )


def is_component(node: str | None, step: str) -> bool:
    """Returns whether a step (``42.0``) is one component of a heterogeneous step.

    In a plain allocation no variable shows it. On each node slurmstepd listens at a socket that is
    named after the step, ``…/n9_42.0``, or the component, ``…/n9_42.0.1``, on live clusters from
    22.05 to 26.05. The result is False if the sockets cannot be seen, as in a container with its
    own network.
    """
    return f"/{node}_{step}." in read_proc("/proc/net/unix")


def read_proc(path: str) -> str:
    """Returns the text of a file of /proc; "" if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:  # not Linux, or a process of another user
        return ""
