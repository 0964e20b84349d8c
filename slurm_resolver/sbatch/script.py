"""The text of a batch file for a training, with comments: one function for each part."""

from __future__ import annotations

import json
import re
import shlex
from typing import List, Sequence

from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.sbatch.settings import (
    SIGNAL_EARLY_SECONDS,
    BatchSettings,
    check_settings,
    job_signal,
    max_requeues,
    script_requeues,
    seconds_after_signal,
    signal_name,
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
    parts = [_all_directives(settings), _environment(settings), _step_options(settings)]
    if script_requeues(settings):
        parts.append(_end_job(settings))
    if settings.check:
        parts.append(_preflight(settings))
    parts.append(_training(settings))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _all_directives(settings: BatchSettings) -> List[str]:
    array = settings.array is not None
    lines = [
        "#!/bin/bash",
        f"# Made by slurm-resolver sbatch {__version__}. Submit it with sbatch; arguments after",
        "# the file's name are passed on to the program.",
        *_directives("job-name", settings.job_name or _default_job_name(settings.command)),
        *_directives("array", settings.array),
        *_directives("output", "%x-%A_%a.out" if array else "%x-%j.out"),
    ]
    if settings.requeue:
        lines += [
            "# Slurm may stop the job and start it again, with the same id and output file.",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
        ]
    signal = job_signal(settings)
    if signal is not None:
        whom, prefix = ("this script", "B:") if script_requeues(settings) else ("every task", "")
        seconds = seconds_after_signal(settings)
        lines += [
            f"# Sent to {whom} {seconds} s before the time limit, or earlier.",
            *_directives("signal", prefix + signal),
        ]
    if settings.ps_nodes is not None:
        lines += [f"# Component 0: the workers ({settings.nodes * settings.tasks_per_node})."]
    if settings.restarts is not None:
        spare = settings.spare_nodes or 0
        lines += [
            "# A node that fails does not end the job: supervise, below, continues without it.",
            f"# {counted(settings.nodes, 'node')} for the step, {spare} to spare.",
            "#SBATCH --no-kill",
        ]
    lines += [
        *_directives("nodes", settings.nodes + (settings.spare_nodes or 0)),
        *_directives("segment", settings.segment),
        *_directives("ntasks-per-node", settings.tasks_per_node),
    ]
    if settings.gpus_per_node:
        lines += ["# All tasks of a node see all its GPUs; slurm_resolver gives each its share."]
    lines += [*_directives("gpus-per-node", settings.gpus_per_node), *_resources(settings)]
    if settings.ps_nodes is not None:
        servers = (settings.jobs or {})["ps"]
        servers_on = settings.ps_partition or settings.partition
        lines += [
            _BLOCK_DISTRIBUTION,
            "#SBATCH hetjob",
            f"# Component 1: the chief and the parameter servers ({servers}), without GPUs.",
            *_directives("nodes", settings.ps_nodes),
            *_directives("ntasks", servers + 1),
            *(["#SBATCH --requeue"] if settings.requeue else []),
            *([] if script_requeues(settings) else _directives("signal", signal)),
            *_resources(settings._replace(partition=servers_on)),
            _BLOCK_DISTRIBUTION,
        ]
    return lines


_BLOCK_DISTRIBUTION = "#SBATCH --distribution=block  # no variable shows a step what the default is"


def _resources(settings: BatchSettings) -> List[str]:
    lines = _directives("cpus-per-task", settings.cpus_per_task)
    lines += _directives("mem", settings.mem)
    lines += ["#SBATCH --exclusive"] if settings.exclusive else []
    lines += ["# Slurm ends the job after this time. The shorter it is, the sooner it may start."]
    for name in ("time", "partition", "account", "qos", "constraint"):
        lines += _directives(name, getattr(settings, name))
    return lines


def _directives(option: str, value: object) -> List[str]:
    return [] if value is None else [f"#SBATCH --{option}={directive_word(str(value))}"]


def directive_word(text: str) -> str:
    """Returns the text as sbatch reads it from an #SBATCH line, where only backslashes escape."""
    if re.fullmatch(r"[\w./+:@%,=&|*()\[\]-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _default_job_name(command: Sequence[str]) -> str:
    """Returns the script's name, or the program's."""
    scripts = [word for word in command if word.endswith(".py")]
    name = (scripts or list(command))[0].rstrip("/").rpartition("/")[2]
    name = name[: -len(".py")] if scripts else name
    return re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII).lstrip("-") or "job"


def _environment(settings: BatchSettings) -> List[str]:
    lines = [
        "# Replace this by what puts the right python and slurm-resolver first in PATH:",
        "# source ~/venv/bin/activate  # or: module load TensorFlow",
    ]
    if settings.env_setup:
        given = [f"# shellcheck source=/dev/null\n{line}" for line in settings.env_setup]
        lines = ["set +u  # for scripts that use variables which are not set", *given, "set -u"]
    python = "export PYTHONUNBUFFERED=1  # what Python prints appears in the output at once"
    quiet = "export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-1}  # 0 shows all notes"
    return ["set -euo pipefail", "", *lines, "", python, quiet]


def _step_options(settings: BatchSettings) -> List[str]:
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


# The workers first: Slurm chooses nodes for one component after the other, and might give the nodes
# with GPUs to a component that needs none.
_HET_GROUPS = {"chief": 1, "ps": 1, "worker": 0}


def _end_job(settings: BatchSettings) -> List[str]:
    name = signal_name(settings)
    return [
        "# Under ParameterServerStrategy nothing saves at the signal: the training continues from",
        "# the last save of BackupAndResume. So only this script gets it, and requeues the job.",
        "end_job() {  # with the exit status of a step",
        f"    trap : {name}  # one that comes now changes nothing any more",
        f'    {_requeue(settings)} "$1"',
        '    exit "$?"',
        "}",
        f"trap 'end_job {REQUEUE_STATUS}' {name}",
    ]


def _requeue(settings: BatchSettings) -> str:
    return f"slurm-resolver requeue --max-restarts {max_requeues(settings)}"


def _preflight(settings: BatchSettings) -> List[str]:
    # With spare nodes the checks have more tasks than the training.
    fits = not settings.spare_nodes or -1 in (settings.jobs or {}).values()
    options = _cluster_options(settings) if fits else ""
    return [
        "# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a",
        "# name that does not resolve, a port that is taken or cannot be reached.",
        '"${step[@]}" --kill-on-bad-exit=1 \\',
        f"    slurm-resolver check --timeout {settings.wait}{options}"
        + (' || end_job "$?"' if script_requeues(settings) else ""),
    ]


def _training(settings: BatchSettings) -> List[str]:
    srun = "--kill-on-bad-exit=1"
    lines = ["# --kill-on-bad-exit: else the other tasks wait for one that has failed."]
    end, after = " 2>&1 | quiet", []
    if script_requeues(settings):
        lines += ["# In the background, as bash heeds a signal at once only while it waits."]
        end, after = " &", ["status=0", "wait $! || status=$?", 'end_job "$status"']
    elif settings.requeue:
        seconds = seconds_after_signal(settings)
        srun = f"--kill-on-bad-exit=0 --wait={seconds}"
        lines = ["status=0", _WHY_WAIT.format(status=REQUEUE_STATUS, seconds=seconds)]
        why = f"# Requeues the job after exit status {REQUEUE_STATUS}."
        end += " || status=$?"
        after = ["", why, f'{_requeue(settings)} "$status"']
    if end != " &":
        lines = [_QUIET, *lines]
    step = f'"${{step[@]}}" {srun} \\'
    if settings.restarts is not None:
        step = _supervised(settings, step)
    run = " ".join(shlex.quote(word) for word in settings.command) + f' "$@"{end}'
    if settings.exec:
        lines += [
            "# exec sets TF_CONFIG and the task's GPUs, waits for the other tasks, and becomes the",
            "# program.",
        ]
        options = f"--wait {settings.wait}{_cluster_options(settings)}"
        step += f"\n    slurm-resolver exec {options} -- \\"
    elif settings.jobs:
        arguments = json.dumps(dict(settings.jobs))
        if settings.ps_nodes is not None:
            arguments += f", het_groups={json.dumps(_HET_GROUPS)}"
        lines += [
            "# The script has to ask for the same jobs:",
            f"#   SlurmClusterResolver({arguments})",
        ]
    if "'" in run:
        lines += ["# shellcheck disable=SC1003,SC2016,SC2088  # these quotes keep the words as is"]
    return [*lines, step, f"    {run}", *after]


def _supervised(settings: BatchSettings, step: str) -> str:
    options = f"--restarts {settings.restarts}"
    if settings.requeue:  # no start that the signal before the time limit would interrupt
        least_time = seconds_after_signal(settings) + SIGNAL_EARLY_SECONDS
        options += f" --requeue --least-time {least_time}"
    options += f" \\\n    --nodes {settings.nodes}"
    if settings.min_nodes is not None:
        options += f" --min-nodes {settings.min_nodes}"
    options += f" --ntasks-per-node {settings.tasks_per_node}"
    return (
        "# supervise: starts the step again, on nodes that are healthy, when a task or a node has\n"
        "# failed, and says why. It ends the other tasks of one that has failed.\n"
        f"slurm-resolver supervise {options} -- \\\n    {step}"
    )


_QUIET = r"""# TensorFlow 2.21 writes these notes before it reads TF_CPP_MIN_LOG_LEVEL.
quiet() {
    [ "$TF_CPP_MIN_LOG_LEVEL" != 0 ] || exec cat
    trap '' TERM  # srun ends first
    exec sed -uE '/absl::InitializeLog\(\)|\] (oneDNN custom|Could not find cuda)/d'
}
"""

_WHY_WAIT = """\
# A task that gets the signal saves, and requeues the job with scontrol. Where there is none
# (in a container) it ends with exit status {status}, and the lines below requeue the job.
# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the status into
# 143. --wait ends them {seconds} s after the first task has ended, whatever its status is."""
