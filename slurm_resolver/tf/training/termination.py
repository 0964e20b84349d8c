"""`termination_config`: TensorFlow's PreemptionCheckpointHandler, on Slurm.

After a signal to any rank:

    every rank      TensorFlow's handler agrees on a step, after which all save
    the leader      requeues the job once its own save is written
    every rank      learns the leader's exit status, and exits unless Slurm ends it before
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import sys
import time
from collections.abc import Collection
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.coordination import TRAIN
from slurm_resolver.errors import RendezvousError, ResumeError
from slurm_resolver.local import run_events
from slurm_resolver.log import exit_at_once, warn
from slurm_resolver.preemption.exit_plan import ExitPlan, check_options, requeue_job
from slurm_resolver.preemption.signal_watch import SignalWatch
from slurm_resolver.signals import REQUEUE_STATUS
from slurm_resolver.start.ready import find_group
from slurm_resolver.tf import private_names
from slurm_resolver.tf.resolver_cluster import cluster_of, slurm_step_of
from slurm_resolver.timeouts import Timeouts

_EXIT_WAIT = 15.0  # seconds for the other ranks to learn from the leader how all exit


def termination_config(
    resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
    *,
    signals: Collection[str] = ("SIGUSR1", "SIGTERM"),
    requeue: str | None = "scontrol",
    max_restarts: int | None = 100,
) -> TerminationConfig:
    """Returns a TerminationConfig for PreemptionCheckpointHandler, and installs its signals.

    ::

        resolver = SlurmClusterResolver()
        config = termination_config(resolver)
        strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
        handler = tf.distribute.experimental.PreemptionCheckpointHandler(
            resolver, checkpoint, "checkpoints", config)

    Call it in the main thread of every task, before the strategy: SIGUSR1 ends a process that has
    no handler. TensorFlow replaces the handler of SIGTERM in the strategy's constructor, and the
    PreemptionCheckpointHandler installs it again.

    Slurm sends a signal to all processes of a step. Child processes that the task starts later end
    on SIGTERM; the other signals are blocked in them, whether they are forked or spawned. If such
    processes read the data, have Slurm send another signal before SIGTERM (``#SBATCH
    --signal=USR1@120``).

    Training ends with the save, as Slurm gives a task little time after SIGTERM: KillWait, or the
    partition's GraceTime.

    Args:
        resolver: the strategy's; None, or one without a cluster, for a process that trains alone.
            BackupAndResume and ResumableLoop know their strategy's, and do not need it.
        signals: any of these, to any rank, makes all ranks save the same step.
        requeue: "scontrol" requeues the job after the save. If that fails or there is no scontrol,
            and with "exit-code", all ranks exit with status 75 (`REQUEUE_STATUS`), which the batch
            file turns into a requeue. None: the ranks exit with status 143. They also do if the job
            is being cancelled, if Slurm requeues a job that it preempts (with GraceTime and
            PreemptMode=REQUEUE, from Slurm 24.05 on), and if SIGTERM came to a job that Slurm
            neither preempts nor ends and whose step has tasks that do not train: one may have
            failed.
        max_restarts: if SLURM_RESTART_COUNT has reached it, the ranks save, do not requeue and exit
            with status 1. None is no limit.

    Raises:
        ResumeError: for an unknown signal or option, or outside the main thread.
    """
    check_options(requeue, max_restarts)
    watch = SignalWatch(signals)
    config = TerminationConfig(SavingRanks(resolver), watch, requeue, max_restarts)
    watch.arm()
    return config


@dataclasses.dataclass(eq=False)
class TerminationConfig(tf.distribute.experimental.TerminationConfig):  # type: ignore[misc]
    """What `termination_config` returns; only that function makes one.

    Attributes:
        ranks: the ranks that save together.
        watch: the signals that have come.
        requeue: how to requeue the job; see `requeue_job`.
        max_restarts: how often to requeue it.
        saved_at: the epoch and the step, as in messages; "" if unknown.
    """

    ranks: SavingRanks
    watch: SignalWatch
    requeue: str | None
    max_restarts: int | None
    grace_period: int = 0
    save_fn: None = None
    saved_at: str = ""

    @property
    def termination_watcher_fn(self) -> Callable[[], bool]:
        """Returns whether to save and end, for TensorFlow's handler, which asks when it is made.

        By then the strategy has replaced the handler of SIGTERM: it is installed again here.
        """
        self.watch.arm()
        run_events.report_first_step()
        return lambda: self.watch.received is not None

    def exit_fn(self) -> None:
        """Ends this process after the save, in agreement with the others.

        The leader requeues the job, if that is wanted, and says what happens.
        """
        ranks = self.ranks
        self.watch.leave_on_sigterm()
        plan = ExitPlan(REQUEUE_STATUS, "")  # of a rank that does not learn the leader's
        if ranks.leads:
            received = self.watch.received
            sigterm = self.watch.terminated and received in (None, "SIGTERM")
            plan = requeue_job(
                ranks.step,
                self.requeue,
                self.max_restarts,
                announced=not sigterm,
                saved=ranks.count,
            )
            where = f" {self.saved_at}" if self.saved_at else ""
            cause = received or "a signal to another rank"
            warn("training saved%s because of %s: %s", where, cause, plan.message)
        try:
            # When the leader exits, Slurm ends the others too.
            seconds = _EXIT_WAIT if ranks.leads else Timeouts.save
            plan = ExitPlan(*ranks.ask_leader("the exit", plan, seconds))
        except ResumeError as error:  # such as a rank that has ended
            warn("%s", error)
        until = time.monotonic() + plan.wait
        while not self.watch.ended and time.monotonic() < until:
            # Slurm's SIGTERM may have come while this rank was still saving.
            if self.watch.terminated and not ranks.leads:
                break
            time.sleep(0.1)
        atexit.register(_leave, plan.status)  # of these functions, the last one runs first
        sys.exit(plan.status)


class SavingRanks:
    """The ranks that save together.

    Attributes:
        step: the task's variables.
        leads: whether this rank writes the checkpoints.
        count: how many ranks there are.
    """

    def __init__(self, resolver: Any) -> None:
        self._cluster = cluster_of(resolver)
        self.step = slurm_step_of(resolver)
        spec = resolver.cluster_spec().as_dict() if resolver else {}
        if spec.get("ps"):
            raise ResumeError(
                "this cluster has parameter servers; TensorFlow's "
                "PreemptionCheckpointHandler works only with strategies whose ranks take every "
                "step together, such as MultiWorkerMirroredStrategy. Leave termination_config out, "
                "and pass save_every to BackupAndResume."
            )
        self.count = max(1, sum(map(len, spec.values())))
        first = ("chief" if spec.get("chief") else "worker", 0)
        self.leads = not spec or (resolver.task_type, resolver.task_id) == first

    def compare(
        self, purpose: str, value: object, seconds: float = Timeouts.save
    ) -> dict[str, Any]:
        """Returns the value of every rank, by the rank's name, the leader's first.

        All ranks call it, in the same order; otherwise it raises ResumeError, at the latest when
        the time of one of them is up. `purpose` is for messages, such as "the restore".
        """
        if self.count == 1:
            return {"this process": value}
        group = find_group(self._cluster, TRAIN) if self._cluster else None
        if not group:
            raise ResumeError(
                "the ranks that save together meet through a SlurmClusterResolver, and the "
                "strategy's resolver is another one: use a SlurmClusterResolver."
            )
        try:
            return group.gather(purpose, value, seconds)
        except RendezvousError as error:
            raise ResumeError(f"the ranks could not agree on {purpose}: {error}") from error

    def ask_leader(self, purpose: str, value: object, seconds: float) -> Any:
        """Returns the leader's value; all ranks call it, and give theirs, as in `compare`."""
        return next(iter(self.compare(purpose, value, seconds).values()))


def _leave(status: int) -> None:
    """Runs all other functions of `atexit`, whenever they were registered, and exits.

    TensorFlow's own clean-up, which comes after them, waits for peers that have ended, and may
    abort, which would change the status.
    """
    atexit.unregister(_leave)
    run_all = private_names.RUN_AT_EXIT.find()
    try:
        if run_all:
            run_all()
    finally:
        logging.shutdown()
        exit_at_once(status)
