"""`slurm-resolver exec`: starts a program that gets its cluster from TF_CONFIG or arguments."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import time
from typing import Collection, Dict, List, NoReturn, Optional, Sequence, Tuple

from slurm_resolver import startup
from slurm_resolver.cli.options import add_cluster_options, cluster_options
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.contracts import CONTRACTS, Contract, placeholders
from slurm_resolver.cluster.gpus import apply_gpus
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.coordination import client
from slurm_resolver.errors import LaunchError, SlurmResolverError, find_rendezvous_error
from slurm_resolver.slurm.step import SlurmStep

DESCRIPTION = """\
Starts COMMAND with TF_CONFIG set to this task's part of the cluster, or with the variables that
another framework reads (--env), and with the task's GPUs. In its arguments, and in --set, {job},
{index}, {rank}, {local_rank}, {num_tasks}, {node}, {address} (or {host} and {port}), {main_address}
(or {main_host}, {main_port}: rank 0's), {hosts} (all, by rank), {ps_hosts}, {worker_hosts},
{chief_host} and {data_service} (grpc://host:port) are filled in; {{rank}} is {rank} itself. COMMAND
replaces this process: it keeps the process id and gets the signals, and its exit status is the
task's. In a step with a ps or dispatcher it is a child process that gets the signals, and is ended
with its job: see --servers."""

EPILOG = """\
exit status: COMMAND's; 1 when the tasks do not meet or are not ready in time, 2 when usage or
environment are wrong.

examples:
  srun slurm-resolver exec --wait 120 -- python train.py
  srun slurm-resolver exec --jobs ps=1,worker=-1 -- python train.py --ps_hosts={ps_hosts} \\
      --worker_hosts={worker_hosts} --job_name={job} --task_index={index}
  srun slurm-resolver exec --jobs chief=1,ps=2,worker=-1 --restart-workers 3 -- python train.py
  srun slurm-resolver exec --env torch -- python train.py
  srun slurm-resolver exec --set COORDINATOR={main_address} --set ID={rank} -- ./train
  srun slurm-resolver exec --replace-strategy -- python tutorial.py
  srun slurm-resolver exec --replace-resolver -- python train.py

TF_CONFIG has the address of every task, and Linux passes at most 128 KiB in one variable or
argument: enough for some thousands of tasks. SlurmClusterResolver has no such limit."""

_SERVERS = ("ps", "dispatcher", "data_worker")  # whose programs only serve
_MAY_SERVE = (*_SERVERS, "worker")
_PLACEHOLDER = re.compile(r"\{\{[a-z_]+\}\}|\{[a-z_]+\}")
_TOGETHER_SECONDS = 5.0  # by how much tasks that have just met may come apart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(parser)
    add = parser.add_argument
    add(
        "--wait",
        type=_seconds,
        metavar="SECONDS",
        help="wait until all tasks are there and agree; after that time, say which are missing",
    )
    add(
        "--env",
        action="append",
        choices=tuple(CONTRACTS),
        metavar="NAME",
        help="set the variables that programs of this framework read, in place of TF_CONFIG: "
        f"{', '.join(CONTRACTS)}; may be given several times",
    )
    add(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="set this variable as well, with placeholders filled in; may be given several times",
    )
    add(
        "--replace-strategy",
        dest="replace",
        action="append_const",
        const="strategy",
        help="make the program's tf.distribute.MultiWorkerMirroredStrategy this package's, under "
        "which Keras 3 can fit",
    )
    add(
        "--replace-resolver",
        dest="replace",
        action="append_const",
        const="resolver",
        help="make the program's tf.distribute.cluster_resolver.SlurmClusterResolver this "
        "package's, under which the cluster is right",
    )
    add(
        "--restart-workers",
        type=int,
        default=0,
        metavar="N",
        help="start a worker beside a chief and ps again when it is lost, N times at most (0)",
    )
    add(
        "--servers",
        type=_servers,
        metavar="JOB,…",
        help=f"the jobs whose programs only serve, of {', '.join(_MAY_SERVE)}; exec ends them when "
        "all others have ended, and all when a ps, dispatcher, data_worker or the leader is lost; "
        f"default: {','.join(_SERVERS)}; under TensorFlow's ParameterServerStrategy ps,worker; "
        "none ends nothing",
    )
    add("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")


def _servers(text: str) -> Tuple[str, ...]:
    jobs = () if text == "none" else tuple(text.split(","))
    unknown = [job for job in jobs if job not in _MAY_SERVE]
    if unknown:
        expected = f"expected some of {', '.join(_MAY_SERVE)}, with commas; or none"
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)!r}: {expected}")
    return jobs


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0")
    return seconds


def _setting(text: str) -> Tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, as RANK={{rank}}")
    return name, value


def main(args: argparse.Namespace) -> int:
    """Replaces this process by the program, or runs it; returns 1 where the tasks do not meet."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise LaunchError("no command: srun slurm-resolver exec -- python train.py")
    if args.restart_workers < 0:
        raise LaunchError(f"--restart-workers {args.restart_workers}: expected 0 or more")
    # What connects to the other tasks here is the launcher of the program, which may connect too.
    client.default_role = "launcher"
    try:
        cluster = _resolve(args, command[0])
    except SlurmResolverError as error:
        if find_rendezvous_error(error) is None:
            raise
        print(f"slurm-resolver exec: {error}", file=sys.stderr)
        return 1
    environ = {**os.environ, **_framework_variables(cluster, args.env or ["tensorflow"])}
    values = fill_in([value for _, value in args.set], cluster)
    environ.update(zip((name for name, _ in args.set), values))
    if args.replace:
        environ.update(startup.variables(args.replace, os.environ))
    command = fill_in(command, cluster)
    _check_restarts(cluster, args)
    sys.stdout.flush()
    try:
        if _is_in_job(cluster, args.servers):
            _run_in_job(command, environ, cluster, args)
        _replace_process(command, environ)
    except OSError as error:
        client.leave_all(f"its program cannot be started: {error.strerror}")
        raise _not_startable(command[0], error) from error


def _resolve(args: argparse.Namespace, program: str) -> Cluster:
    """Returns the cluster, with --wait once all tasks are ready."""
    options = cluster_options(args)
    if args.wait is None:
        return resolve_step(SlurmStep.read(), options)
    options = options._replace(until=time.monotonic() + args.wait)
    cluster = resolve_step(SlurmStep.read(), options)
    if cluster.tasks:
        import shutil

        from slurm_resolver.preflight.ready import wait_until_ready

        # Found out now, as the other tasks would start and wait for this one in vain.
        if shutil.which(program) is None:
            raise _not_startable(program, OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
        # Tasks that have told each other where they run are there already.
        least = _TOGETHER_SECONDS if cluster.layout_source == "rendezvous" else 0.0
        wait_until_ready(cluster, max(options.meeting_seconds, least))
    return cluster


def _framework_variables(cluster: Cluster, contracts: Sequence[Contract]) -> Dict[str, str]:
    """Returns what the frameworks' programs read, and the variables that show the task its GPUs.

    Args:
        cluster: the step's.
        contracts: the frameworks, see `slurm_resolver.cluster.contracts`.
    """
    variables: Dict[str, str] = {}
    for contract in contracts:
        variables.update(cluster.variables(contract))
    gpus, own = cluster.gpu_decision, cluster.task
    if gpus is None or own is None:
        return variables
    if "torch" in contracts:
        if gpus.same_for_all:
            return variables  # its programs take the GPU with the number LOCAL_RANK of all
        shown = gpus.visible_before or ()
        if shown and own.local_rank >= len(shown):
            print(
                f"slurm-resolver exec: LOCAL_RANK is {own.local_rank}, but Slurm shows this task "
                f"{len(shown)} of the node's GPUs: a program that takes the GPU of that number "
                "fails. Ask for the GPUs by --gpus-per-node instead of --gpus-per-task or "
                "--gpu-bind.",
                file=sys.stderr,
            )
    apply_gpus(gpus, cluster.step, variables)
    return variables


def fill_in(words: Sequence[str], cluster: Cluster) -> List[str]:
    """Returns the words with {job}, {index} and so on filled in.

    ``{{rank}}`` stands for ``{rank}`` itself. Braces with anything else in them stay as they are.
    """
    if not any("{" in word for word in words):
        return list(words)  # the lists of hosts are long
    values = {}
    for name, value in placeholders(cluster).items():
        values[f"{{{name}}}"] = value
        values[f"{{{{{name}}}}}"] = f"{{{name}}}"
    return [_PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), word) for word in words]


def _check_restarts(cluster: Cluster, args: argparse.Namespace) -> None:
    """Checks that a worker of this step that is lost can come back.

    Raises:
        LaunchError: where no worker of the step can, or its program would replace this process.
    """
    if not args.restart_workers or cluster.task is None:
        return
    jobs = cluster.jobs()
    if args.servers == () or not {"chief", "ps", "worker"} <= set(jobs):
        raise LaunchError(
            f"--restart-workers {args.restart_workers}: this step has the jobs {', '.join(jobs)}; "
            "expected chief, ps and worker, as in --jobs chief=1,ps=1,worker=-1, and not --servers "
            "none. Only the chief's coordinator of a ParameterServerStrategy takes a lost worker "
            "back; start all others again together."
        )


def _is_in_job(cluster: Cluster, servers: Optional[Collection[str]]) -> bool:
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
    serve = jobs.intersection(_SERVERS if servers is None else servers)
    train = {"chief", "worker"} & jobs - serve
    if serve and train and {"ps", "dispatcher"} & jobs:
        return cluster.task.job in ("chief", *_MAY_SERVE)
    if servers is None:
        return False
    raise LaunchError(
        f"--servers {','.join(servers)}: this step has the jobs {', '.join(sorted(jobs))}; "
        "expected a ps or dispatcher, and a chief or worker that does not only serve, as in "
        "--jobs chief=1,ps=1,worker=-1"
    )


def _run_in_job(
    command: List[str], environ: Dict[str, str], cluster: Cluster, args: argparse.Namespace
) -> NoReturn:
    from slurm_resolver.cli.child_program import ChildProgram

    assert cluster.task is not None
    restarts = args.restart_workers if cluster.task.job == "worker" else 0
    servers = _SERVERS if args.servers is None else args.servers
    ChildProgram(command, environ, cluster, servers, restarts).run()


def _replace_process(command: List[str], environ: Dict[str, str]) -> NoReturn:
    import signal

    client.leave_all()  # the program represents the task
    # Python ignores these signals, and the program would inherit that.
    numbers = (signal.SIGPIPE, signal.SIGXFSZ)
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        os.execvpe(command[0], command, environ)
    finally:  # it was not started
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _not_startable(name: str, error: OSError) -> LaunchError:
    if error.errno == errno.E2BIG:
        return LaunchError(
            "the arguments and variables, with this step's tasks filled in, are longer than Linux "
            "passes to a program: 128 KiB in each of them, and in all a quarter of `ulimit -s`. "
            "Start fewer tasks, or have the program use SlurmClusterResolver or "
            "slurm_resolver.resolve(), which need neither TF_CONFIG nor arguments."
        )
    return LaunchError(f"{name!r} is not a program that can be started here ({error.strerror})")
