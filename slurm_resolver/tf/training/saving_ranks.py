"""The ranks that save together: they compare what each restored, and agree how all exit."""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client, connect
from slurm_resolver.errors import RendezvousError, ResumeError
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, ExitPlan
from slurm_resolver.slurm.step import SlurmStep

_log = logging.getLogger("slurm_resolver")

# Seconds: how long a rank waits for the leader's save after its own, and the leader for the others
# to confirm its message.
_SAVE_WAIT = 900.0
_CONFIRM_WAIT = 15.0


class SavingRanks:
    """The ranks that save together.

    Attributes:
        step: the task's variables.
        leads: whether this rank's checkpoint is the one that counts.
        count: how many ranks there are.
    """

    def __init__(self, resolver: Optional[Any]) -> None:
        cluster = getattr(resolver, "cluster", None)
        self._cluster = cluster if isinstance(cluster, Cluster) else None
        self.step = self._cluster.step if self._cluster else SlurmStep.read()
        spec = resolver.cluster_spec().as_dict() if resolver is not None else {}
        if spec.get("ps"):
            raise ResumeError(
                f"this cluster has {len(spec['ps'])} parameter servers; TensorFlow's "
                "PreemptionCheckpointHandler, which this is for, knows only strategies whose ranks "
                "take every step together, such as MultiWorkerMirroredStrategy."
            )
        first = ("chief" if spec.get("chief") else "worker", 0)
        self.leads = resolver is None or not spec or (resolver.task_type, resolver.task_id) == first
        self.count = max(1, sum(map(len, spec.values())))

    def compare(self, own: Any) -> Dict[str, Any]:
        """Returns what every rank gave, by its name, the leader first.

        All ranks call it, in the same order.

        Raises:
            ResumeError: if not all ranks call it.
        """
        if self.count == 1:
            return {"": own}
        cluster, client, ranks = self._live, self._client, self._ranks()
        others = [task.rank for task in cluster.tasks if task.rank not in ranks]
        try:
            told = client.gather("restored", own, _SAVE_WAIT, others)
        except RendezvousError as error:
            raise ResumeError(f"the ranks could not compare what they restore: {error}") from error
        return {cluster.name_of(rank): told[rank] for rank in ranks}

    def tell(self, plan: ExitPlan) -> None:
        """Tells the others the plan, and returns when they have read it.

        The leader's end ends them too.
        """
        if self.count == 1:
            return
        self._client.tell("exit plan", f"{plan.status} {plan.wait}")
        others = self._ranks()[1:]
        if len(self._client.told("confirmed", others, _CONFIRM_WAIT)) < len(others):
            _log.warning("not all ranks have confirmed how they end")

    def receive(self) -> ExitPlan:
        """Returns the leader's plan; if it has ended, the status that asks for a requeue."""
        leader = self._ranks()[0]
        told = self._client.told("exit plan", [leader], _SAVE_WAIT)
        if not told:
            return ExitPlan(REQUEUE_STATUS, 0, "")
        self._client.tell("confirmed", "")
        status, wait = told[leader].split()
        return ExitPlan(int(status), float(wait), "")

    def _ranks(self) -> List[int]:
        """Returns the ranks that save together: the chief first if there is one, then workers."""
        tasks = [task for task in self._live.tasks if task.job in ("chief", "worker")]
        return [task.rank for task in sorted(tasks, key=lambda task: (task.job, task.index))]

    @property
    def _live(self) -> Cluster:
        """The cluster of a step."""
        if self._cluster is None or self._cluster.service is None:
            raise ResumeError(
                "the strategy's resolver is not a SlurmClusterResolver, by which the ranks that "
                "save together find each other: use one."
            )
        return self._cluster

    @property
    def _client(self) -> Client:
        cluster = self._live
        assert cluster.service is not None
        return connect(cluster.service, cluster.name_of)
