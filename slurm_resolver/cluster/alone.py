"""Whether this process is a task of a step or trains alone."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from slurm_resolver.cluster.jobs import JobCounts
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.errors import EnvironmentValueError, NotInStepError
from slurm_resolver.slurm.step_variables import RESTART_HINT, SlurmStep
from slurm_resolver.slurm.whole_number import read_whole_number
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
    if step.launcher:
        raise NotInStepError(
            f"this process was started by {step.launcher}, not by srun, so its rank in the step is "
            f"unknown. Start the program with srun, without mpirun. {_OFF_HINT}"
        )
    if step.where != "step":
        _check_outside(step, options.jobs)
    if step.where == "none":
        alone = "outside Slurm: this process trains alone, without a cluster"
        if step.ancestors.hidden:
            alone += (
                ". But no variable of a step is set, and /proc hides what started it: if srun did, "
                "keep the variables SLURM_… and SLURMD_NODENAME"
            )
        return alone
    if step.where == "allocation":
        return _why_alone_in_allocation(step, options.jobs)
    if step.is_live and not step.simulated:
        _check_step_ids(step)
        _check_node(step)
    return None


def _why_alone_in_allocation(step: SlurmStep, jobs: JobCounts | None) -> str:
    job = step.job_id or "(unknown)"
    if jobs is None and step.is_for_one_task:
        return (
            f"no variable shows that job {job} has more than one task, and srun did not start "
            "this process: it trains alone"
        )
    tasks = f" -n {step.job_num_tasks}" if step.job_num_tasks else ""
    raise NotInStepError(
        f"this process runs inside the allocation of job {job}, but srun did not start it, and so "
        "it has no rank. In the batch script or in salloc's shell, start the program as a step: "
        f"srun{tasks} python your_script.py. If the job has ended, its variables are left over in "
        "a shell that it started, such as in tmux: open another one, or unset them: unset "
        f'"${{!SLURM@}}" (in bash). {_OFF_HINT}'
    )


def _check_outside(step: SlurmStep, jobs: JobCounts | None) -> None:
    """Raises NotInStepError outside a step where the process may be one of several."""
    origin = step.ancestors
    removed = ""
    if origin.is_in_step:
        removed = (
            f"Slurm started this process as a task of step {origin.job_id}.{origin.step_id}, but "
            "its Slurm variables were removed"
        )
    elif step.remains:
        removed = (
            f"of Slurm's variables, this process has only {shorten(step.remains)}, and /proc "
            "hides what started it"
        )
    if removed:
        raise NotInStepError(
            f"{removed}, so it cannot tell whether other tasks exist. Keep the variables SLURM_… "
            "and SLURMD_NODENAME: remove the command that cleans the environment (env -i, sudo, "
            f"apptainer --cleanenv), or make it pass them on. {_OFF_HINT}"
        )
    if jobs is not None and step.where == "none":
        raise NotInStepError(
            f"jobs={jobs!r}, but this process runs outside Slurm (neither SLURM_PROCID nor "
            "SLURM_JOB_ID is set). Start the program with srun; or on this machine alone with "
            "`slurm-resolver run -n TASKS -- python your_script.py`."
        )


def _check_step_ids(step: SlurmStep) -> None:
    """Raises EnvironmentValueError where the variables are those of another step."""
    origin = (step.ancestors.job_id, step.ancestors.step_id)
    variables = (step.job_id, step.step_id)
    # Each component of a heterogeneous job has a job id of its own.
    if origin != variables and None not in origin + variables and not step.het_size:
        raise EnvironmentValueError(
            f"SLURM_JOB_ID={step.job_id} and SLURM_STEP_ID={step.step_id}, but Slurm started this "
            f"process in step {'.'.join(map(str, origin))}. {RESTART_HINT} {_OFF_HINT}"
        )


def _check_node(step: SlurmStep) -> None:
    """Raises EnvironmentValueError where the variables are those of a task on another node."""
    node = step.node_name
    if node and not is_this_machine(node, step.nodes or ()):
        raise EnvironmentValueError(
            f"SLURMD_NODENAME={node}, but this machine is called {socket.gethostname()}, and no "
            f"address of {node} is its own: the variables are those of a task on another node, "
            f"copied by ssh or from a file. Start each task with srun. {_OFF_HINT}"
        )


def is_this_machine(node: str, nodes: Sequence[str]) -> bool:
    """Returns whether this machine is the node, one of a step's `nodes`.

    A node's name in Slurm may differ from its host name; then its addresses are compared. If they
    are unknown, it may be the node unless it has the name of another one.
    """
    host = short_name(socket.gethostname())
    if short_name(node) == host:
        return True
    try:
        # The kernel binds a socket to this machine's own addresses only.
        with socket.socket() as sock:
            sock.bind((node, 0))
    except (socket.gaierror, TypeError):  # the name does not resolve, or cannot be one
        return host not in map(short_name, nodes)
    except OSError:
        return False
    return True


def short_name(host: str) -> str:
    """Returns a host's name without its domain, in small letters."""
    return host.partition(".")[0].lower()


def advise_on_lonely_step(step: SlurmStep) -> str:
    """Returns what to write instead if a step has one task, and its job room for more; or ''."""
    if step.where != "step" or step.num_tasks != 1 or step.simulated or not step.step_id:
        return ""
    tasks = 1
    for text in (step.job_num_nodes, step.job_tasks_per_node):
        tasks *= read_whole_number(text or "") or 1
    if tasks < 2:
        return ""
    return (
        f"step {step.name} has one task, which trains alone, and its job has room for {tasks}. "
        f"For one training, start one step with all tasks: srun -n {tasks} …"
    )
