"""Whether this process is a task of a step, or trains alone, or neither can be said."""

from __future__ import annotations

import socket
from typing import Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import EnvironmentValueError, NotInStepError
from slurm_resolver.log import warn_once
from slurm_resolver.slurm.hostlist_compress import short_hostlist
from slurm_resolver.slurm.machine import is_this_machine, short_name
from slurm_resolver.slurm.step import RESTART_HINT, SlurmStep

_OFF_HINT = "Or train alone, without a cluster: SLURM_RESOLVER=off."


def find_alone(
    step: SlurmStep, options: ClusterOptions, is_told: bool = False
) -> Optional[Cluster]:
    """Returns the empty cluster of a process that trains alone; None for a task of a step.

    Args:
        step: the variables of this process.
        options: `local`, and `jobs`, which need several tasks.
        is_told: whether a subclass of the resolver tells rank and layout: then Slurm need not.

    Raises:
        NotInStepError: for a process that may be one of several, and has no rank.
        EnvironmentValueError: for variables that are another process's.
    """
    if options.local or step.switch == "off":
        switch = "local=True" if options.local else "SLURM_RESOLVER=off"
        return _alone(step, f"{switch}: this process trains alone, without a cluster")
    if is_told:
        return None
    if step.launcher is not None:
        raise NotInStepError(
            f"this process was started by {step.launcher}, not by srun, so its rank in the step is "
            f"unknown. Start the program with srun, without mpirun. {_OFF_HINT}"
        )
    if step.place == "none":
        if step.ancestors.is_in_step:
            raise _cleaned(step)
        return _outside(step, options)
    if step.place == "allocation":
        if options.jobs is not None or not step.is_for_one_task:
            raise step.not_in_step()
        job = f"the allocation of job {step.job_id or '(unknown)'} has one task"
        return _alone(step, f"{job}, and srun did not start this process: it trains alone")
    if step.is_live and not step.simulated:
        _check_origin(step)
    return None


def _alone(step: SlurmStep, message: str) -> Cluster:
    warn_once(message)
    return Cluster(step=step)


def _outside(step: SlurmStep, options: ClusterOptions) -> Cluster:
    jobs = options.jobs
    if jobs is not None:
        tasks = sum(abs(count) for count in jobs.values() if isinstance(count, int))
        raise NotInStepError(
            f"jobs={dict(jobs)!r}, but this process runs outside Slurm (neither SLURM_PROCID nor "
            "SLURM_JOB_ID is set). Start the program with srun; or on this machine alone with "
            f"`slurm-resolver run -n {max(1, tasks)} -- python your_script.py`."
        )
    return _alone(step, "outside Slurm: this process trains alone, without a cluster")


def _cleaned(step: SlurmStep) -> NotInStepError:
    known = step.ancestors
    name = f"step {known.job_id}.{known.step_id}" if known.job_id else "a step"
    return NotInStepError(
        f"Slurm started this process as a task of {name}, but none of its variables is set any "
        "more: whether there are other tasks is not known. Keep the variables SLURM_… and "
        "SLURMD_NODENAME: leave out what cleans the environment (env -i, sudo, apptainer "
        f"--cleanenv), or let it pass them on. {_OFF_HINT}"
    )


def _check_origin(step: SlurmStep) -> None:
    """Raises EnvironmentValueError where the variables were copied from another task."""
    known = (step.ancestors.job_id, step.ancestors.step_id)
    own = (step.job_id, step.step_id)
    # Each component of a heterogeneous job has a job id of its own.
    if known != own and None not in (*known, *own) and not step.het_size:
        raise EnvironmentValueError(
            f"SLURM_JOB_ID={step.job_id} and SLURM_STEP_ID={step.step_id}, but Slurm started this "
            f"process in step {'.'.join(map(str, known))}. {RESTART_HINT} {_OFF_HINT}"
        )
    node = step.node_name
    if node is None:
        return
    is_here = is_this_machine(node)
    host = socket.gethostname()
    if is_here is None:
        is_here = short_name(host) not in map(short_name, step.nodes or ())
    if not is_here:
        nodes = f" of {short_hostlist(step.nodes)}" if step.nodes else ""
        raise EnvironmentValueError(
            f"SLURMD_NODENAME={node}, but this machine is called {host}, and no address of {node} "
            f"is its own: the variables are those of a task on another node{nodes}, copied by ssh "
            f"or from a file. Start each task with srun. {_OFF_HINT}"
        )
