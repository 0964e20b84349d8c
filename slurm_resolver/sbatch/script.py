"""The text of a batch file for a training, with comments: one function for each part."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import List, Sequence

from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.sbatch.settings import (
    SIGNAL_EARLY_SECONDS,
    BatchSettings,
    check_settings,
    job_signal,
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
    check_settings(settings)
    parts = [*_directive_lines(settings), "", *_environment(settings), "", *_step(settings)]
    if script_requeues(settings):
        parts += ["", _end_job(settings)]
    if settings.check:
        parts += ["", _preflight(settings)]
    return "\n".join([*parts, "", *_training(settings), ""])


def _directive_lines(settings: BatchSettings) -> List[str]:
    signal = job_signal(settings)
    values = settings._replace(
        job_name=settings.job_name or _default_job_name(settings.command),
        nodes=settings.nodes + (settings.spare_nodes or 0),
        signal=f"B:{signal}" if script_requeues(settings) else signal,
    )
    lines = [
        "#!/bin/bash",
        f"# Made by slurm-resolver sbatch {__version__}. Submit it with sbatch; arguments after",
        "# the file's name are passed on to the program.",
        *_directives(values, "job_name", "array"),
        f"#SBATCH --output={'%x-%j.out' if settings.array is None else '%x-%A_%a.out'}",
    ]
    if settings.requeue:
        lines += [
            "# Slurm may stop the job and start it again, with the same id and output file.",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
        ]
    if signal is not None:
        whom = "this script" if script_requeues(settings) else "every task"
        when = f"{seconds_after_signal(settings)} s before the time limit, or earlier"
        lines += [f"# Sent to {whom} {when}.", *_directives(values, "signal")]
    if settings.ps_nodes is not None:
        lines += [f"# Component 0: the workers ({settings.nodes * settings.tasks_per_node})."]
    if settings.restarts is not None:
        spare = settings.spare_nodes or 0
        lines += [
            "# A node that fails does not end the job: supervise, below, continues without it.",
            f"# {counted(settings.nodes, 'node')} for the step, {spare} to spare.",
            "#SBATCH --no-kill",
        ]
    lines += _directives(values, "nodes")
    lines += [f"#SBATCH --ntasks-per-node={settings.tasks_per_node}"]
    if settings.gpus_per_node:
        lines += ["# All tasks of a node see all its GPUs; slurm_resolver gives each its share."]
    lines += [*_directives(values, "gpus_per_node"), *_resources(values)]
    if settings.ps_nodes is not None:
        servers = (settings.jobs or {})["ps"]
        partition = settings.ps_partition or settings.partition
        values = values._replace(nodes=settings.ps_nodes, partition=partition)
        lines += [
            _BLOCK_DISTRIBUTION,
            "#SBATCH hetjob",
            f"# Component 1: the chief and the parameter servers ({servers}), without GPUs.",
            *_directives(values, "nodes"),
            f"#SBATCH --ntasks={servers + 1}",
            *_directives(values, "requeue", *(() if script_requeues(settings) else ("signal",))),
            *_resources(values),
            _BLOCK_DISTRIBUTION,
        ]
    return lines


_BLOCK_DISTRIBUTION = "#SBATCH --distribution=block  # no variable shows a step what the default is"


def _resources(settings: BatchSettings) -> List[str]:
    why = "# Slurm ends the job after this time. The shorter it is, the sooner it may start."
    after = ("time", "partition", "account", "qos", "constraint")
    before = _directives(settings, "cpus_per_task", "mem", "exclusive")
    return [*before, why, *_directives(settings, *after)]


def _directives(settings: BatchSettings, *names: str) -> List[str]:
    """Returns the directives for those of these settings that are given."""
    options = ((name.replace("_", "-"), getattr(settings, name)) for name in names)
    return [
        f"#SBATCH --{option}" + ("" if value is True else f"={directive_word(str(value))}")
        for option, value in options
        if value is not None and value is not False
    ]


def directive_word(text: str) -> str:
    """Returns the text as sbatch reads it from an #SBATCH line, where only backslashes escape."""
    if re.fullmatch(r"[\w./+:@%,=&|*()\[\]-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _default_job_name(command: Sequence[str]) -> str:
    """Returns the name of the Python script, or of the program."""
    scripts = [word for word in command if word.endswith(".py")]
    name = Path((scripts or list(command))[0]).name
    return re.sub(r"[^\w.+-]", "_", name.replace(".py", ""), flags=re.ASCII).lstrip("-") or "job"


def _environment(settings: BatchSettings) -> List[str]:
    lines = [
        "# Replace this by what puts the right python and slurm-resolver first in PATH:",
        "# source ~/venv/bin/activate  # or: module load TensorFlow",
    ]
    if settings.env_setup:
        given = [f"# shellcheck source=/dev/null\n{line}" for line in settings.env_setup]
        lines = ["set +u  # for scripts that use variables which are not set", *given, "set -u"]
    return ["set -euo pipefail", "", *lines, "", _OUTPUT]


_OUTPUT = r"""export PYTHONUNBUFFERED=1  # what Python prints appears in the output at once
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
    if settings.ps_nodes is not None:
        words.append('"--het-group=0,1"')
        lines.append("# --het-group: one step over both components.")
    elif settings.nodes > 1:
        words.append(f"--distribution=plane={settings.tasks_per_node}")
        lines.append("# --distribution: ranks in the order of the nodes, whatever the topology is.")
    if settings.cpus_per_task is not None:
        words.append(f"--cpus-per-task={settings.cpus_per_task}")
        lines.append("# --cpus-per-task: srun does not get it from the batch job.")
    return [*lines, f"step=({' '.join(words)})"]


def _cluster_options(settings: BatchSettings) -> str:
    options = ""
    if settings.jobs:
        options += " --jobs " + ",".join(f"{name}={n}" for name, n in settings.jobs.items())
    if settings.ps_nodes is not None:
        options += " --het-groups " + ",".join(f"{name}={n}" for name, n in _HET_GROUPS.items())
    return options


# The workers first: else Slurm might give the nodes with GPUs to a component that needs none.
_HET_GROUPS = {"chief": 1, "ps": 1, "worker": 0}


def _end_job(settings: BatchSettings) -> str:
    name = (job_signal(settings) or "").partition("@")[0]
    return f"""\
# Under ParameterServerStrategy nothing saves at the signal: the training continues from
# the last save of BackupAndResume. So only this script gets it, and requeues the job.
end_job() {{  # with the exit status of a step
    trap : {name}  # one that comes now changes nothing any more
    {_requeue(settings)} "$1"
    exit "$?"
}}
trap 'end_job {REQUEUE_STATUS}' {name}"""


def _requeue(settings: BatchSettings) -> str:
    # with parameter servers also at each time limit
    most = settings.max_restarts or (100 if script_requeues(settings) else 10)
    return f"slurm-resolver requeue --max-restarts {most}"


def _preflight(settings: BatchSettings) -> str:
    # With spare nodes the checks have more tasks than the training.
    fits = not settings.spare_nodes or -1 in (settings.jobs or {}).values()
    options = f"--timeout {settings.wait}{_cluster_options(settings) if fits else ''}"
    end = ' || end_job "$?"' if script_requeues(settings) else ""
    return f"""\
# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a
# name that does not resolve, a port that is taken or cannot be reached.
"${{step[@]}}" --kill-on-bad-exit=1 \\
    slurm-resolver check {options}{end}"""


def _training(settings: BatchSettings) -> List[str]:
    kill, end, after = "--kill-on-bad-exit=1", "", []
    lines = ["# --kill-on-bad-exit: else the other tasks wait for one that has failed."]
    if script_requeues(settings):
        lines += ["# In the background, as bash heeds a signal at once only while it waits."]
        end, after = " &", ["status=0", "wait $! || status=$?", 'end_job "$status"']
    elif settings.requeue:
        seconds = seconds_after_signal(settings)
        kill, end = f"--kill-on-bad-exit=0 --wait={seconds}", " || status=$?"
        lines = ["status=0", _WHY_WAIT.format(status=REQUEUE_STATUS, seconds=seconds)]
        why = f"# Requeues the job after exit status {REQUEUE_STATUS}."
        after = ["", why, f'{_requeue(settings)} "$status"']
    start, more = "quiet ", ""
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
    if settings.exec:
        lines += [
            "# exec sets TF_CONFIG and the task's GPUs, waits for the other tasks, and becomes the",
            "# program.",
        ]
        options = f"--wait {settings.wait}{_cluster_options(settings)}"
        more = f"\n    slurm-resolver exec {options} -- \\"
    elif settings.jobs:
        arguments = json.dumps(dict(settings.jobs))
        if settings.ps_nodes is not None:
            arguments += f", het_groups={json.dumps(_HET_GROUPS)}"
        lines += ["# The script has to ask for the same jobs:"]
        lines += [f"#   SlurmClusterResolver({arguments})"]
    run = " ".join(shlex.quote(word) for word in settings.command)
    if "'" in run:
        lines += ["# shellcheck disable=SC1003,SC2016,SC2088  # these quotes keep the words as is"]
    lines += [f'{start}"${{step[@]}}" {kill} \\{more}', f'    {run} "$@"{end}']
    return lines + after


_WHY_WAIT = """\
# A task that gets the signal saves, and requeues the job with scontrol. Where there is none
# (in a container) it ends with exit status {status}, and the lines below requeue the job.
# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the status into
# 143. --wait ends them {seconds} s after the first task has ended, whatever its status is."""
