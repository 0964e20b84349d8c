"""A program that `slurm-resolver exec` runs as its child, in a step with parameter servers.

This process represents the task, as its launcher. When the program ends, this process ends with the
same status. When the training is over, a program that only serves is ended, and after a failure
every program. It first has some seconds to end by itself. Then it receives SIGTERM, and later
SIGKILL.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from contextlib import suppress
from threading import Event, Thread
from typing import NoReturn

from slurm_resolver import signals
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.member import Member
from slurm_resolver.coordination.training_with_servers import START_SECONDS, announcement
from slurm_resolver.local import Variables
from slurm_resolver.local.child_process import end_with_this
from slurm_resolver.log import print_line

_END_SECONDS = 5.0  # for the program to end by itself, when the training is over
_TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL


def run_child(cluster: Cluster, command: list[str], environ: Variables) -> None:
    """Runs the program until it has ended or the training is over, and ends this process.

    Returns at once if this task takes no part in a training with parameter servers.

    Raises:
        OSError: if the program cannot be started.
    """
    assert cluster.task
    assert cluster.service
    announced = announcement(
        [(task.job, task.index, task.address) for task in cluster.tasks], cluster.task.rank
    )
    if not announced:
        return
    announced.update(seconds=START_SECONDS)
    has_ended = Event()
    ended_with: list[int] = []  # the training's status, if this process has ended the program
    member = Member(connect(cluster.service, cluster.name_of), announced, lambda *_: None)
    # The program inherits this process's open files, such as pipes of Slurm.
    program = subprocess.Popen(end_with_this(command), env=environ, close_fds=False)
    signals.handle(signals.PASSED_ON, lambda number, _: program.send_signal(number))

    def end_program() -> None:
        """Ends the program when the training is over."""
        member.await_joined(START_SECONDS)
        outcome = member.await_over()
        if outcome.status == 0 and not member.only_serves:
            return
        if has_ended.wait(_END_SECONDS):
            return
        ended_with.append(outcome.status)
        if outcome.status:
            print_line(f"{member.name}: {outcome.message}")
        program.terminate()
        if not has_ended.wait(_TERM_SECONDS):
            program.kill()

    Thread(target=end_program, daemon=True).start()
    status = program.wait()
    has_ended.set()
    if ended_with:
        status = ended_with[0]
    failure = ""
    if status:  # -N stands for signal N
        failure = signals.signal_name(-status) or f"exit status {status}"
    member.client.leave(failure)
    _end_like_child(status)


def _end_like_child(status: int) -> NoReturn:
    """Ends this process with an exit status, or for -N by signal N.

    Slurm and `supervise` then see a crash, and take no SIGTERM for a training that was saved.
    """
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has written its own
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(signals.shell_status(status))
