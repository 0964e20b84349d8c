"""A training's state and counters in one checkpoint, saved by all ranks at the same step.

It is saved when a signal says so, every so many steps, and at the end. `ResumableLoop` and the
callback `BackupAndResume` are its two forms for users.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, Mapping, Optional

import tensorflow as tf

from slurm_resolver import training_reports
from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.tf.dealt_data import Batches
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.tf.training import kept_checkpoints
from slurm_resolver.tf.training.checkpoint_owner import (
    Owner,
    OwnerState,
    check_model,
    check_still_owner,
    check_task,
    check_training,
    claim,
    owner_of,
)
from slurm_resolver.tf.training.checkpoint_writer import CheckpointWriter
from slurm_resolver.tf.training.kept_checkpoints import Kept
from slurm_resolver.tf.training.resume_position import BatchSize, KeptBatchSize, Start
from slurm_resolver.tf.training.termination import TerminationConfig, termination_config

# TensorFlow's handler agrees on a step through keys that a process can set only once: there is one
# handler for all trainings of a process.
_handler: Optional[_Handler] = None


class Backup:
    """A training's state and counters in one directory; the same calls in every rank.

    Attributes:
        epoch: the epoch, from 0.
        step: how many of its steps are done.
        drawn: how many batches were taken from the iterator that is in use.
        restored: whether there was a checkpoint to begin with.
    """

    def __init__(
        self,
        directory: str,
        strategy: tf.distribute.Strategy,
        termination: Optional[TerminationConfig],
        state: Mapping[str, Any],
        save_every: Optional[int],
        max_to_keep: int,
        keep_batch_size: Optional[KeptBatchSize] = "global",
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`prepare` is called in every rank before it saves."""
        if save_every is not None and save_every < 1:
            raise ResumeError(f"save_every={save_every!r}: expected a count of steps, or None.")
        self.epoch = self.step = self.drawn = 0
        self.restored = False
        self._strategy = strategy
        self._every = save_every
        self._since = 0  # steps since the last save
        self._prepare = prepare
        self._termination = termination or termination_config(strategy.cluster_resolver)
        self._counters = {
            name: tf.Variable(0, dtype=tf.int64, trainable=False, name=name)
            for name in ("epoch", "step", "drawn")
        }
        self._owner = owner_of(self._termination.step, self._termination.ranks, state)
        self._batch_size = BatchSize(keep_batch_size, strategy)
        counters = tf.train.Checkpoint(
            **self._counters, owner=OwnerState(self._owner), batch_size=self._batch_size
        )
        checkpoint = tf.train.Checkpoint(**state, slurm_resolver=counters)
        self._checkpoint = checkpoint
        checkpoint.save_counter  # noqa: B018 (which makes it, in all ranks)
        self._directory = os.fspath(directory)
        self._max_to_keep = max_to_keep
        self._latest: Optional[Kept] = None
        self._reported = False

    def restore(self) -> bool:
        """Restores the latest checkpoint, and returns whether there was one.

        From now on signals are watched for.

        Raises:
            ResumeError: where the ranks find different checkpoints, or none that can be read, or
                those of another task of a job array, of another model or of another seed.
        """
        global _handler
        leads, directory = self._termination.leads, self._directory
        self._latest = kept = kept_checkpoints.choose(
            directory, self._termination.compare, quiet=not leads
        )
        self._check_owner(kept)
        if kept is not None:
            if leads and not kept_checkpoints.is_recorded(directory, kept):
                kept_checkpoints.record(directory, kept)
            self._checkpoint.restore(kept.path)
            # The next one must not be written over one that could not be read.
            self._checkpoint.save_counter.assign(kept.last)
        self._writer = CheckpointWriter(self._checkpoint, directory, self._max_to_keep, leads)
        if _handler is None:
            _handler = _Handler(self._strategy, self._termination)
        _handler.set_save(self._save)  # what is said then tells of the signal, too
        for name, variable in self._counters.items():
            setattr(self, name, int(variable.numpy()))
        self.restored = kept is not None
        return self.restored

    def begin_data(self, batches: Batches, skip: bool = True, can_cut: bool = True) -> Start:
        """Finds the place to go on with in the data, before an iterator over them is made.

        From now on `step` and `drawn` count these batches.

        Args:
            batches: the data.
            skip: whether the batches that were drawn before are skipped.
            can_cut: whether the data can be begun within a batch.

        Raises:
            ResumeError: for batches of another size than the user wants to keep.
        """
        start = self._batch_size.begin(self.step, self.drawn, batches, skip, can_cut)
        self.step, self.drawn = start.step, start.drawn
        if start.told and self._termination.leads:
            warn("%s", start.told)
        return start

    def at_first_batch(self) -> None:
        """Counts the batches of an iterator that is new."""
        self.drawn = 0
        self._batch_size.at_first_batch()

    def say_start(self, epochs: int) -> None:
        """Says where the training goes on, if it does."""
        if not self._termination.leads:
            return
        if self._latest is None:
            restarts = self._owner.restarts
            if restarts:
                warn(
                    "training begins anew: %r holds no checkpoint, though this job was started "
                    "again (restart %d). Nothing had been saved before, or in another folder",
                    self._directory,
                    restarts,
                )
            return
        by = self._saved_by(self._latest.owner)
        if self.epoch < epochs:
            warn("training goes on from %s, saved at %s%s", self._latest.path, self._at, by)
            return
        warn(
            "nothing is left to train: %s is the end of epoch %d%s. Remove the folder to begin "
            "anew.",
            self._latest.path,
            self.epoch,
            f", saved{by}" if by else "",
        )

    def _saved_by(self, owner: Optional[Owner]) -> str:
        """Returns whose checkpoint it is that this training goes on from."""
        if owner is None:
            return ""
        before, now = owner.workers, self._owner.workers
        workers = f" on {before} workers, now {now}" if before not in (now, None) else ""
        return f" by {owner}{workers}" if owner.job else workers

    def _check_owner(self, kept: Optional[Kept]) -> None:
        """Raises, in all ranks alike, where the folder's checkpoints are not this training's."""
        refused = ""
        try:
            if kept is not None:
                check_task(self._directory, kept.owner, self._owner)
                reader = tf.train.load_checkpoint(kept.path)
                check_model(kept.path, reader, self._checkpoint)
                if self._termination.leads:  # whose they are; each rank may have a seed of its own
                    check_training(kept.path, kept.owner, self._owner)
            if self._termination.leads:
                claim(self._directory, self._owner)
        except ResumeError as error:
            refused = str(error)
        except OSError as error:
            refused = f"{self._directory!r}: {error}; expected a folder to write checkpoints to."
        for told in kept_checkpoints.told(self._termination.compare, [refused]).values():
            if told[0]:
                raise ResumeError(told[0])

    @property
    def _at(self) -> str:
        return f"epoch {self.epoch}, step {self.step}"

    def save_if_due(self) -> None:
        """Saves if a signal has come to any rank (and does not return), or if it is time."""
        assert _handler is not None
        _handler.save_and_exit_if_due()
        if self._every is not None and self._since >= self._every:
            self.save()

    def after_steps(self, count: int = 1) -> None:
        """Counts steps that are done."""
        if not self._reported:
            self._reported = True
            training_reports.report(training_reports.READY)
        self.step += count
        self.drawn += count
        self._since += count

    def next_epoch(self) -> None:
        """Counts an epoch that is done."""
        self.epoch, self.step = self.epoch + 1, 0

    def save(self) -> None:
        """Saves now, and says so. All ranks must call it."""
        path = self._save()
        if self._termination.leads:
            warn("training saved at %s: %s", self._at, path)

    def _save(self) -> str:
        self._prepare()
        for name, variable in self._counters.items():
            variable.assign(getattr(self, name))
        if self._termination.leads:
            check_still_owner(self._directory, self._owner)
        with reporter.saving():
            path = self._writer.save()
        self._termination.saved_at = self._at
        self._since = 0
        return path


def counters(directory: str) -> Dict[str, int]:
    """Returns epoch and step of the checkpoint that a training in this directory would go on from.

    Both are 0 where there is none.

    Raises:
        ResumeError: where there are some, and none of them can be read.
    """
    kept = kept_checkpoints.latest(os.fspath(directory))
    return {"epoch": kept.epoch, "step": kept.step} if kept else {"epoch": 0, "step": 0}


class _QuietHandler(
    tf.distribute.experimental.PreemptionCheckpointHandler  # type: ignore[misc]
):
    """TensorFlow's, without its thread's traceback where another rank has ended first."""

    def _watch_step_to_save_key(self) -> None:
        with contextlib.suppress(tf.errors.OpError):
            super()._watch_step_to_save_key()


class _Handler:
    """TensorFlow's PreemptionCheckpointHandler; there is one in a process."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        termination: TerminationConfig,
    ) -> None:
        self._save: Any = None
        # TensorFlow's restores as well, at once. This one holds nothing, in a folder that is none.
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(), os.devnull + "/none", 1)
        termination.save_fn = self._save_now
        termination.tells_of_steps = True
        resolver = strategy.cluster_resolver
        if resolver is None:  # one process; TensorFlow's handler asks all the same
            nobody = tf.train.ClusterSpec({})
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(nobody)
        with _no_metadata_host():
            self._handler = _QuietHandler(resolver, manager, termination_config=termination)

    def set_save(self, save: Any) -> None:
        """Sets how to save: what is saved is the state of the training that runs now."""
        self._save = save

    def save_and_exit_if_due(self) -> None:
        """Call it before every step: at the agreed one all ranks save, and it does not return."""
        self._handler.save_checkpoint_if_preempted()

    def _save_now(self, *args: Any, **kwargs: Any) -> None:
        self._save()


@contextlib.contextmanager
def _no_metadata_host() -> Iterator[None]:
    """Keeps TensorFlow from asking whether this machine is in Google's cloud.

    It looks up a metadata host, which takes 5 s where there is none; and in that cloud its handler
    would wait for the cloud's own notices, and without GPUs do nothing at all
    (tensorflow/python/distribute/failure_handling/gce_util.py).
    """
    name = "GCE_METADATA_IP"
    before = os.environ.get(name)
    os.environ[name] = "127.0.0.1:9"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
