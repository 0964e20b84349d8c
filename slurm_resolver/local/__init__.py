"""The launcher behind `slurm-resolver run`: a step of several tasks without Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_resolver.slurm.time_limit import LimitSignal
from slurm_resolver.slurm.variable_types import Environ

IMITATED_SLURM = "26.05"  # the Slurm whose srun is imitated


class RunOptions(NamedTuple):
    """The options of a job and of its steps; times are in seconds.

    Attributes:
        gpu_variables: the GPU variables of all tasks; none if no GPUs were asked for.
        label: whether lines begin with the rank.
        limit_signal: the signal that the tasks get before the time limit.
        fail_after: when the highest rank is killed, after the start of the first step.
        preempt_after: when the first step is preempted, after the first step of its training.
        requeue: whether the job starts anew where Slurm would requeue it.
        restarts: how often at most the job starts a new step after a failed one.
    """

    command: Sequence[str]
    gpu_variables: Environ
    time_limit: int | None
    limit_signal: LimitSignal | None
    ntasks: int = 1
    label: bool = True
    kill_on_bad_exit: bool = True
    fail_after: float | None = None
    preempt_after: float | None = None
    requeue: bool = False
    restarts: int = 0
