"""The text of a batch file for a training, with comments."""

from __future__ import annotations

import shlex

from slurm_resolver.sbatch.settings import DEFAULT_SIGNAL, BatchSettings, check_settings
from slurm_resolver.signals import REQUEUE_STATUS
from slurm_resolver.version import __version__

# Each is a text with places for settings, or an empty value if it is not needed.
Texts = list[object]


def batch_file(settings: BatchSettings) -> str:
    """Returns the file's text; the same settings give the same text.

    Raises:
        LaunchError: for a value that sbatch or srun would refuse, or read as something else.
    """
    if settings.requeue and settings.signal is None:
        settings = settings._replace(signal=DEFAULT_SIGNAL)
    check_settings(settings)
    texts = [
        *_options(settings),
        *_preparations(settings),
        *(_check(settings) if settings.check else ()),
        "\n",
        *_training(settings),
    ]
    return "".join(map(str, filter(None, texts))).format(
        settings=settings,
        version=__version__,
        environment=_ENVIRONMENT,
        secret=_SECRET,
        receiver="this script" if settings.requeues_by_script else "every task",
        to_script="B:" if settings.requeues_by_script else "",
        signal_name=(settings.signal or "").partition("@")[0],
        status=REQUEUE_STATUS,
        step='"${step[@]}"',
        run=" ".join(map(shlex.quote, settings.command)),
    )


def _options(settings: BatchSettings) -> Texts:
    """Returns the options of sbatch."""
    return [
        (
            "#!/bin/bash\n"
            "# Made by slurm-resolver sbatch {version}. Submit it with sbatch; arguments after\n"
            "# the file's name are passed on to the program. Add what your site needs as further\n"
            "# #SBATCH lines, or before the file's name: sbatch --partition=gpu --mem=64G FILE\n"
            "#SBATCH --output=%x-%j.out\n"
        ),
        settings.requeue
        and (
            "# Slurm may stop the job and start it again, with the same id and output file.\n"
            "#SBATCH --requeue\n"
        ),
        settings.signal
        and (
            "#SBATCH --open-mode=append\n"
            "# Sent to {receiver} {settings.signal_seconds} s before the time limit, or earlier.\n"
            "#SBATCH --signal={to_script}{settings.signal}\n"
        ),
        settings.restarts
        and (
            "# A node that fails does not end the job: supervise, below, continues without it if "
            "{settings.least_nodes}\n"
            "# or more nodes are healthy. The step needs {settings.nodes}; "
            "{settings.spare_nodes} to spare.\n"
            "#SBATCH --no-kill\n"
        ),
        (
            "#SBATCH --nodes={settings.all_nodes}\n"
            "#SBATCH --ntasks-per-node={settings.tasks_per_node}\n"
        ),
        settings.gpus_per_node
        and (
            "# All tasks of a node see all its GPUs; slurm_resolver gives each its share.\n"
            "#SBATCH --gpus-per-node={settings.gpus_per_node}\n"
        ),
        settings.cpus_per_task and "#SBATCH --cpus-per-task={settings.cpus_per_task}\n",
        (
            "# Slurm ends the job after this time. The shorter the time, the sooner the job may "
            "start.\n"
            "#SBATCH --time={settings.time}\n"
        ),
    ]


def _preparations(settings: BatchSettings) -> Texts:
    """Returns what precedes the steps: their environment, their options and the trap."""
    several_nodes = settings.nodes > 1
    return [
        "\n{environment}\n\n",
        settings.nodes * settings.tasks_per_node > 1 and "{secret}\n\n",
        "# The options of all steps. --label: the rank before each line of output.\n",
        several_nodes
        and (
            "# --distribution: neighbouring ranks share a node, or a block of Slurm 26.05's "
            "topology.\n"
        ),
        settings.cpus_per_task
        and "# --cpus-per-task: srun of Slurm 22.05 to 23.02 does not get it from the batch job.\n",
        "step=(srun --label",
        several_nodes and " --distribution=block",
        settings.cpus_per_task and " --cpus-per-task={settings.cpus_per_task}",
        ")\n",
        settings.requeues_by_script
        and (
            "\n"
            "# At a signal to all tasks, workers and parameter servers end before the chief can "
            "save. So\n"
            "# only this script gets it, and requeues the job. The training continues from the "
            "last save.\n"
            "end_job() {{  # with the exit status of a step\n"
            "    trap : {signal_name}  # from now on, another one has no effect\n"
            '    slurm-resolver requeue --max-restarts 100 "$1"  # also at each time limit\n'
            '    exit "$?"\n'
            "}}\n"
            "trap 'end_job {status}' {signal_name}\n"
        ),
    ]


def _check(settings: BatchSettings) -> Texts:
    """Returns the step that checks."""
    return [
        (
            "\n"
            "# Takes a second, and finds what TensorFlow would silently wait for: a missing "
            "task, a\n"
            "# name that does not resolve, a port that is taken or cannot be reached.\n"
        ),
        settings.check_restarts
        and (
            "# supervise: continues without a node that is dead already.\n"
            "slurm-resolver supervise --restarts {settings.check_restarts} --watch 0 \\\n"
            "    --nodes {settings.all_nodes} --min-nodes {settings.least_nodes} "
            "--ntasks-per-node {settings.tasks_per_node} -- \\\n"
            "    "
        ),
        "{step} --kill-on-bad-exit=1 \\\n    slurm-resolver check --timeout 120",
        settings.ps and " --jobs chief=1,ps={settings.ps},worker=-1",
        settings.requeues_by_script and ' || end_job "$?"',
        "\n",
    ]


def _training(settings: BatchSettings) -> Texts:
    """Returns the step that trains, and the requeue."""
    by_script = settings.requeues_by_script
    by_tasks = settings.requeue and not by_script
    return [
        by_tasks
        and (
            "status=0\n"
            "# With BackupAndResume, ResumableLoop or termination_config, the tasks save at the "
            "signal,\n"
            "# and one requeues the job with scontrol; without them, the signal ends the tasks. "
            "Where\n"
            "# there is no scontrol (in a container), the tasks end with exit status {status} "
            "after the\n"
            "# save, and the lines below requeue the job.\n"
            "# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the "
            "status into\n"
            "# 143. --wait ends them {settings.signal_seconds} s after the first task has ended, "
            "whatever its status is.\n"
        ),
        not by_tasks
        and "# --kill-on-bad-exit: otherwise the other tasks wait for one that has failed.\n",
        by_script
        and "# In the background, because bash handles a signal at once only while it waits.\n",
        settings.restarts
        and (
            "# supervise: starts the step again, on nodes that are healthy, when a task or a node\n"
            "# has failed, and says why. If a task has failed, it ends the others.\n"
        ),
        settings.ps
        and (
            "# The program, or slurm-resolver exec --jobs, has to ask for the same jobs:\n"
            "#   SlurmClusterResolver({{'chief': 1, 'ps': {settings.ps}, 'worker': -1}})\n"
        ),
        "quiet ",
        *(_supervision(settings) if settings.restarts else ()),
        "{step} --kill-on-bad-exit=",
        "0 --wait={settings.signal_seconds}" if by_tasks else "1",
        ' \\\n    {run} "$@"',
        by_tasks
        and (
            " || status=$?\n"
            "\n"
            "# Requeues the job after exit status {status}, or if it failed while Slurm preempted "
            "it.\n"
            'slurm-resolver requeue --max-restarts 10 "$status"'
        ),
        by_script and ' &\nstatus=0\nwait $! || status=$?\nend_job "$status"',
        "\n",
    ]


def _supervision(settings: BatchSettings) -> Texts:
    """Returns the command that starts the step again."""
    return [
        "slurm-resolver supervise --restarts {settings.restarts}",
        settings.requeue and " --requeue --least-time {settings.least_time}",
        " \\\n    --nodes {settings.nodes}",
        settings.min_nodes and " --min-nodes {settings.min_nodes}",
        " --ntasks-per-node {settings.tasks_per_node} -- \\\n    ",
    ]


_ENVIRONMENT = r"""set -eo pipefail

# Replace this with the line that puts the right python and slurm-resolver first in PATH:
# source ~/venv/bin/activate  # or: module load TensorFlow

set -u  # only here: such scripts may use variables that are not set
export PYTHONUNBUFFERED=1  # what Python prints appears in the output at once
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-1}  # 0 shows all notes
# quiet COMMAND: removes the notes that TensorFlow 2.21 writes before it reads that variable.
quiet() {
    [ "$TF_CPP_MIN_LOG_LEVEL" != 0 ] || { "$@"; return; }
    local notes='absl::InitializeLog\(\)|\] (oneDNN custom|Could not find cuda)'
    # Only standard error passes the filter. It ignores SIGTERM, as it must not end first. Where a
    # full disk ends sed (status 4), the line is lost, but neither later lines nor the exit status.
    { "$@" 2>&1 1>&3 | {
        trap '' TERM
        while sed -uE "/$notes/d"; [ $? = 4 ]; do :; done
        cat || true
    } >&2; } 3>&1
}"""

_SECRET = """\
# Without munge, the tasks recognize each other by a secret, which admits no other user.
# Only this user and root can read it in the environment of a process.
munge=${SLURM_RESOLVER_MUNGE_SOCKET:-/run/munge/munge.socket.2}
if ! command -v unmunge >/dev/null || [ ! -S "$munge" ]; then
    : "${SLURM_RESOLVER_SECRET:=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')}"
    export SLURM_RESOLVER_SECRET
fi"""
