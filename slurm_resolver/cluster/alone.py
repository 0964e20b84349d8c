"""Whether this process is a task of a step or trains alone."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import EnvironmentValueError, NotInStepError
from slurm_resolver.slurm.step_variables import RESTART_HINT, SlurmStep
from slurm_resolver.wording import shorten

_OFF_HINT = "Or train alone, without a cluster: SLURM_RESOLVER=off."


def why_alone(step: SlurmStep, options: ClusterOptions) -> str | None:
    """Returns why this process trains alone, for the log; None for a task of a step.

    Raises:
        NotInStepError: for a process that may be one of several, and has no rank.
        EnvironmentValueError: for variables of another process.
    """
    if options.local or step.resolver_switch == "off":
        return "local=True or SLURM_RESOLVER=off: this process trains alone, without a cluster"
    origin = step.ancestors
    problem = ""
    if step.launcher:
        problem = (
            f"this process was started by {step.launcher}, not by srun, so its rank in the step is "
            "unknown. Start the program with srun, without mpirun"
        )
    elif step.where == "step":
        _check_variables(step)
        return None
    elif origin.is_in_step or step.remains:
        if origin.is_in_step:
            removed = (
                f"Slurm started this process as a task of step {origin.job_id}.{origin.step_id}, "
                "but its Slurm variables were removed"
            )
        else:
            removed = (
                f"of Slurm's variables, this process has only {shorten(step.remains)}, and /proc "
                "hides what started it"
            )
        problem = (
            f"{removed}, so it cannot tell whether other tasks exist. Keep the variables SLURM_… "
            "and SLURMD_NODENAME: remove the command that cleans the environment (env -i, sudo, "
            "apptainer --cleanenv), or make it pass them on"
        )
    elif step.where == "none" and options.jobs is not None:
        problem = (
            f"jobs={options.jobs!r}, but this process runs outside Slurm (neither SLURM_PROCID nor "
            "SLURM_JOB_ID is set). Start the program with srun; or on this machine alone with "
            "`slurm-resolver run -n TASKS -- python your_script.py`"
        )
    elif step.where == "allocation" and (options.jobs is not None or not step.is_for_one_task):
        tasks = f" -n {step.job_num_tasks}" if step.job_num_tasks else ""
        problem = (
            f"this process runs inside the allocation of job {step.job_id}, but srun did not start "
            "it, and so it has no rank. In the batch script or in salloc's shell, start the "
            f"program as a step: srun{tasks} python your_script.py. If the job has ended, its "
            "variables are left over in a shell that it started, such as in tmux: open another "
            'one, or unset them: unset "${!SLURM@}" (in bash)'
        )
    if problem:
        raise NotInStepError(f"{problem}. {_OFF_HINT}")
    if step.where == "allocation":
        return (
            f"no variable shows that job {step.job_id} has more than one task, and srun did not "
            "start this process: it trains alone"
        )
    alone = "outside Slurm: this process trains alone, without a cluster"
    if origin.hidden:
        alone += (
            ". But no variable of a step is set, and /proc hides what started it: if srun did, "
            "keep the variables SLURM_… and SLURMD_NODENAME"
        )
    return alone


def _check_variables(step: SlurmStep) -> None:
    """Raises EnvironmentValueError where the variables are those of another task."""
    if not step.is_live or step.simulated:
        return
    origin = (step.ancestors.job_id, step.ancestors.step_id)
    variables = (step.job_id, step.step_id)
    problem = ""
    # Each component of a heterogeneous job has a job id of its own.
    if origin != variables and None not in origin + variables and not step.het_size:
        problem = (
            f"SLURM_JOB_ID={step.job_id} and SLURM_STEP_ID={step.step_id}, but Slurm started this "
            f"process in step {'.'.join(map(str, origin))}"
        )
    elif not is_this_machine(step.node_name, step.nodes or ()):
        problem = (
            f"SLURMD_NODENAME={step.node_name}, but this machine is called "
            f"{socket.gethostname()}, and none of its addresses is that node's"
        )
    if problem:
        raise EnvironmentValueError(
            f"{problem}: the variables are those of another task. {RESTART_HINT} {_OFF_HINT}"
        )


def is_this_machine(node: str | None, nodes: Sequence[str]) -> bool:
    """Returns whether this machine is the node, one of a step's `nodes`; True if it is unknown.

    A node's name in Slurm may differ from its host name; then its addresses are compared. If they
    are unknown, it may be the node unless it has the name of another one.
    """
    host = _short_name(socket.gethostname())
    if not node or _short_name(node) == host:
        return True
    try:
        # The kernel binds a socket to this machine's own addresses only.
        with socket.socket() as sock:
            sock.bind((node, 0))
    except (socket.gaierror, TypeError):  # the name does not resolve, or cannot be one
        return host not in map(_short_name, nodes)
    except OSError:
        return False
    return True


def _short_name(host: str) -> str:
    """Returns a host's name without its domain, in small letters."""
    return host.partition(".")[0].lower()


def advise_on_lonely_step(step: SlurmStep) -> str:
    """Returns what to write instead if a step has one task, and its job room for more; or ''."""
    tasks = (step.job_num_nodes or 1) * (step.job_tasks_per_node or 1)
    if step.where != "step" or step.num_tasks != 1 or step.simulated or tasks < 2:
        return ""
    return (
        f"step {step.name} has one task, which trains alone, and its job has room for {tasks}. "
        f"For one training, start one step with all tasks: srun -n {tasks} …"
    )
