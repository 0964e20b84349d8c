"""How `slurm-resolver exec` starts the program: in place of itself, or as a child."""

from __future__ import annotations

import errno
import os
import sys
from typing import Callable, Dict, List, NoReturn

from slurm_resolver.cli.exec_variables import ALTERNATIVE
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.errors import LaunchError


def inherited() -> Dict[str, str]:
    """Returns the environment without LC_CTYPE where Python itself has set it (in the C locale)."""
    environ = dict(os.environ)
    if "LC_CTYPE" in environ:
        with open("/proc/self/environ", "rb") as initial:
            if b"\0LC_CTYPE=" not in b"\0" + initial.read():
                del environ["LC_CTYPE"]
    return environ


def may_restart(cluster: Cluster, most: int) -> bool:
    """Returns whether this task's program is to be started again when it is lost.

    Raises:
        LaunchError: where no worker of the step can come back.
    """
    if not most or cluster.task is None:
        return False
    jobs = cluster.jobs()
    if not {"chief", "ps", "worker"} <= set(jobs):
        raise LaunchError(
            f"--restart-workers {most}: this step has the jobs {', '.join(jobs)}; expected chief, "
            "ps and worker, as in --jobs chief=1,ps=1,worker=-1. Only the chief's coordinator of a "
            "ParameterServerStrategy takes a lost worker back; start all others again together."
        )
    return cluster.task.job == "worker"


def has_servers(cluster: Cluster) -> bool:
    """Returns whether this task serves others, or is served by them.

    Raises:
        LaunchError: where the step has no such tasks.
    """
    from slurm_resolver.parameter_server.protocol import JOBS

    if not cluster.tasks:  # outside Slurm
        return False
    jobs = cluster.jobs()
    served = "ps" in jobs or cluster.data_service is not None
    if not served or not {"chief", "worker"} & set(jobs):
        raise LaunchError(
            f"--end-servers: this step has the jobs {', '.join(jobs)}; expected a ps, and a chief "
            "or worker that trains, as in --jobs ps=1,worker=-1; or a dispatcher in place of the ps"
        )
    return cluster.task is not None and cluster.task.job in JOBS


def may_watch(cluster: Cluster) -> bool:
    """Returns whether there are tasks that serve, which may have to know when this task ends."""
    from slurm_resolver.parameter_server.protocol import monitor_address
    from slurm_resolver.parameter_server.restarts import is_run

    return monitor_address(cluster) is not None and not is_run()  # by another exec


def run_in_job(command: List[str], environ: Dict[str, str], cluster: Cluster) -> NoReturn:
    """Runs the program as a part of its job, which ends it; see `ended_program`."""
    from slurm_resolver.parameter_server import ended_program
    from slurm_resolver.parameter_server.protocol import monitor_address

    address = monitor_address(cluster)
    assert address is not None
    _as_child(command, lambda: ended_program.run_in_job(command, environ, address))


def run_watched(command: List[str], environ: Dict[str, str], cluster: Cluster) -> NoReturn:
    """Runs the program, and ends one that only serves where no task trains; see `ended_program`."""
    from slurm_resolver.cluster.ports import derive_second_meeting_port
    from slurm_resolver.parameter_server import ended_program
    from slurm_resolver.parameter_server.protocol import monitor_address

    address = monitor_address(cluster)
    assert address is not None
    address = address._replace(port=derive_second_meeting_port(cluster.step))
    _as_child(command, lambda: ended_program.run_watched(command, environ, address))


def run_with_restarts(
    command: List[str], environ: Dict[str, str], cluster: Cluster, most: int
) -> NoReturn:
    """Runs the program, and starts it again where it is lost."""
    from slurm_resolver.parameter_server.restarts import RestartedProgram, end_alike

    own, rendezvous = cluster.task, cluster.rendezvous
    assert own is not None
    assert rendezvous is not None
    name = f"{own.job} {own.index} (rank {own.rank} on {own.node})"
    program = RestartedProgram(command, environ, most, name, rendezvous.identity)
    _as_child(command, lambda: end_alike(program.run()))


def _as_child(command: List[str], run: Callable[[], NoReturn]) -> NoReturn:
    from slurm_resolver.rendezvous.task_claim import give_up_tasks

    give_up_tasks()  # the program stands for the task
    sys.stdout.flush()
    try:
        run()
    except OSError as error:
        raise _cannot_start(command[0], error) from error


def replace_process(command: List[str], environ: Dict[str, str]) -> NoReturn:
    """Has the program take the place of this process."""
    import signal

    sys.stdout.flush()
    # Python ignores these signals, and the program would inherit that.
    numbers = (signal.SIGPIPE, signal.SIGXFSZ)
    handlers = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise _cannot_start(command[0], error) from error
    finally:  # it was not started
        for number, handler in zip(numbers, handlers):
            signal.signal(number, handler)


def _cannot_start(name: str, error: OSError) -> LaunchError:
    if error.errno == errno.E2BIG:
        return LaunchError(
            "the arguments and the environment together are longer than Linux passes to a "
            "program (`getconf ARG_MAX`). Raise the limit, which is a quarter of `ulimit -s`, "
            f"or {ALTERNATIVE}."
        )
    return not_startable(name, str(error.strerror))


def not_startable(name: str, reason: str) -> LaunchError:
    """Returns the error for a program that cannot be started."""
    return LaunchError(f"{name!r} is not a program that can be started here ({reason})")
