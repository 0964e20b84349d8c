"""Whether another launcher than srun has started this process, such as mpirun.

mpirun starts a daemon on each node, inside Slurm by srun, and the daemon starts the ranks: Slurm's
variables of a rank are the daemon's, or the batch script's, and say nothing about the rank.
Sources: mpirun(1) of Open MPI for OMPI_COMM_WORLD_…; live runs of MPICH's Hydra for
MPI_LOCALRANKID.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from slurm_resolver.slurm.variable import Environ

if TYPE_CHECKING:
    from slurm_resolver.slurm.step import SlurmStep

# Variables that only the ranks of an mpirun have, and what they are called in messages.
_MARKS = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "Open MPI's mpirun",
    "MPI_LOCALRANKID": "the mpirun of MPICH (Hydra)",
}


def find_launcher(step: SlurmStep, environ: Environ) -> Optional[str]:
    """Returns what started this process if that was not srun; None if it was, or nobody knows."""
    ancestors = step.ancestors
    if ancestors.launcher is None and (ancestors.complete or step.simulated):
        return None  # such variables are inherited from elsewhere
    if ancestors.mpirun is not None and (step.num_tasks or 1) > 1:
        tasks = f"each of the {step.num_tasks} tasks of job step {step.name}"
        return f"{ancestors.mpirun}, which {tasks} runs for itself"
    for name, launcher in _MARKS.items():
        if environ.get(name):
            return launcher
    if ancestors.launcher is not None:
        return ancestors.launcher
    for name in ("PMI_RANK", "PMIX_RANK"):
        text = environ.get(name)
        # srun --mpi=… sets them as well, to its own rank; by component in heterogeneous steps.
        if text and step.rank is not None and text != str(step.rank) and not step.het_size:
            return f"a launcher that sets {name}={text} where SLURM_PROCID={step.rank}"
    return None
