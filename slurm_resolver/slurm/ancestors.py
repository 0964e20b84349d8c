"""What started this process, as /proc shows it: a task's slurmstepd, a launcher such as mpirun.

An environment can be cleaned, copied or inherited from elsewhere; the chain of parents cannot. In a
container that numbers its processes anew it ends at the container, and tells nothing.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional, Tuple

# The commands of launchers, of which there is one for all ranks; and what they run on each node.
# proc(5): the names of processes are cut after 15 bytes.
_COMMANDS = re.compile(r"orterun|prterun|(mpirun|mpiexec)(\.(openmpi|mpich|hydra))?")
_DAEMONS = re.compile(r"orted|prted|hydra_pmi_proxy|hydra_bstrap_pr|pmi_proxy|mpispawn")
_MAX_PARENTS = 64  # a chain of parents is short; one that changes meanwhile may not end
# slurmstepd writes its step into its command line: "slurmstepd: [42.0]", "[42.batch]"; Slurm 22.05
# also the component of a step, "[42.0+1]".
_TITLE = re.compile(r"slurmstepd: \[(?P<job>[^\].]+)\.(?P<step>\w+)[^\]]*\]")


class Ancestors(NamedTuple):
    """What is known of the processes above this one.

    Attributes:
        launcher: the launcher's process that started this one, such as ``orted``.
        under_slurmstepd: whether Slurm started this process, or one that started it.
        complete: whether nothing can be hidden between this process and what Slurm started: then
            there is no launcher unless `launcher` names one.
        job_id, step_id: of that slurmstepd, such as ``42`` and ``0``; None where they are unknown.
        mpirun: the name of the command, such as ``mpirun.mpich``, where it runs on this node.
    """

    launcher: Optional[str] = None
    under_slurmstepd: bool = False
    complete: bool = False
    job_id: Optional[str] = None
    step_id: Optional[str] = None
    mpirun: Optional[str] = None

    @property
    def is_in_step(self) -> bool:
        """Whether srun started this process: batch scripts and shells of salloc are no steps."""
        return self.under_slurmstepd and self.step_id not in ("batch", "extern", "interactive")


def find_ancestors(task_pid: Optional[str]) -> Ancestors:
    """Returns what started this process.

    Args:
        task_pid: SLURM_TASK_PID, the process that Slurm started itself. What is above it did not
            start this process as a rank.
    """
    launcher: Optional[str] = None
    complete, mpirun = False, None
    own = pid = os.getpid()
    for _ in range(_MAX_PARENTS):
        name, parent = _name_and_parent(pid)
        if name is None:
            break
        if name == "slurmstepd":
            title = _TITLE.match(read_proc(f"/proc/{pid}/cmdline"))
            if title is None:
                return Ancestors(launcher, True, True, mpirun=mpirun)
            known = (title["job"], title["step"], mpirun)
            return Ancestors(launcher, True, True, *known)
        if pid != own and not complete:
            is_command = _COMMANDS.fullmatch(name)
            mpirun = name if is_command else mpirun
            if launcher is None and (is_command or _DAEMONS.fullmatch(name)):
                launcher = name
        complete = complete or str(pid) == task_pid
        if parent < 1:
            break
        pid = parent
    return Ancestors(launcher, complete=complete, mpirun=mpirun)


def is_component(node: str, job_id: str, step_id: str) -> bool:
    """Returns whether this step is one component of a heterogeneous step in a plain allocation.

    No variable tells. slurmstepd listens at a socket on each node that is called after the step:
    ``…/n9_42.0``, and of component 1 ``…/n9_42.0.1``, as on live clusters from 22.05 to 26.05.
    False where the sockets cannot be seen, as in a container with a network of its own.
    """
    return f"/{node}_{job_id}.{step_id}." in read_proc("/proc/net/unix")


def _name_and_parent(pid: int) -> Tuple[Optional[str], int]:
    # The name may hold spaces and brackets: what follows its last bracket is "state, parent, …".
    head, bracket, tail = read_proc(f"/proc/{pid}/stat").rpartition(")")
    return (head.partition("(")[2], int(tail.split()[1])) if bracket else (None, 0)


def read_proc(path: str) -> str:
    """Returns the text of a file of /proc; "" where it may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # not Linux, or a process of another user that may not be seen
        return ""
