"""The end of a batch file: a training that has saved is requeued, unless Slurm does so itself."""

from __future__ import annotations

from typing import List

from slurm_resolver.preemption.requeue import REQUEUE_STATUS
from slurm_resolver.sbatch.settings import BatchSettings

_REQUEUED_BY_SLURM = (
    "# From 24.05 on Slurm itself requeues a job that it preempts, when this script ends in the",
    "# job's GraceTime. Requeued here as well, the job would start once too often.",
    "requeued_by_slurm() {",
    "    local cluster job mode=",
    '    cluster=$(scontrol show config) job=$(scontrol show job "$1")',
    '    [[ $job == *" Requeue=1 "*" PreemptTime="[0-9]* ]] || return',
    "    [[ $cluster =~ SLURM_VERSION[[:blank:]=]+([0-9]+)[.]([0-9]+) ]] || return",
    '    [ "${BASH_REMATCH[1]}${BASH_REMATCH[2]}" -ge 2405 ] || return',
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


def requeue_lines(settings: BatchSettings) -> List[str]:
    """Returns the lines after the training, whose exit status is in `status`."""
    return [
        *_REQUEUED_BY_SLURM,
        "# The last task of an array has the array's own job id: requeue that task alone.",
        "job=$SLURM_JOB_ID",
        'if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then',
        "    job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}",
        "fi",
        f'if [ "$status" -eq {REQUEUE_STATUS} ]; then',
        f'    if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {settings.max_restarts} ]; then',
        f'        echo "not requeued: restarted {settings.max_restarts} times already" >&2',
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


# The same rule as in slurm_resolver.preemption.preempted, for where no Python is.
