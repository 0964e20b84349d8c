"""The ranks that save together: they compare what each has restored, and exit alike."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import Client, connect
from slurm_resolver.errors import RendezvousError, ResumeError
from slurm_resolver.log import warn
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, ExitPlan
from slurm_resolver.slurm.step import SlurmStep

# Seconds: how long a rank waits for the leader's save after its own, and the leader for the others
# to confirm its message.
_SAVE_WAIT = 900.0
_CONFIRM_WAIT = 15.0


class SavingRanks:
    """The ranks that save together.

    Attributes:
        step: the task's variables.
        leads: whether this rank writes the checkpoints.
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
                "PreemptionCheckpointHandler works only with strategies whose ranks take every "
                "step together, such as MultiWorkerMirroredStrategy."
            )
        first = ("chief" if spec.get("chief") else "worker", 0)
        self.leads = resolver is None or not spec or (resolver.task_type, resolver.task_id) == first
        self.count = max(1, sum(map(len, spec.values())))

    def compare(self, own: Any) -> Dict[str, Any]:
        """Returns the value of every rank, by the rank's name, the leader's first.

        All ranks call it, in the same order; otherwise it raises ResumeError.
        """
        if self.count == 1:
            return {"": own}
        client, names = self._connect()
        others = set(range(client.address.num_tasks)) - names.keys()
        try:
            values = client.gather("restored", own, _SAVE_WAIT, others)
        except RendezvousError as error:
            raise ResumeError(f"the ranks could not compare what they restore: {error}") from error
        return {name: values[rank] for rank, name in names.items()}

    def tell(self, plan: ExitPlan) -> None:
        """Sends the leader's plan to the others, and waits until they have read it.

        When the leader exits, Slurm ends them too.
        """
        if self.count > 1:
            client, (_, *others) = self._connect()
            client.tell("exit plan", f"{plan.status} {plan.wait}")
            if len(client.told("confirmed", others, _CONFIRM_WAIT)) < len(others):
                warn("not all ranks have confirmed how they exit")

    def receive(self) -> ExitPlan:
        """Returns the leader's plan; if it has ended, the status that asks for a requeue."""
        client, (leader, *_) = self._connect()
        received = client.told("exit plan", [leader], _SAVE_WAIT)
        if not received:
            return ExitPlan(REQUEUE_STATUS, 0, "")
        client.tell("confirmed", "")
        status, wait = received[leader].split()
        return ExitPlan(int(status), float(wait), "")

    def _connect(self) -> Tuple[Client, Dict[int, str]]:
        """Returns the connection, and the names of the ranks that save: chief, then workers."""
        cluster = self._cluster
        if cluster is None or cluster.service is None:
            raise ResumeError(
                "the ranks that save together meet through a SlurmClusterResolver, and the "
                "strategy's resolver is another one: use a SlurmClusterResolver."
            )
        tasks = [task for task in cluster.tasks if task.job in ("chief", "worker")]
        ranks = [task.rank for task in sorted(tasks, key=lambda task: (task.job, task.index))]
        client = connect(cluster.service, cluster.name_of)
        return client, {rank: cluster.name_of(rank) for rank in ranks}
