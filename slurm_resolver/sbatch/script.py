"""The text of a batch file for a training, with comments."""

from __future__ import annotations

import re
import shlex

from slurm_resolver.sbatch.settings import DEFAULT_SIGNAL, BatchSettings, derive_values
from slurm_resolver.signals import REQUEUE_STATUS
from slurm_resolver.version import __version__

# «name: text» is there if the value of that name is not empty or 0; ‹name› is the value. A line's
# end after the colon, or after a part, is not in the file.
_PART = re.compile(r"«(\w+):\n?([^«»]*)»\n?")
_VALUE = re.compile(r"‹(\w+)›")


def batch_file(settings: BatchSettings) -> str:
    """Returns the file's text; the same settings give the same text.

    Raises:
        LaunchError: for a value that sbatch or srun would refuse, or read as something else.
    """
    if settings.requeue and settings.signal is None:
        settings = settings._replace(signal=DEFAULT_SIGNAL)
    values = {
        **settings._asdict(),
        **derive_values(settings),
        "signal_name": (settings.signal or "").partition("@")[0],
        "version": __version__,
        "status": REQUEUE_STATUS,
        "run": " ".join(map(shlex.quote, settings.command)),
    }
    text = _FILE
    while "«" in text:  # from the innermost parts on
        text = _PART.sub(lambda part: part[2] if values[part[1]] else "", text)
    return _VALUE.sub(lambda value: str(values[value[1]]), text)


_FILE = r"""#!/bin/bash
# Made by slurm-resolver sbatch ‹version›. Submit it with sbatch; arguments after
# the file's name are passed on to the program. Add what your site needs as further
# #SBATCH lines, or before the file's name: sbatch --partition=gpu --mem=64G FILE
#SBATCH --output=%x-%j.out
«requeue:
# Slurm may stop the job and start it again, with the same id and output file.
#SBATCH --requeue
»
«signal:
#SBATCH --open-mode=append
# Sent to «by_script:this script»«to_tasks:every task»
 ‹signal_seconds› s before the time limit, or earlier.
#SBATCH --signal=«by_script:B:»‹signal›
»
«restarts:
# A node that fails does not end the job: supervise, below, continues without it if ‹least_nodes›
# or more nodes are healthy. The step needs ‹nodes›; ‹spare_nodes› to spare.
#SBATCH --no-kill
»
#SBATCH --nodes=‹all_nodes›
#SBATCH --ntasks-per-node=‹tasks_per_node›
«gpus_per_node:
# All tasks of a node see all its GPUs; slurm_resolver gives each its share.
#SBATCH --gpus-per-node=‹gpus_per_node›
»
«cpus_per_task:
#SBATCH --cpus-per-task=‹cpus_per_task›
»
# Slurm ends the job after this time. The shorter the time, the sooner the job may start.
#SBATCH --time=‹time›

set -eo pipefail

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
}

«several_tasks:
# Without munge, the tasks recognize each other by a secret, which admits no other user.
# Only this user and root can read it in the environment of a process.
munge=${SLURM_RESOLVER_MUNGE_SOCKET:-/run/munge/munge.socket.2}
if ! command -v unmunge >/dev/null || [ ! -S "$munge" ]; then
    : "${SLURM_RESOLVER_SECRET:=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')}"
    export SLURM_RESOLVER_SECRET
fi

»
# The options of all steps. --label: the rank before each line of output.
«several_nodes:
# --distribution: neighbouring ranks share a node, or a block of Slurm 26.05's topology.
»
«cpus_per_task:
# --cpus-per-task: srun of Slurm 22.05 to 23.02 does not get it from the batch job.
»
step=(srun --label«several_nodes: --distribution=block»
«cpus_per_task: --cpus-per-task=‹cpus_per_task›»
)
«by_script:

# At a signal to all tasks, workers and parameter servers end before the chief can save. So
# only this script gets it, and requeues the job. The training continues from the last save.
end_job() {  # with the exit status of a step
    trap : ‹signal_name›  # from now on, another one has no effect
    slurm-resolver requeue --max-restarts 100 "$1"  # also at each time limit
    exit "$?"
}
trap 'end_job ‹status›' ‹signal_name›
»
«check:

# Takes a second, and finds what TensorFlow would silently wait for: a missing task, a
# name that does not resolve, a port that is taken or cannot be reached.
«check_restarts:
# supervise: continues without a node that is dead already.
slurm-resolver supervise --restarts ‹check_restarts› --watch 0 \
    --nodes ‹all_nodes› --min-nodes ‹least_nodes› --ntasks-per-node ‹tasks_per_node› -- \
    »
"${step[@]}" --kill-on-bad-exit=1 \
    slurm-resolver check --timeout 120«ps: --jobs chief=1,ps=‹ps›,worker=-1»
«by_script: || end_job "$?"»

»

«by_tasks:
status=0
# With BackupAndResume, ResumableLoop or termination_config, the tasks save at the signal,
# and one requeues the job with scontrol; without them, the signal ends the tasks. Where
# there is no scontrol (in a container), the tasks end with exit status ‹status› after the
# save, and the lines below requeue the job.
# --kill-on-bad-exit=1 would end the other tasks while they save, and turn the status into
# 143. --wait ends them ‹signal_seconds› s after the first task has ended, whatever its status is.
»
«ends_all:
# --kill-on-bad-exit: otherwise the other tasks wait for one that has failed.
»
«by_script:
# In the background, because bash handles a signal at once only while it waits.
»
«restarts:
# supervise: starts the step again, on nodes that are healthy, when a task or a node
# has failed, and says why. If a task has failed, it ends the others.
»
«ps:
# The program, or slurm-resolver exec --jobs, has to ask for the same jobs:
#   SlurmClusterResolver({'chief': 1, 'ps': ‹ps›, 'worker': -1})
»
quiet «restarts:
slurm-resolver supervise --restarts ‹restarts›«requeue: --requeue --least-time ‹least_time›»
 \
    --nodes ‹nodes›«min_nodes: --min-nodes ‹min_nodes›» --ntasks-per-node ‹tasks_per_node› -- \
    »
"${step[@]}" --kill-on-bad-exit=«by_tasks:0 --wait=‹signal_seconds›»«ends_all:1» \
    ‹run› "$@"«by_tasks: || status=$?

# Requeues the job after exit status ‹status›, or if it failed while Slurm preempted it.
slurm-resolver requeue --max-restarts 100 "$status"»«by_script: &
status=0
wait $! || status=$?
end_job "$status"»

"""
