"""The text of a batch file for a training: what this project recommends, and why, line by line.

The file has five parts, each made by one function: the directives for sbatch, the environment, the
options of every step, the preflight, and the training.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import List, Optional, Sequence

from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.sbatch.settings import BatchSettings, check_settings, notice_of, signal_of
from slurm_resolver.version import __version__


def batch_file(settings: BatchSettings) -> str:
    """Returns the file's text; the same settings give the same text.

    Raises:
        LaunchError: for a value that sbatch or srun would not take, or take for something else.
        JobsError: where the jobs do not fit the tasks.
    """
    check_settings(settings)
    parts = [_heading(settings), _environment(settings), _steps(settings)]
    if settings.check:
        parts.append(_preflight(settings))
    parts.append(_training(settings))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _heading(settings: BatchSettings) -> List[str]:
    tasks = settings.nodes * settings.tasks_per_node
    array = settings.array is not None
    lines = [
        "#!/bin/bash",
        f"# Made by slurm-resolver sbatch {__version__}. Submit it with sbatch; what follows the",
        "# file's name there goes on to the program.",
        *_directives("job-name", settings.job_name or _name_of(settings.command)),
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
    signal = signal_of(settings)
    if signal is not None:
        lines += [
            f"# To every task, {notice_of(settings)} s before its time is over, or earlier.",
            *_directives("signal", signal),
        ]
    if settings.ps_nodes is not None:
        lines += [f"# Component 0: the workers ({tasks})."]
    lines += _directives("nodes", settings.nodes)
    lines += _directives("ntasks-per-node", settings.tasks_per_node)
    if settings.gpus_per_node is not None:
        lines += _gpu_directives(settings)
    lines += _resources(settings, settings.partition)
    if settings.ps_nodes is not None:
        servers = (settings.jobs or {})["ps"]
        lines += [
            _BLOCK,
            "#SBATCH hetjob",
            f"# Component 1: the chief and the parameter servers ({servers}), which need no GPU.",
            *_directives("nodes", settings.ps_nodes),
            *_directives("ntasks", servers + 1),
            *(["#SBATCH --requeue"] if settings.requeue else []),
            *_directives("signal", signal),
            *_resources(settings, settings.ps_partition or settings.partition),
            _BLOCK,
        ]
    return lines


_BLOCK = "#SBATCH --distribution=block  # said here, as no variable tells the default"


def _resources(settings: BatchSettings, partition: Optional[str]) -> List[str]:
    """What every component asks for by itself."""
    return [
        *_directives("cpus-per-task", settings.cpus_per_task),
        *_directives("mem", settings.mem),
        *(["#SBATCH --exclusive"] if settings.exclusive else []),
        "# Slurm ends the job after this time; the shorter, the sooner it may start.",
        *_directives("time", settings.time),
        *_directives("partition", partition),
        *_directives("account", settings.account),
        *_directives("qos", settings.qos),
        *_directives("constraint", settings.constraint),
    ]


def _gpu_directives(settings: BatchSettings) -> List[str]:
    count = int((settings.gpus_per_node or "").rpartition(":")[2])
    if settings.tasks_per_node == 1:
        why = "The task of a node that uses GPUs takes all of them."
    elif count < settings.tasks_per_node and not settings.jobs:
        why = f"{settings.tasks_per_node} tasks share {count}: a GPU serves several of them."
    else:
        why = "Slurm shows a node's GPUs to all its tasks; slurm_resolver shares them out."
    return [f"# {why}", *_directives("gpus-per-node", settings.gpus_per_node)]


def _directives(option: str, value: object) -> List[str]:
    return [] if value is None else [f"#SBATCH --{option}={directive_word(str(value))}"]


def directive_word(text: str) -> str:
    """Returns the text as sbatch reads it back from an #SBATCH line.

    There both kinds of quotes group, a backslash escapes in them as well, and an unquoted # starts
    a comment; nothing is expanded.
    """
    if re.fullmatch(r"[\w./+:@%,=&|*()\[\]-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def shell_word(text: str) -> str:
    """Returns the text as one word of bash, on one line."""
    if not any(ord(char) < 32 or ord(char) == 127 or "\ud800" <= char <= "\udfff" for char in text):
        return shlex.quote(text)
    # sbatch refuses files with a carriage return, and bytes that are no text cannot be printed.
    quoted = ""
    for char in text:
        if char in "\\'":
            quoted += "\\" + char
        elif char.isprintable():
            quoted += char
        else:
            quoted += "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))
    return f"$'{quoted}'"


def _name_of(command: Sequence[str]) -> str:
    """The script's name, else the program's."""
    scripts = [word for word in command if word.endswith(".py")]
    name = (scripts or list(command))[0].rstrip("/").rpartition("/")[2]
    name = name[: -len(".py")] if scripts else name
    return re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII).lstrip("-") or "job"


def _environment(settings: BatchSettings) -> List[str]:
    # `module load NAME`: one line a module, so that an error names it
    lines = [f"module load {shell_word(module)}" for module in settings.modules]
    for line in settings.env_setup:
        lines += ["# shellcheck source=/dev/null", line]
    if lines:
        why = "# the scripts behind these often use variables that are not set"
        lines = [f"set +u  {why}", *lines, "set -u"]
    else:
        lines = [
            "# Change this to whatever puts the right python and slurm-resolver first in PATH:",
            "# source ~/venv/bin/activate  # or: module load TensorFlow",
        ]
    return [
        "set -euo pipefail",
        "",
        *lines,
        "",
        "# What Python prints appears at once, as with python -u.",
        "export PYTHONUNBUFFERED=1",
    ]


def _steps(settings: BatchSettings) -> List[str]:
    words = ["srun", "--label"]
    lines = ["# What all steps have in common. --label: the rank before each line of output."]
    if settings.ps_nodes is not None:
        words.append('"--het-group=0,1"')
        lines.append("# --het-group: one step over both components.")
    if settings.cpus_per_task is not None:
        lines.append("# --cpus-per-task: srun does not take it over from the batch job.")
        # a heterogeneous job has one such variable a component, and here they are the same
        heterogeneous = settings.ps_nodes is not None
        cpus = str(settings.cpus_per_task) if heterogeneous else '"$SLURM_CPUS_PER_TASK"'
        words.append(f"--cpus-per-task={cpus}")
    return [*lines, f"step=({' '.join(words)})"]


def _cluster_options(settings: BatchSettings) -> str:
    options = ""
    if settings.jobs:
        options += " --jobs " + ",".join(f"{name}={n}" for name, n in settings.jobs.items())
    if settings.ps_nodes is not None:
        options += " --het-groups " + ",".join(f"{name}={n}" for name, n in _HET_GROUPS.items())
    return options


# The workers first: Slurm plans one component after the other, and would give the nodes with GPUs
# to a component that needs none.
_HET_GROUPS = {"chief": 1, "ps": 1, "worker": 0}


def _preflight(settings: BatchSettings) -> List[str]:
    return [
        "# A second that finds what TensorFlow would wait for without a word: a task that is not",
        "# there, a name that does not resolve, a port that is taken or cannot be reached.",
        _STEP.format("--kill-on-bad-exit=1"),
        f"    slurm-resolver check --timeout {settings.wait}{_cluster_options(settings)}",
    ]


_STEP = '"${{step[@]}}" {} \\'


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
            "# shellcheck disable=SC1003,SC2016,SC2088  # quoted so as to arrive unchanged"
        )
    run.append("    " + " ".join([*words, '"$@"']))
    if not settings.requeue:
        why = "# --kill-on-bad-exit: the others would wait for a task that has failed."
        return [why, *lines, _STEP.format("--kill-on-bad-exit=1"), *run]
    notice = notice_of(settings)
    why_wait = [line.format(status=REQUEUE_STATUS, notice=notice) for line in _BEFORE_REQUEUE]
    step = _STEP.format(f"--kill-on-bad-exit=0 --wait={notice}")
    run[-1] += " || status=$?"
    return ["status=0", *why_wait, *lines, step, *run, "", *_requeue(settings)]


_BEFORE_REQUEUE = (
    "# A task that got the signal saves, and asks to be continued: through scontrol, or, where the",
    "# tasks have none (containers), by ending with status {status}, for the requeue below. There",
    "# --kill-on-bad-exit would end the others while they save, and make the status 143: with",
    "# --wait they have {notice} s, from the end of the first task on, whatever its status is.",
)


def _requeue(settings: BatchSettings) -> List[str]:
    return [
        f'if [ "$status" -eq {REQUEUE_STATUS} ]; then',
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {settings.max_restarts} ]; then',
        f'        echo "not requeued: restarted {settings.max_restarts} times already" >&2',
        '        exit "$status"',
        "    fi",
        "    # The id of an array's last task is that of the whole array: name the task.",
        "    job=$SLURM_JOB_ID",
        '    if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then',
        "        job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
        "    fi",
        '    scontrol requeue "$job"',
        "    sleep 60  # Slurm ends this script meanwhile",
        "fi",
        'exit "$status"',
    ]
