"""The text of a batch file for a training, with comments: one function for each part."""

from __future__ import annotations

import json
import shlex
from typing import List

from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.sbatch.settings import (
    DEFAULT_SIGNAL,
    SIGNAL_EARLY_SECONDS,
    BatchSettings,
    check_settings,
    script_requeues,
    seconds_after_signal,
)
from slurm_resolver.version import __version__
from slurm_resolver.wording import counted


def batch_file(settings: BatchSettings) -> str:
    """Returns the file's text; the same settings give the same text.

    Raises:
        LaunchError: for a value that sbatch or srun would refuse, or read as something else.
        JobsError: where the jobs do not fit the tasks.
    """
    if settings.requeue and settings.signal is None:
        settings = settings._replace(signal=DEFAULT_SIGNAL)
    check_settings(settings)
    parts = [*_directives(settings), "", _ENVIRONMENT, "", *_step(settings)]
    if script_requeues(settings):
        parts += ["", _end_job(settings)]
    if settings.check:
        parts += ["", _preflight(settings)]
    return "\n".join([*parts, "", *_training(settings), ""])


def _directives(settings: BatchSettings) -> List[str]:
    spare = settings.spare_nodes or 0
    lines = [
        "#!/bin/bash",
        f"# Made by slurm-resolver sbatch {__version__}. Submit it with sbatch; arguments after",
        "# the file's name are passed on to the program. Add what your site needs as further",
        "# #SBATCH lines, or before the file's name: sbatch --partition=gpu --mem=64G FILE",
        "#SBATCH --output=%x-%j.out",
    ]
    if settings.requeue:
        lines += [
            "# Slurm may stop the job and start it again, with the same id and output file.",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
        ]
    if settings.signal is not None:
        whom, prefix = ("this script", "B:") if script_requeues(settings) else ("every task", "")
        when = f"{seconds_after_signal(settings)} s before the time limit, or earlier"
        lines += [f"# Sent to {whom} {when}.", f"#SBATCH --signal={prefix}{settings.signal}"]
    if settings.restarts is not None:
        lines += [
            "# A node that fails does not end the job: supervise, below, continues without it.",
            f"# {counted(settings.nodes, 'node')} for the step, {spare} to spare.",
            "#SBATCH --no-kill",
        ]
    lines += [
        f"#SBATCH --nodes={settings.nodes + spare}",
        f"#SBATCH --ntasks-per-node={settings.tasks_per_node}",
    ]
    if settings.gpus_per_node is not None:
        lines += [
            "# All tasks of a node see all its GPUs; slurm_resolver gives each its share.",
            f"#SBATCH --gpus-per-node={settings.gpus_per_node}",
        ]
    if settings.cpus_per_task is not None:
        lines += [f"#SBATCH --cpus-per-task={settings.cpus_per_task}"]
    return [
        *lines,
        "# Slurm ends the job after this time. The shorter it is, the sooner it may start.",
        f"#SBATCH --time={settings.time}",
    ]


_ENVIRONMENT = r"""set -eo pipefail

# Replace this by what puts the right python and slurm-resolver first in PATH:
# source ~/venv/bin/activate  # or: module load TensorFlow

set -u  # only here: such scripts may use variables that are not set
export PYTHONUNBUFFERED=1  # what Python prints appears in the output at once
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-1}  # 0 shows all notes
# quiet COMMAND: removes the notes that TensorFlow 2.21 writes before it reads that variable.
quiet() {
    [ "$TF_CPP_MIN_LOG_LEVEL" != 0 ] || { "$@"; return; }
    local notes='absl::InitializeLog\(\)|\] (oneDNN custom|Could not find cuda)'
    # Only standard error passes the filter, which ignores SIGTERM, as it must not end first.
    { "$@" 2>&1 1>&3 | (trap '' TERM; exec sed -uE "/$notes/d") >&2; } 3>&1
}"""


def _step(settings: BatchSettings) -> List[str]:
    words = ["srun", "--label"]
    lines = ["# The options of all steps. --label: the rank before each line of output."]
    if settings.nodes > 1:
        words.append(f"--distribution=plane={settings.tasks_per_node}")
        lines.append("# --distribution: ranks in the order of the nodes, whatever the topology is.")
    if settings.cpus_per_task is not None:
        words.append(f"--cpus-per-task={settings.cpus_per_task}")
        lines.append("# --cpus-per-task: srun does not get it from the batch job.")
    return [*lines, f"step=({' '.join(words)})"]


def _end_job(settings: BatchSettings) -> str:
    name = (settings.signal or "").partition("@")[0]
    return f"""\
# Under ParameterServerStrategy nothing saves at the signal: the training continues from
# the last save of BackupAndResume. So only this script gets it, and requeues the job.
end_job() {{  # with the exit status of a step
    trap : {name}  # one that comes now changes nothing any more
    slurm-resolver requeue --max-restarts 100 "$1"  # also at each time limit
    exit "$?"
}}
trap 'end_job {REQUEUE_STATUS}' {name}"""


def _preflight(settings: BatchSettings) -> str:
    jobs = settings.jobs or {}
    options = "--timeout 120"
    if jobs and (-1 in jobs.values() or not settings.spare_nodes):
        # With spare nodes the checks have more tasks than the training.
        options += " --jobs " + ",".join(f"{name}={number}" for name, number in jobs.items())
    end = ' || end_job "$?"' if script_requeues(settings) else ""
    return f"""\
# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a
# name that does not resolve, a port that is taken or cannot be reached.
"${{step[@]}}" --kill-on-bad-exit=1 \\
    slurm-resolver check {options}{end}"""


def _training(settings: BatchSettings) -> List[str]:
    kill = "--kill-on-bad-exit=1"
    end = ""
    after = []
    lines = ["# --kill-on-bad-exit: else the other tasks wait for one that has failed."]
    if script_requeues(settings):
        lines += ["# In the background, as bash heeds a signal at once only while it waits."]
        end = " &"
        after = ["status=0", "wait $! || status=$?", 'end_job "$status"']
    elif settings.requeue:
        seconds = seconds_after_signal(settings)
        kill = f"--kill-on-bad-exit=0 --wait={seconds}"
        end = " || status=$?"
        lines = ["status=0", _WHY_WAIT.format(status=REQUEUE_STATUS, seconds=seconds)]
        why = f"# Requeues the job after exit status {REQUEUE_STATUS}."
        after = ["", why, 'slurm-resolver requeue --max-restarts 10 "$status"']
    start = "quiet "
    if settings.restarts is not None:
        lines += [
            "# supervise: starts the step again, on nodes that are healthy, when a task or a node",
            "# has failed, and says why. It ends the other tasks of one that has failed.",
        ]
        options = f"--restarts {settings.restarts}"
        if settings.requeue:  # no start that the signal before the time limit would interrupt
            least_time = seconds_after_signal(settings) + SIGNAL_EARLY_SECONDS
            options += f" --requeue --least-time {least_time}"
        options += f" \\\n    --nodes {settings.nodes}"
        if settings.min_nodes is not None:
            options += f" --min-nodes {settings.min_nodes}"
        options += f" --ntasks-per-node {settings.tasks_per_node}"
        start += f"slurm-resolver supervise {options} -- \\\n    "
    if settings.jobs:
        lines += ["# The program, or slurm-resolver exec --jobs, has to ask for the same jobs:"]
        lines += [f"#   SlurmClusterResolver({json.dumps(dict(settings.jobs))})"]
    run = " ".join(shlex.quote(word) for word in settings.command)
    if "'" in run:
        lines += ["# shellcheck disable=SC1003,SC2016,SC2088  # these quotes keep the words as is"]
    lines += [f'{start}"${{step[@]}}" {kill} \\', f'    {run} "$@"{end}']
    return lines + after


_WHY_WAIT = """\
# A task that gets the signal saves, and requeues the job with scontrol. Where there is none
# (in a container) it ends with exit status {status}, and the lines below requeue the job.
# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the status into
# 143. --wait ends them {seconds} s after the first task has ended, whatever its status is."""
