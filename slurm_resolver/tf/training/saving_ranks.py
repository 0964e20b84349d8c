"""What ranks that save together tell each other: what each restored, and how all are to exit."""

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
        name: of this rank; "" where it trains alone.
        count: how many they are.
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
        first = "chief" if spec.get("chief") else "worker"
        own = (resolver.task_type, resolver.task_id) if resolver is not None and spec else None
        self.leads = own is None or own == (first, 0)
        self.name = f"{own[0]}_{own[1]}" if own else ""
        tasks = [(job, index) for job in spec for index in range(len(spec[job]))]
        self.count = max(1, len(tasks))
        others = [f"{job}_{index}" for job, index in tasks if (job, index) != (first, 0)]
        self._names = [f"{first}_0", *others] if others else [self.name]

    @property
    def _client(self) -> Client:
        if self._cluster is None or self._cluster.service is None:
            raise ResumeError(
                "the strategy's resolver is not a SlurmClusterResolver, by which the ranks that "
                "save together find each other: use one."
            )
        client = connect(self._cluster.service)
        client.name_of = self._cluster.name_of
        return client

    def compare(self, own: str) -> Dict[str, str]:
        """Returns what every rank gave, by its name: all ranks call it, in the same order.

        Raises:
            ResumeError: where not all do.
        """
        if self.count == 1:
            return {"": own}
        ranks = self._ranks()
        others = [t.rank for t in self._tasks() if t.rank not in ranks]
        try:
            told = self._client.gather("restored", own, _SAVE_WAIT, others)
        except RendezvousError as error:
            raise ResumeError(f"the ranks could not compare what they restore: {error}") from error
        return {name: told[rank] for name, rank in zip(self._names, ranks)}

    def tell(self, plan: ExitPlan) -> None:
        """Tells the others, and returns when they have read it: the leader's end ends the rest."""
        if self.count == 1:
            return
        self._client.tell("exit plan", f"{plan.status} {plan.wait}")
        others = self._ranks()[1:]
        if len(self._client.told("confirmed", others, _CONFIRM_WAIT)) < len(others):
            _log.warning("not all ranks have confirmed how they end")

    def receive(self) -> ExitPlan:
        """Returns the leader's plan; where it has ended, the status that asks for a requeue."""
        leader = self._ranks()[0]
        told = self._client.told("exit plan", [leader], _SAVE_WAIT)
        if not told:
            return ExitPlan(REQUEUE_STATUS, 0, "")
        self._client.tell("confirmed", "")
        status, wait = told[leader].split()
        return ExitPlan(int(status), float(wait), "")

    def _ranks(self) -> List[int]:
        """The ranks of these tasks, the leader first."""
        by_name = {f"{task.job}_{task.index}": task.rank for task in self._tasks()}
        return [by_name[name] for name in self._names]

    def _tasks(self) -> Any:
        return self._cluster.tasks if self._cluster is not None else ()
