"""`slurm-resolver exec`: starts a program that reads its cluster from TF_CONFIG or arguments."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from argparse import Namespace
from typing import NoReturn

from slurm_resolver import pythonpath, signals
from slurm_resolver.cli.shared_options import (
    CLUSTER_OPTIONS,
    Command,
    command_of,
    values_of,
)
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.frameworks import CONTRACTS
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import resolve_step
from slurm_resolver.cluster.task_gpus import apply_gpus
from slurm_resolver.coordination.client import leave_all
from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import Exports
from slurm_resolver.start.proxy import connect_directly

DESCRIPTION = """\
Starts COMMAND with TF_CONFIG, or with the variables of another framework (--env), and with the
task's GPUs. These placeholders in its arguments are filled in: {job}, {index}, {rank},
{local_rank}, {num_tasks}, {node}, {address} (or {host} and {port}), {main_address} (or {main_host}
and {main_port}; rank 0's), {hosts} (all, by rank), {ps_hosts}, {worker_hosts} and {chief_host}.
{{rank}} becomes {rank}. COMMAND replaces this process: process id, signals and exit status are its
own. In a step with a ps, join() of TensorFlow's servers ends COMMAND when the training is over."""

EPILOG = """\
exit status: COMMAND's; that of the training, 0 or 1, where join() ended it; 1 if the
tasks do not meet or are not ready in time; 2 if usage or environment is wrong.

examples:
  srun slurm-resolver exec --wait 120 -- python train.py
  srun slurm-resolver exec --jobs ps=1,worker=-1 -- python train.py --ps_hosts={ps_hosts} \\
      --worker_hosts={worker_hosts} --job_name={job} --task_index={index}
  srun slurm-resolver exec --env torch -- python train.py
  srun slurm-resolver exec -- env COORDINATOR={main_address} ID={rank} ./train
  srun slurm-resolver exec --replace-strategy -- python tutorial.py
  srun slurm-resolver exec --replace-resolver -- python train.py

TF_CONFIG contains the address of every task, and Linux passes at most 128 KiB in one variable or
argument: enough for some thousands of tasks. SlurmClusterResolver has no such limit."""

_PLACEHOLDER = re.compile(r"\{(\{[a-z_]+\}|[a-z_]+)\}")


OPTIONS = {
    **CLUSTER_OPTIONS,
    "--wait SECONDS": (
        "wait until all tasks have started and agree; after SECONDS, end and name the missing ones"
    ),
    f"--env {'|'.join(CONTRACTS)}": (
        "set the variables of this framework instead of TF_CONFIG; can be repeated"
    ),
    "--replace-strategy": (
        "replace the program's tf.distribute.MultiWorkerMirroredStrategy with this package's, for "
        "Keras 3's fit"
    ),
    "--replace-resolver": (
        "replace the program's tf.distribute.cluster_resolver.SlurmClusterResolver with this "
        "package's"
    ),
    "command_line -- COMMAND [ARGUMENT …]": "the program",
}


def main(args: Namespace) -> int:
    """Prepares what the program needs, and starts it."""
    # Before the tasks meet: the others would wait for this one.
    command = command_of(args)
    until = None if args.wait is None else time.monotonic() + args.wait
    options = ClusterOptions(**values_of(args, ClusterOptions), until=until)
    cluster = resolve_step(SlurmStep.read(), options)
    if until:
        from slurm_resolver.start.ready import wait_until_ready

        wait_until_ready(cluster, until - time.monotonic())
    _start(fill_in(command, cluster), _environment(args, cluster))


def _start(command: Command, environ: Exports) -> NoReturn:
    """Replaces this process by the program."""
    try:
        leave_all()  # the program represents the task
        signals.handle(signals.IGNORED_BY_PYTHON, signal.SIG_DFL)
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise LaunchError(
            f"{command[0]!r} cannot be started ({error.strerror}). "
            "'Argument list too long' means more than Linux passes to a program: 128 KiB in an "
            "argument or variable, and a quarter of `ulimit -s` together. Then start fewer tasks, "
            "or use slurm_resolver.resolve() in the program."
        ) from error


def _environment(args: Namespace, cluster: Cluster) -> Exports:
    """Returns the environment of the program: its cluster and GPUs, and what is replaced in it."""
    environ = {**os.environ}
    contracts = args.env or ["tensorflow"]
    for contract in contracts:
        environ.update(cluster.variables(contract))
    connect_directly(cluster, environ)
    gpus = cluster.gpu_decision
    # A program of PyTorch uses the GPU with the number LOCAL_RANK of all that the task sees.
    if "torch" not in contracts or gpus.devices == gpus.visible_before:
        apply_gpus(gpus, cluster.step, environ)
    # What `pythonpath` replaces in the program.
    replaced = []
    if args.replace_strategy:
        replaced.append("strategy")
    if args.replace_resolver:
        replaced.append("resolver")
    if "ps" in cluster.roles:
        replaced.append("servers")
        environ[pythonpath.OPTIONS] = json.dumps(values_of(args, ClusterOptions))
    if replaced:
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [pythonpath.FOLDER, environ.get("PYTHONPATH")])
        )
        environ[pythonpath.VARIABLE] = ",".join(replaced)
    return environ


def fill_in(words: Command, cluster: Cluster) -> Command:
    """Returns the words with the placeholders filled in; other braces stay."""
    values = cluster.placeholders()
    values.update({f"{{{name}}}": f"{{{name}}}" for name in values})
    return [_PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), word) for word in words]
