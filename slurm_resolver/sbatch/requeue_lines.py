"""What requeues the job in a batch file, unless Slurm does so itself.

A training that has saved at the signal asks for it by its exit status. One with parameter servers
saves nothing then: there the batch file gets the signal, and needs no task for it.
"""

from __future__ import annotations

from typing import List

from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.sbatch.settings import BatchSettings, max_requeues, signal_name

# The same rule as in slurm_resolver.preemption.preempted, for where no Python is.
_REQUEUED_BY_SLURM = (
    "# From 24.05 on Slurm itself requeues a job that it preempts, when this script ends in the",
    "# job's GraceTime. Requeued here as well, the job would start once too often.",
    "requeued_by_slurm() {",
    "    local cluster job mode=",
    '    cluster=$(scontrol show config) job=$(scontrol show job "$1")',
    '    [[ $job == *" Requeue=1 "*" PreemptTime="[0-9]* ]] || return 1',
    "    [[ $cluster =~ SLURM_VERSION[[:blank:]=]+([0-9]+)[.]([0-9]+) ]] || return 1",
    '    [ "${BASH_REMATCH[1]}${BASH_REMATCH[2]}" -ge 2405 ] || return 1',
    "    if [[ $cluster == *preempt/qos* && $job =~ QOS=([^[:space:]]+) ]]; then",
    '        mode=$(scontrol show assoc_mgr qos="${BASH_REMATCH[1]}" flags=qos)',
    "        [[ $mode == *PreemptMode=OFF* ]] && mode=$cluster",
    "    elif [[ $job =~ Partition=([^[:space:]]+) ]]; then",
    '        mode=$(scontrol show partition "${BASH_REMATCH[1]}")',
    "    fi",
    "    [[ $mode =~ PreemptMode[[:blank:]=]+[A-Z,]*REQUEUE ]]",
    "}",
    "",
)


_JOB = (
    "# The last task of an array has the array's own job id: requeue that task alone.",
    "job=$SLURM_JOB_ID",
    'if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then',
    "    job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
    "fi",
)


def requeue_lines(settings: BatchSettings) -> List[str]:
    """Returns the lines after the training, whose exit status is in `status`."""
    return [*_REQUEUED_BY_SLURM, *_JOB, *_requeue(settings)]


def end_job_lines(settings: BatchSettings) -> List[str]:
    """Returns the lines before the training where the signal is for the batch file alone.

    They define `end_job STATUS`, which ends the batch file, and call it at the signal.
    """
    name = signal_name(settings)
    return [
        "# Under ParameterServerStrategy nothing saves at the signal: the training goes on from",
        "# the last save of BackupAndResume. So this script alone gets it, and requeues the job,",
        "# whose tasks train until then.",
        "",
        *_REQUEUED_BY_SLURM,
        *_JOB,
        "",
        f"end_job() {{  # with an exit status; {REQUEUE_STATUS} requeues the job",
        "    local fields status=$1",
        f"    trap : {name}  # one that comes now changes nothing any more",
        '    if [ "$status" -ne 0 ]; then',
        '        fields=$(scontrol show job "$job") || exit "$status"',
        "        # One that is cancelled, or has been requeued already, runs no more.",
        '        [[ $fields =~ JobState=(RUNNING|SIGNALING) ]] || exit "$status"',
        "        # A job that is preempted has its tasks ended by SIGTERM: they have not failed.",
        f'        [[ $fields != *" PreemptTime="[0-9]* ]] || status={REQUEUE_STATUS}',
        "    fi",
        *(f"    {line}" for line in _requeue(settings)),
        "}",
        f"trap 'end_job {REQUEUE_STATUS}' {name}",
    ]


def _requeue(settings: BatchSettings) -> List[str]:
    """Returns the lines that requeue `job` where `status` asks for it, and exit."""
    most = max_requeues(settings)
    return [
        f'if [ "$status" -eq {REQUEUE_STATUS} ]; then',
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {most} ]; then',
        f'        echo "not requeued: restarted {most} times already" >&2',
        '        scontrol update JobId="$job" Requeue=0  # nor by Slurm itself',
        '    elif ! requeued_by_slurm "$job"; then',
        '        scontrol requeue "$job"',
        "        sleep 60  # Slurm ends this script meanwhile",
        "    fi",
        'elif [[ $status != 0 && $(scontrol show job "$job") == *ExpeditedRequeue=Yes* ]] &&',
        '    ! requeued_by_slurm "$job"; then',
        "    # After sbatch --requeue=expedite Slurm would requeue a job that failed, and hold it.",
        '    scontrol update JobId="$job" Requeue=0',
        "fi",
        'exit "$status"',
    ]
