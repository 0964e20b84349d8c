"""How `slurm-resolver exec` starts the program: in place of itself, or as a child."""

from __future__ import annotations

import errno
import os
import sys
from typing import Collection, Dict, List, NoReturn, Optional

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


SERVERS = ("ps", "dispatcher", "data_worker")  # whose programs only serve
MAY_SERVE = (*SERVERS, "worker")


def check_restarts(cluster: Cluster, most: int, servers: Optional[Collection[str]]) -> None:
    """Checks that a worker of this step that is lost can come back.

    Raises:
        LaunchError: where no worker of the step can, or its program would replace this process.
    """
    jobs = cluster.jobs()
    if most and servers == ():
        raise LaunchError("--servers none: expected some jobs with --restart-workers, or no option")
    if most and cluster.task is not None and not {"chief", "ps", "worker"} <= set(jobs):
        raise LaunchError(
            f"--restart-workers {most}: this step has the jobs {', '.join(jobs)}; expected chief, "
            "ps and worker, as in --jobs chief=1,ps=1,worker=-1. Only the chief's coordinator of a "
            "ParameterServerStrategy takes a lost worker back; start all others again together."
        )


def is_in_job(cluster: Cluster, servers: Optional[Collection[str]]) -> bool:
    """Returns whether this task's program serves others that train, or is served by them.

    Args:
        cluster: the step's.
        servers: `--servers`; None where it was not given.

    Raises:
        LaunchError: where it was given, and the step has no such tasks, or nobody trains.
    """
    if cluster.task is None or servers == ():
        return False
    jobs = {task.job for task in cluster.tasks}
    serve = jobs.intersection(SERVERS if servers is None else servers)
    train = {"chief", "worker"} & jobs - serve
    if serve and train and {"ps", "dispatcher"} & jobs:
        return cluster.task.job in ("chief", *MAY_SERVE)
    if servers is None:
        return False
    raise LaunchError(
        f"--servers {','.join(servers)}: this step has the jobs {', '.join(sorted(jobs))}; "
        "expected a ps or dispatcher, and a chief or worker that does not only serve, as in "
        "--jobs chief=1,ps=1,worker=-1"
    )


def run_in_job(
    command: List[str],
    environ: Dict[str, str],
    cluster: Cluster,
    servers: Optional[Collection[str]],
    restarts: int,
) -> NoReturn:
    """Runs the program as a child, and takes part in its job; see `child_program`."""
    from slurm_resolver.cli.child_program import ChildProgram
    from slurm_resolver.coordination.client import leave_all

    sys.stdout.flush()
    only_serve = SERVERS if servers is None else servers
    is_worker = cluster.task is not None and cluster.task.job == "worker"
    program = ChildProgram(command, environ, cluster, only_serve, restarts if is_worker else 0)
    try:
        program.run()
    except OSError as error:
        leave_all(f"its program cannot be started: {error.strerror}")
        raise _cannot_start(command[0], error) from error


def replace_process(command: List[str], environ: Dict[str, str]) -> NoReturn:
    """Has the program take the place of this process."""
    import signal

    from slurm_resolver.coordination.client import leave_all

    leave_all()  # the program represents the task
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
