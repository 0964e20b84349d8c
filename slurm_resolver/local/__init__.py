"""The launcher behind `slurm-resolver run`: a step of several tasks without Slurm."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.slurm.time_limit import LimitSignal

IMITATED_SLURM = "26.05"  # the Slurm whose srun is imitated


class RunOptions(NamedTuple):
    """What is asked of a job and of its steps; times are in seconds.

    Attributes:
        gpu_variables: the GPU variables of each task; None where no GPUs were asked for.
        output: a file name pattern, "all" (the screen), "none", or the only rank that is shown.
        label: whether lines begin with the rank; None: on the screen they do, in files not.
        limit_signal: the signal that the tasks get before the time limit.
        fail_after: the time after the start of the first step, and the rank that is killed then.
        preempt_after: when the first step is preempted, after the first step of its training.
        requeue: whether the job starts anew where Slurm would requeue it.
        requeue_status: the exit status by which a task asks for that.
        restarts: how often at most the job starts a new step after a failed one.
    """

    command: Sequence[str]
    num_tasks: int = 1
    gpu_variables: Optional[Sequence[Dict[str, str]]] = None
    output: str = "all"
    label: Optional[bool] = None
    time_limit: Optional[int] = None
    limit_signal: Optional[LimitSignal] = None
    kill_on_bad_exit: bool = True
    fail_after: Optional[Tuple[float, int]] = None
    preempt_after: Optional[float] = None
    requeue: bool = False
    requeue_status: Optional[int] = None
    restarts: int = 0


# It runs in the place of a function between fork and exec (`preexec_fn`), which is not safe in a
# process that has threads. 1 is PR_SET_PDEATHSIG. Python ignores two signals: they are restored.
_START = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def end_with_this(command: Sequence[str], environ: Mapping[str, str]) -> List[str]:
    """Returns the command for a program that the kernel kills when this process ends.

    Raises:
        OSError: where the PATH of `environ` has no such program.
    """
    if shutil.which(command[0], path=environ.get("PATH")) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", "-c", _START, str(os.getpid()), *command]
