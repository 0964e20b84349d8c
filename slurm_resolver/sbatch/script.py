"""The text of a batch file for a training, as this project recommends it, with the reasons.

The file has up to six parts, and one function makes each: the directives for sbatch, the
environment, the options of every step, what requeues the job, the preflight, and the training.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import List, Optional, Sequence

from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.sbatch.requeue_lines import end_job_lines, requeue_lines
from slurm_resolver.sbatch.settings import (
    SIGNAL_EARLY_SECONDS,
    BatchSettings,
    all_nodes,
    all_ps_nodes,
    check_settings,
    has_servers,
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
    parts = [_all_directives(settings), _environment(settings), _step_options(settings)]
    if script_requeues(settings):
        parts.append(end_job_lines(settings))
    if settings.check:
        parts.append(_preflight(settings))
    parts.append(_training(settings))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _all_directives(settings: BatchSettings) -> List[str]:
    tasks = settings.nodes * settings.tasks_per_node
    array = settings.array is not None
    lines = [
        "#!/bin/bash",
        f"# Made by slurm-resolver sbatch {__version__}. Submit it with sbatch; arguments after",
        "# the file's name are passed on to the program.",
        *_directives("job-name", settings.job_name or _default_job_name(settings.command)),
    ]
    if array:
        lines += _directives("array", settings.array)
    lines += _directives("output", "%x-%A_%a.out" if array else "%x-%j.out")
    if settings.requeue:
        lines += [
            "# Slurm may stop the job and start it again, with the same id and output file.",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
        ]
    elif settings.restarts is not None and settings.ps_nodes is not None:
        lines += [_NOT_IN_PARTS, "#SBATCH --no-requeue"]
    signal = job_signal(settings)
    if signal is not None:
        whom = "every task"
        if script_requeues(settings):
            whom, signal = "this script", f"B:{signal}"
        seconds = seconds_after_signal(settings)
        lines += [
            f"# Sent to {whom} {seconds} s before the time limit, or earlier.",
            *_directives("signal", signal),
        ]
    if settings.ps_nodes is not None:
        lines += [f"# Component 0: the workers ({tasks})."]
    if settings.restarts is not None:
        lines += _node_failures(settings)
    lines += _directives("nodes", all_nodes(settings))
    lines += _directives("segment", settings.segment)
    lines += _directives("ntasks-per-node", settings.tasks_per_node)
    if settings.gpus_per_node is not None:
        lines += _gpu_directives(settings)
    lines += _resources(settings, settings.partition)
    if settings.ps_nodes is not None:
        servers = (settings.jobs or {})["ps"]
        lines += [
            _BLOCK_DISTRIBUTION,
            "#SBATCH hetjob",
            f"# Component 1: the chief and the parameter servers ({servers}), without GPUs.",
            *(_node_failures(settings, servers=True) if settings.restarts is not None else []),
            *_directives("nodes", all_ps_nodes(settings)),
            *_server_tasks(settings, servers + 1),
            *(["#SBATCH --requeue"] if settings.requeue else []),
            *(["#SBATCH --no-requeue"] if "#SBATCH --no-requeue" in lines else []),
            *([] if script_requeues(settings) else _directives("signal", signal)),
            *_resources(settings, settings.ps_partition or settings.partition),
            _BLOCK_DISTRIBUTION,
        ]
    return lines


def _node_failures(settings: BatchSettings, servers: bool = False) -> List[str]:
    lines = ["# A node that fails does not end the job: supervise, below, goes on without it."]
    nodes, spare = settings.nodes, settings.spare_nodes
    if servers:
        lines, nodes, spare = [], settings.ps_nodes or 0, settings.ps_spare_nodes
    if spare:
        lines += [f"# {counted(nodes, 'node')} for the step, {spare} to spare."]
    return [*lines, "#SBATCH --no-kill"]


def _server_tasks(settings: BatchSettings, tasks: int) -> List[str]:
    """Returns how many tasks there are: with spare nodes on each, as there may be more nodes."""
    if not settings.ps_spare_nodes:
        return _directives("ntasks", tasks)
    return _directives("ntasks-per-node", -(-tasks // (settings.ps_nodes or 1)))


_NOT_IN_PARTS = "# Else Slurm may requeue one component alone, when all its nodes have failed."
_BLOCK_DISTRIBUTION = "#SBATCH --distribution=block  # no variable tells a step what the default is"


def _resources(settings: BatchSettings, partition: Optional[str]) -> List[str]:
    """Returns what every component has to ask for."""
    return [
        *_directives("cpus-per-task", settings.cpus_per_task),
        *_directives("mem", settings.mem),
        *(["#SBATCH --exclusive"] if settings.exclusive else []),
        "# Slurm ends the job after this time. The shorter it is, the sooner the job may start.",
        *_directives("time", settings.time),
        *_directives("partition", partition),
        *_directives("account", settings.account),
        *_directives("qos", settings.qos),
        *_directives("constraint", settings.constraint),
    ]


def _gpu_directives(settings: BatchSettings) -> List[str]:
    count = int((settings.gpus_per_node or "").rpartition(":")[2])
    if settings.tasks_per_node == 1:
        why = "A task that uses GPUs takes all of its node."
    elif count < settings.tasks_per_node and not settings.jobs:
        why = f"{settings.tasks_per_node} tasks share {count} GPUs: several tasks use the same one."
    else:
        why = "All tasks of a node see all its GPUs; slurm_resolver gives each its share."
    return [f"# {why}", *_directives("gpus-per-node", settings.gpus_per_node)]


def _directives(option: str, value: object) -> List[str]:
    return [] if value is None else [f"#SBATCH --{option}={directive_word(str(value))}"]


def directive_word(text: str) -> str:
    """Returns the text as sbatch reads it back from an #SBATCH line.

    There a word may stand in either kind of quotes, a backslash escapes in both, and a # outside
    quotes starts a comment. Nothing is expanded.
    """
    if re.fullmatch(r"[\w./+:@%,=&|*()\[\]-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def shell_word(text: str) -> str:
    """Returns the text as one word of bash, on one line."""
    if not any(ord(char) < 32 or ord(char) == 127 or "\ud800" <= char <= "\udfff" for char in text):
        return shlex.quote(text)
    # sbatch refuses files with a carriage return, and bytes that are not text cannot be printed.
    quoted = ""
    for char in text:
        if char in "\\'":
            quoted += "\\" + char
        elif char.isprintable():
            quoted += char
        else:
            quoted += "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
    return f"$'{quoted}'"


def _default_job_name(command: Sequence[str]) -> str:
    """Returns the script's name, or the program's."""
    scripts = [word for word in command if word.endswith(".py")]
    name = (scripts or list(command))[0].rstrip("/").rpartition("/")[2]
    name = name[: -len(".py")] if scripts else name
    return re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII).lstrip("-") or "job"


def _environment(settings: BatchSettings) -> List[str]:
    # one line for each module, so that an error names it
    lines = [f"module load {shell_word(module)}" for module in settings.modules]
    for line in settings.env_setup:
        lines += ["# shellcheck source=/dev/null", line]
    if lines:
        why = "# these scripts often use variables that are not set"
        lines = [f"set +u  {why}", *lines, "set -u"]
    else:
        lines = [
            "# Replace this by what puts the right python and slurm-resolver first in PATH:",
            "# source ~/venv/bin/activate  # or: module load TensorFlow",
        ]
    return [
        "set -euo pipefail",
        "",
        *lines,
        "",
        "# What Python prints appears in the output at once, as with python -u.",
        "export PYTHONUNBUFFERED=1",
    ]


def _step_options(settings: BatchSettings) -> List[str]:
    words = ["srun", "--label"]
    lines = ["# The options of all steps. --label: the rank before each line of output."]
    if settings.ps_nodes is not None:
        words.append('"--het-group=0,1"')
        lines.append("# --het-group: one step over both components.")
    if settings.cpus_per_task is not None:
        lines.append("# --cpus-per-task: srun does not get it from the batch job.")
        # a heterogeneous job has one such variable for each component; their values are the same
        heterogeneous = settings.ps_nodes is not None
        cpus = str(settings.cpus_per_task) if heterogeneous else '"$SLURM_CPUS_PER_TASK"'
        words.append(f"--cpus-per-task={cpus}")
    return [*lines, f"step=({' '.join(words)})"]


def _check_options(settings: BatchSettings) -> str:
    # with spare nodes there are more tasks in the checks than in the training
    fits = not settings.spare_nodes or -1 in (settings.jobs or {}).values()
    fits = fits and not settings.ps_spare_nodes
    return _cluster_options(settings) if fits else ""


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


def _preflight(settings: BatchSettings) -> List[str]:
    return [
        "# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a",
        "# name that does not resolve, a port that is taken or cannot be reached.",
        _SRUN_STEP.format("--kill-on-bad-exit=1"),
        f"    slurm-resolver check --timeout {settings.wait}{_check_options(settings)}"
        + (' || end_job "$?"' if script_requeues(settings) else ""),
    ]


_SRUN_STEP = '"${{step[@]}}" {} \\'


def _training(settings: BatchSettings) -> List[str]:
    words = [shell_word(word) for word in settings.command]
    lines = []
    run = []
    if settings.exec:
        lines += [
            "# exec sets TF_CONFIG and the task's GPUs, waits for the other tasks, and becomes the",
            "# program.",
        ]
        options = _cluster_options(settings)
        run = [f"    slurm-resolver exec --wait {settings.wait}{options} -- \\"]
    elif settings.jobs:
        arguments = json.dumps(dict(settings.jobs))
        if settings.ps_nodes is not None:
            arguments += f", het_groups={json.dumps(_HET_GROUPS)}"
        lines += [
            "# The script has to ask for the same jobs:",
            f"#   SlurmClusterResolver({arguments})",
        ]
    if any(word.startswith(("'", "$'")) for word in words):
        lines.append(
            "# shellcheck disable=SC1003,SC2016,SC2088  # these quotes keep the words unchanged"
        )
    run.append("    " + " ".join([*words, '"$@"']))
    why = "# --kill-on-bad-exit: else the other tasks wait for one that has failed."
    if not settings.requeue:
        return [why, *lines, *_step(settings, "--kill-on-bad-exit=1"), *run]
    if script_requeues(settings):
        run[-1] += " &"
        step = _step(settings, "--kill-on-bad-exit=1")
        return [why, _WHY_BACKGROUND, *lines, *step, *run, *_WAIT]
    if has_servers(settings):
        step = _step(settings, "--kill-on-bad-exit=1")
        run[-1] += " || status=$?"
        return ["status=0", *_WHY_SUPERVISED, *lines, *step, *run, "", *requeue_lines(settings)]
    seconds = seconds_after_signal(settings)
    why_wait = [line.format(status=REQUEUE_STATUS, seconds=seconds) for line in _WHY_WAIT]
    step = _step(settings, f"--kill-on-bad-exit=0 --wait={seconds}")
    run[-1] += " || status=$?"
    return ["status=0", *why_wait, *lines, *step, *run, "", *requeue_lines(settings)]


def _step(settings: BatchSettings, srun_options: str) -> List[str]:
    step = _SRUN_STEP.format(srun_options)
    if settings.restarts is None:
        return [step]
    options = [f"--restarts {settings.restarts}"]
    if settings.requeue:
        # no start that the signal before the time limit would find half made
        least_time = seconds_after_signal(settings) + SIGNAL_EARLY_SECONDS
        options.append(f"--requeue --least-time {least_time}")
    options.append(f"\\\n    --nodes {settings.nodes}")
    if settings.min_nodes is not None:
        options.append(f"--min-nodes {settings.min_nodes}")
    options.append(f"--ntasks-per-node {settings.tasks_per_node}")
    if settings.ps_nodes is not None:
        tasks = (settings.jobs or {})["ps"] + 1
        options.append(f"\\\n    --ps-nodes {settings.ps_nodes} --ps-tasks {tasks}")
    if settings.log_dir is not None:
        options.append(f"--log-dir {shell_word(settings.log_dir)}")
    lines = [
        "# supervise: starts the step again, on nodes that are healthy, when a task or a node has",
        "# failed, and says why.",
    ]
    if settings.requeue:
        lines += ["# It also ends the other tasks of one that fails without asking for a requeue."]
    return [*lines, f"slurm-resolver supervise {' '.join(options)} -- \\", f"    {step}"]


_WHY_BACKGROUND = "# In the background, as bash heeds a signal at once only while it waits."
_WAIT = ("status=0", "wait $! || status=$?", 'end_job "$status"')
_WHY_SUPERVISED = (
    "# Under ParameterServerStrategy nothing saves at the signal, which ends the tasks: supervise",
    "# then has the job requeued, and the training goes on from the last save of BackupAndResume.",
)
_WHY_WAIT = (
    "# A task that gets the signal saves, and requeues the job with scontrol. Where there is none",
    "# (in a container) it ends with exit status {status}, and the lines below requeue the job.",
    "# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the status into",
    "# 143. --wait ends them {seconds} s after the first task has ended, whatever its status is.",
)
