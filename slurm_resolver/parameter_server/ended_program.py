"""A program of a parameter server job that knows of no monitor: it is ended when the job has.

Programs whose parameter servers only `join()` never end. Each runs as a child of the process that
Slurm knows, which takes part in the job for it, as `serve()` does from within.

| `run_in_job` | what follows |
|---|---|
| the program ends by itself | this process ends alike, which tells the monitor how |
| the job has ended, and the program serves | it gets SIGTERM, later SIGKILL; the job's status |
| the job has ended well, and the program is a worker's that only waits in join() | the same |
| the job has failed, and the program trains | this process ends, and the program with it |
| the monitor does not come | the same, after the time that tasks have to start |

| `run_watched` | what follows |
|---|---|
| the program ends by itself | this process ends alike |
| those who train have ended, and the program serves, but not by `serve()` | SIGTERM; status 0 |
| the chief has ended, and all workers that have not only wait in join() | the same for them |
| anything else | nothing |
"""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Mapping, NoReturn, Optional, Sequence, Union

from slurm_resolver.errors import AddressError
from slurm_resolver.parameter_server.join_watch import LOOK_SECONDS, JoinWatch
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
from slurm_resolver.parameter_server.training_watch import ALL_ENDED, TrainingWatch

_TERM_SECONDS = 10.0  # from SIGTERM to SIGKILL; TensorFlow's servers need none of it
# For the monitor to know a task whose program has ended at once, or ps 0 all others: who has never
# come is waited for, and who comes later waits for the monitor.
_JOIN_SECONDS = 30.0
_PATIENCE_SECONDS = 3.0  # for a program to end by itself when those who train have ended


def run_in_job(
    command: Sequence[str],
    environ: Mapping[str, str],
    address: MonitorAddress,
    look_seconds: float = LOOK_SECONDS,
) -> NoReturn:
    """Runs the program until it or its job has ended, and ends this process.

    Args:
        command: the program and its arguments.
        environ: its variables.
        address: of the job's monitor.
        look_seconds: between two looks at whether a worker only waits in join().

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
        """Ends the program of a task that trains where no job is there for it to train in.

        Or that of a worker that does not train, when the job has ended.
        """
        nonlocal ended_by
        if isinstance(participant, Member) and not participant.await_joined(START_SECONDS):
            monitor = address.name(address.monitor_rank)
            ended_by = JobResult(1, f"{monitor} has not come within {START_SECONDS:g} s")
            program.end(_TERM_SECONDS)
        elif isinstance(participant, Member) and _ends_in_join(
            participant, address, program, look_seconds
        ):
            ended_by = participant.wait()
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
    command: Sequence[str],
    environ: Mapping[str, str],
    address: MonitorAddress,
    look_seconds: float = LOOK_SECONDS,
) -> NoReturn:
    """Runs the program until it has ended, or serves none that trains, and ends this process.

    Nothing is said but that workers are ended, once in the step. Where the tasks do not find each
    other, nothing is done.

    Args:
        command: the program and its arguments.
        environ: its variables.
        address: of the monitor; its port is one that the job itself does not use.
        look_seconds: between two looks at whether a worker only waits in join().

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
        result = participant.wait()
        if isinstance(participant, Monitor) and result.status == 0 and result != ALL_ENDED:
            print_line(result.message)
        end_if(result.status == 0)

    def end_worker() -> None:
        assert isinstance(participant, Member)
        end_if(_ends_in_join(participant, address, program, look_seconds))

    def end_if(is_over: bool) -> None:
        if is_over and not program.ends_by_itself(_PATIENCE_SECONDS):
            was_ended.set()
            program.end(_TERM_SECONDS)

    target = end_program if address.tasks[address.rank].job in SERVING_JOBS else end_worker
    threading.Thread(target=target, name="slurm_resolver watch", daemon=True).start()
    begun = time.monotonic()
    status = program.run()
    if was_ended.is_set():
        status = 0
    elif not program.was_asked_to_end:  # and not where they have not found each other all along
        participant.await_joined(max(0.0, begun + _JOIN_SECONDS - time.monotonic()))
    if status < 0:
        end_alike(status)
    sys.exit(status)


def _ends_in_join(
    member: Member,
    address: MonitorAddress,
    program: RestartedProgram,
    look_seconds: float,
) -> bool:
    """Tells the monitor of a job with a chief whether this worker's program only waits in join().

    Returns whether it is to be ended: when the job has ended well, and the program still waits, or
    does so again when it has noticed that it has lost the chief.
    """
    tasks = address.tasks
    if tasks[address.rank].job != "worker" or not any(task.job == "chief" for task in tasks):
        return False
    watch = JoinWatch(look_seconds=look_seconds)
    while not member.await_decided(look_seconds):
        member.tell(serves=watch.look(program.pid))
    if member.wait().status != 0:
        return False
    while program.pid is not None and not watch.look(program.pid):
        time.sleep(look_seconds)
    return program.pid is not None
