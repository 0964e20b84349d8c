"""The text of a batch file for a training, with comments."""

from __future__ import annotations

import re
import shlex

from slurm_resolver.exit_status import REQUEUE_STATUS
from slurm_resolver.sbatch.settings import (
    DEFAULT_SIGNAL,
    SIGNAL_EARLY_SECONDS,
    BatchSettings,
    check_settings,
    seconds_after_signal,
)
from slurm_resolver.version import __version__

_MOST_RESTARTS = 3  # of the check, which may also fail for another reason


def batch_file(settings: BatchSettings) -> str:
    """Returns the file's text; the same settings give the same text.

    Raises:
        LaunchError: for a value that sbatch or srun would refuse, or read as something else.
    """
    if settings.requeue and settings.signal is None:
        settings = settings._replace(signal=DEFAULT_SIGNAL)
    check_settings(settings)
    # The batch file gets the signal and requeues the job, as parameter servers do not.
    by_script = settings.requeue and settings.ps is not None
    by_tasks = settings.requeue and not by_script
    seconds = seconds_after_signal(settings)
    spare = settings.spare_nodes or 0
    least = settings.min_nodes or settings.nodes
    run = " ".join(map(shlex.quote, settings.command))
    values = {
        **settings._asdict(),
        "": True,
        "script": by_script,
        "tasks": by_tasks,
        "nobody": not settings.requeue,
        "at_once": not by_tasks,
        "once": settings.restarts is None,
        "again": settings.restarts,
        "each": settings.tasks_per_node,
        "cpus": settings.cpus_per_task,
        "gpus": settings.gpus_per_node,
        "quotes": "'" in run,
        "version": __version__,
        "status": REQUEUE_STATUS,
        "receiver": "this script" if by_script else "every task",
        "signal_name": (settings.signal or "").partition("@")[0],
        "seconds": seconds,
        # Slurm may send the signal early: no start that it would interrupt.
        "left": seconds + SIGNAL_EARLY_SECONDS,
        "environment": _ENVIRONMENT,
        "spare": spare,
        "least": least,
        "may_fail": settings.check and min(spare + settings.nodes - least, _MOST_RESTARTS),
        "all_nodes": settings.nodes + spare,
        "several": settings.nodes * settings.tasks_per_node > 1,
        "block": settings.nodes > 1,
        "counts": f"chief=1,ps={settings.ps},worker=-1",
        "run": run,
    }
    text = ""
    for line in _FILE.splitlines(keepends=True):
        condition, _, rest = line.partition("|")
        if values[condition.strip()]:
            text += rest
    text = _OPTIONAL.sub(lambda found: found[2] if values[found[1]] else "", text)
    return re.sub(r"<(\w+)>", lambda field: str(values[field[1]]), text)


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

_OPTIONAL = re.compile(r"<(\w+):((?:[^<>]|<\w+>)*)>")
# A line is in the file if the value before it is not empty or False, and so is the text in
# <NAME:TEXT>. <NAME> becomes a value.
_FILE = """\
       |#!/bin/bash
       |# Made by slurm-resolver sbatch <version>. Submit it with sbatch; arguments after
       |# the file's name are passed on to the program. Add what your site needs as further
       |# #SBATCH lines, or before the file's name: sbatch --partition=gpu --mem=64G FILE
       |#SBATCH --output=%x-%j.out
requeue|# Slurm may stop the job and start it again, with the same id and output file.
requeue|#SBATCH --requeue
signal |#SBATCH --open-mode=append
signal |# Sent to <receiver> <seconds> s before the time limit, or earlier.
signal |#SBATCH --signal=<script:B:><signal>
again  |# A node that fails does not end the job: supervise, below, continues without it if <least>
again  |# or more nodes are healthy. The step needs <nodes>; <spare> to spare.
again  |#SBATCH --no-kill
       |#SBATCH --nodes=<all_nodes>
       |#SBATCH --ntasks-per-node=<each>
gpus   |# All tasks of a node see all its GPUs; slurm_resolver gives each its share.
gpus   |#SBATCH --gpus-per-node=<gpus>
cpus   |#SBATCH --cpus-per-task=<cpus>
       |# Slurm ends the job after this time. The shorter the time, the sooner the job may start.
       |#SBATCH --time=<time>
       |
       |<environment>
       |
several|# Without munge, the tasks recognize each other by a secret, which admits no other user.
several|# Only this user and root can read it in the environment of a process.
several|munge=${SLURM_RESOLVER_MUNGE_SOCKET:-/run/munge/munge.socket.2}
several|if ! command -v unmunge >/dev/null || [ ! -S "$munge" ]; then
several|    : "${SLURM_RESOLVER_SECRET:=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \\n')}"
several|    export SLURM_RESOLVER_SECRET
several|fi
several|
       |# The options of all steps. --label: the rank before each line of output.
block  |# --distribution: neighbouring ranks share a node, or a block of Slurm 26.05's topology.
cpus   |# --cpus-per-task: srun of Slurm 22.05 to 23.02 does not get it from the batch job.
       |step=(srun --label<block: --distribution=block><cpus: --cpus-per-task=<cpus>>)
script |
script |# At a signal to all tasks, workers and parameter servers end before the chief can save. So
script |# only this script gets it, and requeues the job. The training continues from the last save.
script |end_job() {  # with the exit status of a step
script |    trap : <signal_name>  # from now on, another one has no effect
script |    slurm-resolver requeue --max-restarts 100 "$1"  # also at each time limit
script |    exit "$?"
script |}
script |trap 'end_job <status>' <signal_name>
check  |
check  |# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a
check  |# name that does not resolve, a port that is taken or cannot be reached.
may_fail|# supervise: continues without a node that is dead already.
may_fail|slurm-resolver supervise --restarts <may_fail> --watch 0 \\
may_fail|    --nodes <all_nodes> --min-nodes <least> --ntasks-per-node <each> -- \\
check  |<may_fail:    >"${step[@]}" --kill-on-bad-exit=1 \\
check  |    slurm-resolver check --timeout 120<ps: --jobs <counts>><script: || end_job "$?">
       |
at_once|# --kill-on-bad-exit: otherwise the other tasks wait for one that has failed.
script |# In the background, because bash handles a signal at once only while it waits.
tasks  |status=0
tasks  |# With BackupAndResume, ResumableLoop or termination_config, the tasks save at the signal,
tasks  |# and one requeues the job with scontrol; without them, the signal ends the tasks. Where
tasks  |# there is no scontrol (in a container), the tasks end with exit status <status> after the
tasks  |# save, and the lines below requeue the job.
tasks  |# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the status into
tasks  |# 143. --wait ends them <seconds> s after the first task has ended, whatever its status is.
again  |# supervise: starts the step again, on nodes that are healthy, when a task or a node
again  |# has failed, and says why. If a task has failed, it ends the others.
ps     |# The program, or slurm-resolver exec --jobs, has to ask for the same jobs:
ps     |#   SlurmClusterResolver({'chief': 1, 'ps': <ps>, 'worker': -1})
quotes |# shellcheck disable=SC1003,SC2016,SC2088  # these quotes keep the words as is
again  |quiet slurm-resolver supervise --restarts <again><requeue: --requeue --least-time <left>> \\
again  |    --nodes <nodes><min_nodes: --min-nodes <min_nodes>> --ntasks-per-node <each> -- \\
again  |    "${step[@]}" --kill-on-bad-exit=<tasks:0 --wait=<seconds>><at_once:1> \\
once   |quiet "${step[@]}" --kill-on-bad-exit=<tasks:0 --wait=<seconds>><at_once:1> \\
script |    <run> "$@" &
tasks  |    <run> "$@" || status=$?
nobody |    <run> "$@"
script |status=0
script |wait $! || status=$?
script |end_job "$status"
tasks  |
tasks  |# Requeues the job after exit status <status>, or if it failed while Slurm preempted it.
tasks  |slurm-resolver requeue --max-restarts 10 "$status"
"""
