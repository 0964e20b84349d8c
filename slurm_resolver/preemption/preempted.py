"""Whether Slurm itself requeues a job that it preempts, so that nobody else must.

A job that is preempted with a GraceTime gets SIGTERM (or the signal of --signal), has that long to
end by itself, and `scontrol show job` shows its PreemptTime. What becomes of it with
PreemptMode=REQUEUE when its batch script ends in that time, by the version of slurmctld (live on
22.05, 24.11 and 26.05, and from the source of slurmctld):

    up to 23.11    it has FAILED; after `scontrol requeue` it starts once more, as it should
    from 24.05 on  it starts once more; `scontrol requeue` does the same, but up to 25.11 Slurm then
                   still takes the job for preempted when it ends again, even with status 0, and
                   starts it once too often

With PreemptMode=CANCEL no version requeues it: `scontrol requeue` does, once.
"""

from __future__ import annotations

import re
from typing import Dict, List

from slurm_resolver.slurm import scontrol

_FIRST_THAT_REQUEUES = [24, 5]


def is_preempted(job: Dict[str, str]) -> bool:
    """Whether Slurm has announced to this job (`scontrol.show_job`) that it preempts it."""
    return job.get("PreemptTime", "") not in scontrol.UNSET


def slurm_requeues(job: Dict[str, str], budget: scontrol.Budget) -> bool:
    """Whether Slurm requeues this job when its batch script ends, because it preempts it.

    Args:
        job: the job's fields, from `scontrol.show_job`.
        budget: for up to two answers of the controller.

    Raises:
        OSError: where the controller does not answer.
    """
    if not is_preempted(job) or job.get("Requeue") != "1" or job.get("BatchFlag") != "1":
        return False
    config = scontrol.show_config(budget.left())
    if _version(config) < _FIRST_THAT_REQUEUES:
        return False
    return "REQUEUE" in _preempt_mode(job, config, budget).split(",")


def _version(config: Dict[str, str]) -> List[int]:
    """Returns the controller's version; commands may be those of another one."""
    return [int(part) for part in re.findall(r"\d+", config.get("SLURM_VERSION", ""))[:2]]


def _preempt_mode(job: Dict[str, str], config: Dict[str, str], budget: scontrol.Budget) -> str:
    """Returns the mode of preemption that counts for a job, such as "REQUEUE" or "GANG,SUSPEND".

    It is that of the job's quality of service with PreemptType=preempt/qos, else that of its
    partition; where they set none, that of the cluster.
    """
    cluster = config.get("PreemptMode", "OFF")
    if config.get("PreemptType") != "preempt/qos":
        return scontrol.show_partition(job.get("Partition", ""), budget.left()).get(
            "PreemptMode", cluster
        )
    mode = scontrol.show_qos(job.get("QOS", ""), budget.left()).get("PreemptMode", "OFF")
    return cluster if mode == "OFF" else mode  # which is how a QOS says that it sets none
