"""A program of a parameter server job that knows of no monitor: it is ended when the job has.

Programs whose parameter servers only `join()` never end. Each runs as a child of the process that
Slurm knows, which takes part in the job for it, as `serve()` does from within.

| `run_in_job` | what follows |
|---|---|
| the program ends by itself | this process ends alike, which tells the monitor how |
| the job has ended, and the program serves | it gets SIGTERM, later SIGKILL; the job's status |
| the job has failed, and the program trains | this process ends, and the program with it |
| the monitor does not come | the same, after the time that tasks have to start |

| `run_watched` | what follows |
|---|---|
| the program ends by itself | this process ends alike |
| those who train have ended, and the program serves, but not by `serve()` | SIGTERM; status 0 |
| anything else | nothing |
"""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Mapping, NoReturn, Optional, Sequence, Union

from slurm_resolver.errors import AddressError
from slurm_resolver.parameter_server.member import Member
from slurm_resolver.parameter_server.monitor import Monitor
from slurm_resolver.parameter_server.protocol import (
    SERVING_JOBS,
    START_SECONDS,
    JobResult,
    MonitorAddress,
    print_line,
)
from slurm_resolver.parameter_server.restarts import RestartedProgram, end_alike
from slurm_resolver.parameter_server.training_watch import TrainingWatch

_TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL; TensorFlow's servers need none of it
# For the monitor to know a task whose program has ended at once, or ps 0 all others: who has never
# come is waited for, and who comes later waits for the monitor.
_JOIN_SECONDS = 30.0
_PATIENCE_SECONDS = 3.0  # for a program to end by itself when those who train have ended


def run_in_job(
    command: Sequence[str], environ: Mapping[str, str], address: MonitorAddress
) -> NoReturn:
    """Runs the program until it or its job has ended, and ends this process.

    Args:
        command: the program and its arguments.
        environ: its variables.
        address: of the job's monitor.

    Raises:
        OSError: where the program cannot be started.
    """
    name = address.name(address.rank)
    program = RestartedProgram(command, environ, 0, name, address.identity[0])
    participant = Monitor(address) if address.rank == address.monitor_rank else Member(address)
    ended_by: Optional[JobResult] = None
    has_ended = threading.Event()

    def end_program() -> None:
        nonlocal ended_by
        participant.serve()
        result = participant.wait()
        if not has_ended.is_set():
            ended_by = result
            program.end(_TERM_SECONDS)

    def end_alone() -> None:
        """Ends the program of a task that trains where no job is there for it to train in."""
        nonlocal ended_by
        if isinstance(participant, Member) and not participant.await_joined(START_SECONDS):
            monitor = address.name(address.monitor_rank)
            ended_by = JobResult(1, f"{monitor} has not come within {START_SECONDS:g} s")
            program.end(_TERM_SECONDS)

    serves = address.tasks[address.rank].job in SERVING_JOBS
    target = end_program if serves else end_alone
    threading.Thread(target=target, name="slurm_resolver job", daemon=True).start()
    status = program.run()
    has_ended.set()
    if ended_by is not None:
        if ended_by.status:
            print_line(f"{name}: {ended_by.message}")
        status = ended_by.status
    elif not program.was_asked_to_end:
        participant.await_joined(_JOIN_SECONDS)
    if status < 0:
        end_alike(status)
    sys.exit(status)


def run_watched(
    command: Sequence[str], environ: Mapping[str, str], address: MonitorAddress
) -> NoReturn:
    """Runs the program until it has ended, or serves none that trains, and ends this process.

    Nothing is said, and where the tasks do not find each other, nothing is done.

    Args:
        command: the program and its arguments.
        environ: its variables.
        address: of the monitor; its port is one that the job itself does not use.

    Raises:
        OSError: where the program cannot be started.
    """
    name = address.name(address.rank)
    program = RestartedProgram(command, environ, 0, name, address.identity[0])
    participant: Union[Monitor, Member]
    if address.rank == address.monitor_rank:
        participant = Monitor(address, make_state=TrainingWatch, say=lambda text: None)
    else:
        participant = Member(address, only_tells=True)
    was_ended = threading.Event()

    def end_program() -> None:
        if isinstance(participant, Monitor):
            try:
                participant.serve(math.inf)
            except (AddressError, OSError):  # another job's meeting: this one is not watched
                return
        if participant.wait().status == 0 and not program.ends_by_itself(_PATIENCE_SECONDS):
            was_ended.set()
            program.end(_TERM_SECONDS)

    if address.tasks[address.rank].job in SERVING_JOBS:
        threading.Thread(target=end_program, name="slurm_resolver watch", daemon=True).start()
    begun = time.monotonic()
    status = program.run()
    if was_ended.is_set():
        status = 0
    elif not program.was_asked_to_end:  # and not where they have not found each other all along
        participant.await_joined(max(0.0, begun + _JOIN_SECONDS - time.monotonic()))
    if status < 0:
        end_alike(status)
    sys.exit(status)
