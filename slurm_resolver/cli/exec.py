"""`slurm-resolver exec`: starts a program that reads its cluster from TF_CONFIG or arguments."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import time
from typing import Collection, Dict, List, NoReturn, Optional, Sequence, Tuple

from slurm_resolver import startup
from slurm_resolver.cli.options import (
    add_cluster_options,
    add_command,
    check_range,
    cluster_options,
    command_of,
    seconds,
)
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.contracts import CONTRACTS, Contract, placeholders
from slurm_resolver.cluster.gpus import apply_gpus
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.coordination import client
from slurm_resolver.errors import LaunchError, SlurmResolverError, find_rendezvous_error
from slurm_resolver.slurm.step import SlurmStep

DESCRIPTION = """\
Starts COMMAND with TF_CONFIG, or with the variables of another framework (--env), and with the
task's GPUs. These placeholders are filled in, in its arguments and in --set: {job}, {index},
{rank}, {local_rank}, {num_tasks}, {node}, {address} (or {host} and {port}), {main_address} (or
{main_host} and {main_port}; rank 0's), {hosts} (all, by rank), {ps_hosts}, {worker_hosts},
{chief_host} and {data_service} (grpc://host:port). {{rank}} becomes {rank}. COMMAND replaces this
process: process id, signals and exit status are its own. In a step with a ps or dispatcher, COMMAND
is a child process that receives the signals, and it is ended with its job: see --servers."""

EPILOG = """\
exit status: COMMAND's; 1 if the tasks do not meet or are not ready in time, 2 if usage or
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

TF_CONFIG contains the address of every task, and Linux passes at most 128 KiB in one variable or
argument: enough for some thousands of tasks. SlurmClusterResolver has no such limit."""

_SERVERS = ("ps", "dispatcher", "data_worker")  # whose programs only serve
_MAY_SERVE = (*_SERVERS, "worker")
_PLACEHOLDER = re.compile(r"\{\{[a-z_]+\}\}|\{[a-z_]+\}")
_TOGETHER_SECONDS = 5.0  # tasks that have just met may differ by this much


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(parser)
    add = parser.add_argument
    help_ = "wait until all tasks have started and agree; after SECONDS, name the missing ones"
    add("--wait", type=seconds, metavar="SECONDS", help=help_)
    names = ", ".join(CONTRACTS)
    help_ = f"set the variables of this framework instead of TF_CONFIG: {names}; can be repeated"
    add("--env", action="append", choices=tuple(CONTRACTS), metavar="NAME", help=help_)
    help_ = "also set this variable, with placeholders filled in; can be repeated"
    add("--set", action="append", default=[], type=_setting, metavar="NAME=VALUE", help=help_)
    for name, what in _REPLACED.items():
        help_ = f"replace tf.distribute.{what}"
        option = f"--replace-{name}"
        add(option, dest="replace", action="append_const", const=name, help=help_)
    help_ = "restart a lost worker beside a chief and ps, at most N times (0)"
    add("--restart-workers", type=int, default=0, metavar="N", help=help_)
    help_ = (
        f"the jobs whose programs only serve, of {', '.join(_MAY_SERVE)}. They are ended when all "
        "other programs have ended; all programs are ended when a ps, dispatcher, data_worker or "
        f"the leader is lost. Default: {','.join(_SERVERS)}. Under TensorFlow's "
        "ParameterServerStrategy: ps,worker. none: end no program"
    )
    add("--servers", type=_servers, metavar="JOB,…", help=help_)
    add_command(parser)


_REPLACED = {
    "strategy": "MultiWorkerMirroredStrategy of the program by this package's, for Keras 3's fit",
    "resolver": "cluster_resolver.SlurmClusterResolver of the program by this package's",
}


def _servers(text: str) -> Tuple[str, ...]:
    jobs = () if text == "none" else tuple(text.split(","))
    unknown = [job for job in jobs if job not in _MAY_SERVE]
    if unknown:
        expected = f"expected some of {', '.join(_MAY_SERVE)}, separated by commas; or none"
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)!r}: {expected}")
    return jobs


def _setting(text: str) -> Tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, as RANK={{rank}}")
    return name, value


def main(args: argparse.Namespace) -> int:
    """Replaces this process by the program, or runs it; returns 1 if the tasks do not meet."""
    command = command_of(args)
    if not command:
        raise LaunchError("no command: srun slurm-resolver exec -- python train.py")
    check_range("--restart-workers", args.restart_workers, 0)
    # The program may connect to the other tasks as well.
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
    sys.stdout.flush()
    try:
        if _is_in_job(cluster, args):
            from slurm_resolver.cli.child_program import ChildProgram

            servers = _SERVERS if args.servers is None else args.servers
            ChildProgram(command, environ, cluster, servers, args.restart_workers).run()
        _replace_process(command, environ)
    except OSError as error:
        client.leave_all(f"its program cannot be started: {error.strerror}")
        raise _not_startable(command[0], error) from error


def _resolve(args: argparse.Namespace, program: str) -> Cluster:
    """Returns the cluster; with --wait, once all tasks are ready."""
    options = cluster_options(args)
    if args.wait is None:
        return resolve_step(SlurmStep.read(), options)
    options = options._replace(until=time.monotonic() + args.wait)
    cluster = resolve_step(SlurmStep.read(), options)
    if cluster.tasks:
        import shutil

        from slurm_resolver.preflight.ready import wait_until_ready

        # Checked before the others start, because they would wait for this task.
        if shutil.which(program) is None:
            raise _not_startable(program, OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
        # Tasks that have told each other where they run have already met.
        least = _TOGETHER_SECONDS if cluster.layout_source == "rendezvous" else 0.0
        wait_until_ready(cluster, max(options.meeting_seconds, least))
    return cluster


def _framework_variables(cluster: Cluster, contracts: Sequence[Contract]) -> Dict[str, str]:
    """Returns the variables of the frameworks, and those that select the task's GPUs."""
    variables: Dict[str, str] = {}
    for contract in contracts:
        variables.update(cluster.variables(contract))
    gpus, own = cluster.gpu_decision, cluster.task
    if gpus is None or own is None:
        return variables
    if "torch" in contracts:
        if gpus.same_for_all:
            return variables  # a program of PyTorch uses the GPU with the number LOCAL_RANK
        shown = gpus.visible_before or ()
        if shown and own.local_rank >= len(shown):
            print(
                f"slurm-resolver exec: LOCAL_RANK is {own.local_rank}, but Slurm shows this task "
                f"{len(shown)} of the node's GPUs: a program that uses the GPU with that number "
                "fails. Ask for GPUs with --gpus-per-node, not --gpus-per-task or --gpu-bind.",
                file=sys.stderr,
            )
    apply_gpus(gpus, cluster.step, variables)
    return variables


def fill_in(words: Sequence[str], cluster: Cluster) -> List[str]:
    """Returns the words with the placeholders filled in; other braces stay."""
    if not any("{" in word for word in words):
        return list(words)  # the lists of hosts are long
    values = {}
    for name, value in placeholders(cluster).items():
        values[f"{{{name}}}"] = value
        values[f"{{{{{name}}}}}"] = f"{{{name}}}"
    return [_PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), word) for word in words]


def _is_in_job(cluster: Cluster, args: argparse.Namespace) -> bool:
    """Returns whether this task's program serves others that train, or is served by them.

    Raises:
        LaunchError: if --restart-workers or --servers does not fit the step's jobs.
    """
    if cluster.task is None:
        return False
    jobs = cluster.jobs()
    servers: Optional[Collection[str]] = args.servers
    if args.restart_workers and (servers == () or not {"chief", "ps", "worker"} <= set(jobs)):
        raise LaunchError(
            f"--restart-workers {args.restart_workers}: this step has the jobs {', '.join(jobs)}; "
            "expected chief, ps and worker, as in --jobs chief=1,ps=1,worker=-1, and not --servers "
            "none. Only the chief's coordinator of a ParameterServerStrategy takes a lost worker "
            "back; restart all other programs together."
        )
    if servers == ():
        return False
    present = {task.job for task in cluster.tasks}
    serve = present.intersection(_SERVERS if servers is None else servers)
    train = {"chief", "worker"} & present - serve
    if serve and train and {"ps", "dispatcher"} & present:
        return cluster.task.job in ("chief", *_MAY_SERVE)
    if servers is None:
        return False
    raise LaunchError(
        f"--servers {','.join(servers)}: this step has the jobs {', '.join(sorted(present))}; "
        "expected a ps or dispatcher, and a chief or worker that does not only serve, as in "
        "--jobs chief=1,ps=1,worker=-1"
    )


def _replace_process(command: List[str], environ: Dict[str, str]) -> NoReturn:
    import signal

    client.leave_all()  # the program represents the task
    # Python ignores these signals, and the program would inherit it.
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
            "passes to a program: 128 KiB each, and a quarter of `ulimit -s` together. Start fewer "
            "tasks, or use SlurmClusterResolver or slurm_resolver.resolve() in the program."
        )
    return LaunchError(f"{name!r} is not a program that can be started here ({error.strerror})")
