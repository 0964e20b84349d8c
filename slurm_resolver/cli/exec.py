"""`slurm-resolver exec`: starts a program that gets its cluster from TF_CONFIG or arguments."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Dict, List, Tuple

from slurm_resolver import startup
from slurm_resolver.cli import exec_program as program
from slurm_resolver.cli.exec_variables import (
    FilledIn,
    check_lengths,
    contract_variables,
    read_settings,
)
from slurm_resolver.cli.options import add_cluster_options, cluster_options
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.contracts import CONTRACTS
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
exit status: COMMAND's; 1 when the tasks are not ready in time (--wait), 2 when usage or environment
are wrong.

examples:
  srun slurm-resolver exec --wait 120 -- python train.py
  srun slurm-resolver exec --jobs ps=1,worker=-1 -- python train.py --ps_hosts={ps_hosts} \\
      --worker_hosts={worker_hosts} --job_name={job} --task_index={index}
  srun slurm-resolver exec --jobs chief=1,ps=2,worker=-1 --restart-workers 3 -- python train.py
  srun slurm-resolver exec --env torch -- python train.py
  srun slurm-resolver exec --set COORDINATOR={main_address} --set ID={rank} -- ./train
  srun slurm-resolver exec --replace-strategy -- python tutorial.py
  srun slurm-resolver exec --replace-resolver -- python train.py
  config=$(slurm-resolver exec --format env) && eval "$config"

TF_CONFIG has the address of every task, and Linux passes at most 128 KiB in one variable or
argument: enough for some thousands of tasks. SlurmClusterResolver has no such limit."""

_TOGETHER_SECONDS = 5.0  # by how much tasks that have just met may come apart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this subcommand's arguments."""
    add_cluster_options(parser)
    parser.add_argument(
        "--wait",
        type=_seconds,
        metavar="SECONDS",
        help="wait until all tasks are there and agree; after that time, say which are missing",
    )
    parser.add_argument(
        "--env",
        action="append",
        choices=tuple(CONTRACTS),
        metavar="NAME",
        help="set the variables that programs of this framework read, in place of TF_CONFIG: "
        f"{', '.join(CONTRACTS)}; may be given several times",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set this variable as well, with placeholders filled in; may be given several times",
    )
    parser.add_argument(
        "--replace-strategy",
        action="store_true",
        help="make the program's tf.distribute.MultiWorkerMirroredStrategy this package's, under "
        "which Keras 3 can fit",
    )
    parser.add_argument(
        "--replace-resolver",
        action="store_true",
        help="make the program's tf.distribute.cluster_resolver.SlurmClusterResolver this "
        "package's, under which the cluster is right",
    )
    parser.add_argument(
        "--restart-workers",
        type=int,
        default=0,
        metavar="N",
        help="start a worker beside a chief and ps again when it is lost, N times at most (0)",
    )
    parser.add_argument(
        "--servers",
        type=_servers,
        metavar="JOB,…",
        help="the jobs whose programs only serve, of "
        f"{', '.join(program.MAY_SERVE)}; exec ends them when all others have ended, and all when "
        "a ps, dispatcher, data_worker or the leader is lost; default: "
        f"{','.join(program.SERVERS)}; under TensorFlow's ParameterServerStrategy ps,worker; none "
        "ends nothing",
    )
    for name in ("--end-servers", "--no-end-servers"):
        parser.add_argument(name, action=_Removed, nargs=0, help=argparse.SUPPRESS)
    parser.add_argument(
        "--force", action="store_true", help="replace variables that are set already, and differ"
    )
    parser.add_argument(
        "--format",
        choices=("json", "env"),
        help="print the variables instead: as JSON, or for eval",
    )
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARGUMENT …]")


class _Removed(argparse.Action):
    """An option of earlier versions."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> None:
        now = "'--servers none'" if args[-1] == "--no-end-servers" else "the default, or --servers"
        parser.error(f"{args[-1]} was removed; use {now}")


def _servers(text: str) -> Tuple[str, ...]:
    jobs = () if text == "none" else tuple(text.split(","))
    unknown = [job for job in jobs if job not in program.MAY_SERVE]
    if unknown:
        expected = f"expected some of {', '.join(program.MAY_SERVE)}, with commas; or none"
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


def main(args: argparse.Namespace) -> int:
    """Prints the variables, or replaces this process by the program."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if bool(command) == bool(args.format):
        raise LaunchError("expected either a command, after --, or --format")
    if args.restart_workers < 0:
        raise LaunchError(f"--restart-workers {args.restart_workers}: expected 0 or more")
    settings = read_settings(args.set)
    options = cluster_options(args)
    # What connects to the other tasks here is the launcher of the program, which may connect too.
    client.default_role = "launcher"
    if args.wait is not None:
        options = options._replace(until=time.monotonic() + args.wait)
    try:
        cluster = resolve_step(SlurmStep.read(), options)
    except SlurmResolverError as error:
        if args.wait is None or find_rendezvous_error(error) is None:
            raise
        print(f"slurm-resolver exec: {error}", file=sys.stderr)
        return 1
    variables = contract_variables(cluster, args.env or ["tensorflow"], args.force)
    filled_in = FilledIn(cluster)
    for name, value in settings.items():
        variables[name] = filled_in.word(value, f"--set {name}")
    replaced = [name for name in ("strategy", "resolver") if getattr(args, f"replace_{name}")]
    if replaced:
        variables.update(startup.variables(replaced, os.environ))
    command = [filled_in.word(word) for word in command]
    if args.format != "json":
        check_lengths(command, variables)
    if args.wait is not None and cluster.tasks:
        import shutil

        from slurm_resolver.errors import RendezvousError
        from slurm_resolver.preflight.ready import wait_until_ready

        if command and shutil.which(command[0]) is None:
            # Found out now, as the other tasks would start and wait for this one in vain.
            raise program.not_startable(command[0], "not found, or not executable")
        try:
            # Tasks that have told each other where they run are there already.
            least = _TOGETHER_SECONDS if cluster.layout_source == "rendezvous" else 0.0
            wait_until_ready(cluster, max(options.meeting_seconds, least))
        except RendezvousError as error:
            print(f"slurm-resolver exec: {error}", file=sys.stderr)
            return 1
    if args.format == "json":
        print(json.dumps(variables))
    elif args.format == "env":
        import shlex

        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
    else:
        _start(command, {**program.inherited(), **variables}, cluster, args)
    return 0


def _start(
    command: List[str], environ: Dict[str, str], cluster: Cluster, args: argparse.Namespace
) -> None:
    program.check_restarts(cluster, args.restart_workers, args.servers)
    if program.is_in_job(cluster, args.servers):
        program.run_in_job(command, environ, cluster, args.servers, args.restart_workers)
    program.replace_process(command, environ)
