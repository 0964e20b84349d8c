"""What the ranks that save together tell each other: what each restored, and how all are to exit.

They do so in the key-value store of TensorFlow's coordination service, which all of them are
connected to anyway. It has no public name: with a TensorFlow in which it has another one they meet,
as they do before TensorFlow starts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import Any, Dict, List, Optional, Sequence

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.meeting import meet
from slurm_resolver.errors import RendezvousError, ResumeError
from slurm_resolver.preemption.requeue import REQUEUE_STATUS, ExitPlan
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.slurm.step import SlurmStep

_log = logging.getLogger("slurm_resolver")

# Seconds: how long a rank waits for the leader's save after its own, and the leader for the others
# to confirm its message.
_SAVE_WAIT = 900.0
_CONFIRM_WAIT = 15.0

_EXIT_PLAN_KEY = "slurm_resolver/exit_plan"
_COMPARE_KEY = "slurm_resolver/compare/"
_CONFIRMED_KEY = "slurm_resolver/confirmed/"


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
        self._found: Optional[_Store | _Meetings] = None

    @property
    def _way(self) -> _Store | _Meetings:
        # Not before it is needed: a strategy makes the service, and may be made later.
        if self._found is None:
            store = _find_store()
            if store is not None:
                self._found = _Store(store, self._names, self.name)
            elif self._cluster is not None and self._cluster.rendezvous is not None:
                self._found = _Meetings(self._cluster, self._names, self.name)
            else:
                raise ResumeError(
                    f"TensorFlow {tf.__version__} has no key-value store under the name that this "
                    "slurm_resolver knows, and this resolver is none of Slurm's, whose tasks could "
                    "meet instead: use SlurmClusterResolver, or an older TensorFlow."
                )
        return self._found

    def compare(self, own: str) -> Dict[str, str]:
        """Returns what every rank gave, by its name: all ranks call it, in the same order.

        Raises:
            ResumeError: where not all do.
        """
        return {"": own} if self.count == 1 else self._way.compare(own)

    def tell(self, plan: ExitPlan) -> None:
        """Tells the others, and returns when they have read it: the leader's end ends the rest."""
        if self.count > 1:
            self._way.tell(plan)

    def receive(self) -> ExitPlan:
        """Returns the leader's plan; where it has ended, the status that asks for a requeue."""
        told = self._way.receive()
        if told is None:
            return ExitPlan(REQUEUE_STATUS, 0, "")
        status, wait = told.split()
        return ExitPlan(int(status), float(wait), "")


def _plan_text(plan: ExitPlan) -> str:
    return f"{plan.status} {plan.wait}"


class _Store:
    """By TensorFlow's key-value store, which the leader keeps, and which ends with it."""

    def __init__(self, store: Any, names: Sequence[str], own: str) -> None:
        self._store = store
        self._own, self._others = own, list(names[1:])
        self._leads = own == names[0]
        self._compared = 0

    def compare(self, own: str) -> Dict[str, str]:
        self._compared += 1
        key = f"{_COMPARE_KEY}{self._compared}"
        until = time.monotonic() + _SAVE_WAIT
        if self._leads:
            seen = {self._own: own}
            for name in self._others:
                seen[name] = self._get(f"{key}/{name}", until) or "nothing, as it has ended"
            self._store.set_config_key_value(key, json.dumps(seen))
            return seen
        self._store.set_config_key_value(f"{key}/{self._own}", own)
        told = self._get(key, until)
        if told is None:
            raise ResumeError(
                "the first rank has ended, or did not restore within "
                f"{_SAVE_WAIT:.0f} s; look at its output."
            )
        found: Dict[str, str] = json.loads(told)
        return found

    def tell(self, plan: ExitPlan) -> None:
        try:
            self._store.set_config_key_value(_EXIT_PLAN_KEY, _plan_text(plan))
        except tf.errors.OpError as error:
            _log.warning("the other ranks cannot be told how to end: %s", error)
            return
        until = time.monotonic() + _CONFIRM_WAIT
        for name in self._others:
            if self._get(_CONFIRMED_KEY + name, until) is None:
                return

    def receive(self) -> Optional[str]:
        told = self._get(_EXIT_PLAN_KEY, time.monotonic() + _SAVE_WAIT)
        if told is not None:
            with contextlib.suppress(tf.errors.OpError):
                self._store.set_config_key_value(_CONFIRMED_KEY + self._own, "1")
        return told

    def _get(self, key: str, until: float) -> Optional[str]:
        """Returns a key's value once it is set; None after `until`, or where the store has ended.

        It asks for half a second at a time, so that Python's handlers of signals can run in
        between.
        """
        while time.monotonic() < until:
            try:
                return str(self._store.get_config_key_value(key, timeout_in_ms=500))
            except tf.errors.DeadlineExceededError:
                continue
            except tf.errors.OpError:
                return None
        return None


def _find_store() -> Optional[Any]:
    """Returns TensorFlow's key-value store; None where it has none by this name."""
    try:
        from tensorflow.python.eager import context

        store = context.context()
        known = callable(store.set_config_key_value) and callable(store.get_config_key_value)
    except (ImportError, AttributeError):
        return None
    return store if known else None


class _Meetings:
    """By meetings of these ranks alone, at the leader."""

    def __init__(self, cluster: Cluster, names: Sequence[str], own: str) -> None:
        assert cluster.rendezvous is not None
        self._names: List[str] = list(names)
        self._point = _meeting_point(cluster, cluster.rendezvous, self._names, own)
        self._met = 0

    def _meet(self, purpose: str, text: str, seconds: float) -> Dict[str, str]:
        """Returns what every rank gave, by its name."""

        def decide(notes: Dict[int, Note]) -> Dict[str, Any]:
            return {"given": [notes[rank]["text"] for rank in range(len(self._names))]}

        answer = meet(self._point, purpose, self._names, {"text": text}, decide, seconds)
        return dict(zip(self._names, answer["given"]))

    def compare(self, own: str) -> Dict[str, str]:
        self._met += 1
        try:
            return self._meet(f"compare {self._met}", own, _SAVE_WAIT)
        except RendezvousError as error:
            raise ResumeError(f"the ranks could not compare what they restore: {error}") from error

    def tell(self, plan: ExitPlan) -> None:
        try:
            self._meet("exit plan", _plan_text(plan), _CONFIRM_WAIT)
        except RendezvousError as error:
            _log.warning("the other ranks cannot be told how to end: %s", error)

    def receive(self) -> Optional[str]:
        try:
            return self._meet("exit plan", "", _SAVE_WAIT)[self._names[0]]
        except RendezvousError:
            return None


def _meeting_point(
    cluster: Cluster, rendezvous: Rendezvous, names: Sequence[str], own: str
) -> Rendezvous:
    """Returns where these ranks meet: at the first of them, as other tasks may not take part."""
    (leader,) = (task for task in cluster.tasks if f"{task.job}_{task.index}" == names[0])
    host = leader.address.rpartition(":")[0].strip("[]")
    return rendezvous._replace(
        host=host,
        node=leader.node,
        rank=names.index(own),
        is_host=own == names[0],
        other_hosts=(),
        own_node="",
        leads_node=False,
        nodes=(),
        addresses=(),
        pmi2=None,
    )
