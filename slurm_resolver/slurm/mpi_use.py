"""Whether the program of a task uses MPI, or may do so later.

MPI speaks PMI with slurmstepd itself, and each task can do so only once: it must find it unused.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Optional

from slurm_resolver.slurm.ancestors import processes_of_task, read_proc

# What a Python program uses MPI by. An h5py that was built with MPI imports mpi4py.
_PACKAGES = ("mpi4py", "horovod", "petsc4py", "slepc4py", "mpi4jax")
_LIBRARIES = re.compile(r"/(lib(mpi|pmi)[a-z0-9_+-]*\.so)")


def find_mpi(task_pid: Optional[str]) -> Optional[str]:
    """Returns what shows that the task's program may use MPI; None where nothing does.

    A package counts where it is installed, and not where it is loaded: all tasks have the same
    installation, and so come to the same answer, but may not load it at the same time.

    Args:
        task_pid: SLURM_TASK_PID, the process that Slurm started. Programs between it and this
            process may use MPI as well: without one, or where they cannot be seen, they may.
    """
    for name in _PACKAGES:
        if name in sys.modules or _is_installed(name):
            return f"the package {name}, which uses MPI, is installed"
    pids = processes_of_task(task_pid)
    if pids is None:
        return "the processes above this one, which may use MPI, cannot be seen"
    for pid in pids:
        maps = read_proc(f"/proc/{pid}/maps")
        library = _LIBRARIES.search(maps)
        if library is not None:
            return f"process {pid} of this task has loaded {library[1]}"
        if not maps:
            return f"process {pid} of this task, which may use MPI, cannot be looked at"
    return None


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # it is there, in some odd way
        return True
