"""The launcher behind `slurm-resolver run`: a step of several tasks without Slurm."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.slurm.time_limit import LimitSignal

IMITATED_SLURM = "26.05"  # the Slurm whose srun is imitated


class RunOptions(NamedTuple):
    """What is asked of a job and of its steps; times are in seconds.

    Attributes:
        gpu_variables: the GPU variables of each task; None where no GPUs were asked for.
        output: a file name pattern, "all" (the screen), "none", or the only rank that is shown.
        error: the same for the errors; None: they go where the output goes.
        label: whether lines begin with the rank; None: on the screen they do, in files not.
        append: whether to keep what the files hold already.
        limit_signal: the signal that the tasks get before the time limit.
        fail_after: the time after the start of the first step, and the rank that is killed then.
        preempt_after: when the first step is preempted, after the first step of its training.
        preempt_from_start: whether that time counts from the start of the tasks instead.
        requeue: whether the job starts anew where Slurm would requeue it.
        requeue_statuses: the exit statuses by which a task asks for that.
        max_restarts: how often at most the job is requeued.
        restarts: how often at most the job starts a new step after a failed one.
    """

    command: Sequence[str]
    num_tasks: int = 1
    cpus_per_task: Optional[int] = None
    gpu_variables: Optional[Sequence[Dict[str, str]]] = None
    job_name: Optional[str] = None
    output: str = "all"
    error: Optional[str] = None
    label: Optional[bool] = None
    append: bool = False
    time_limit: Optional[int] = None
    limit_signal: Optional[LimitSignal] = None
    kill_on_bad_exit: bool = True
    fail_after: Optional[Tuple[float, int]] = None
    preempt_after: Optional[float] = None
    preempt_from_start: bool = False
    requeue: bool = False
    requeue_statuses: Sequence[int] = ()
    max_restarts: int = 5
    restarts: int = 0
