"""A training's state and position in one checkpoint, saved by all ranks at the same step.

All ranks save when a signal arrives, every `save_every` steps, and at the end. `BackupAndResume`
and `ResumableLoop` offer this to users.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Mapping
from typing import Any, Callable

import tensorflow as tf

from slurm_resolver.coordination.progress import SAVING
from slurm_resolver.errors import ResumeError
from slurm_resolver.local import run_events
from slurm_resolver.log import warn
from slurm_resolver.tf import private_names
from slurm_resolver.tf.causes import OF_PEERS, cause_of
from slurm_resolver.tf.keras.sharing import without
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.tf.training.checkpoint_folder import CheckpointFolder
from slurm_resolver.tf.training.fit_state import pack, unpack
from slurm_resolver.tf.training.termination import (
    SavingRanks,
    TerminationConfig,
    termination_config,
)

# These datasets turn each batch into one batch.
_BATCH_BY_BATCH = (
    private_names.OPTIONS_DATASET,
    private_names.MAP_DATASET,
    private_names.PARALLEL_MAP_DATASET,
    private_names.PREFETCHED,
)
# Seconds that a rank whose data failed after a signal waits for those of the others to fail.
_ERROR_WAIT = 5.0

# TensorFlow's handler agrees on a step through keys that a process can set only once. One handler
# therefore serves all trainings of a process, and saves the one that trains on its signals.
_handler: Any = None
_running: Any = None


class Backup(tf.train.experimental.PythonState):  # type: ignore[misc]
    """A training's position, in a checkpoint with its state; every rank makes the same calls.

    Attributes:
        epoch: the epoch, from 0.
        step: how many of its steps are done.
        drawn: how many batches of a loop's data were taken from the current iterator.
        batch_size: how many samples a global batch has; 0 if that is not known.
        restored: the path of the checkpoint that was restored; None if there was none.
        more: what `collect` returned when that checkpoint was saved.
        checkpoint: the state, and this.
        termination: the signals on which all ranks save.
        leads: whether this rank writes the checkpoints.
    """

    epoch = 0
    step = 0
    drawn = 0
    batch_size = 0
    more: Any = None
    _since = 0  # steps since the last save

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: Mapping[str, object],
        directory: str,
        termination: TerminationConfig | None,
        save_every: int | None,
        max_to_keep: int,
        *,
        is_complete: bool = False,
        collect: Callable[[], object] = lambda: None,
    ) -> None:
        """Restores the newest checkpoint, if there is one; then a signal makes all ranks save.

        The arguments are those of `ResumableLoop`, and `is_complete`: whether the state has all its
        variables already; `collect`: called in every rank before it saves, returns plain values to
        save as well.

        Raises:
            ResumeError: for the reasons of `CheckpointFolder.restore_newest`.
        """
        global _running
        if save_every is not None and save_every < 1:
            raise ResumeError(f"save_every={save_every!r}: expected a count of steps, or None.")
        self._state = state
        self._every = save_every
        self._collect = collect
        before = _running and _running.termination
        self.termination: TerminationConfig = (
            termination or before or termination_config(strategy.cluster_resolver)
        )
        if self.termination.ranks.count == 1:  # made without the strategy's resolver
            self.termination.ranks = SavingRanks(strategy.cluster_resolver)
        self._ranks = self.termination.ranks
        self.leads = self._ranks.leads
        self.checkpoint = tf.train.Checkpoint(**state, slurm_resolver=self)
        self._folder = CheckpointFolder(
            directory,
            self.checkpoint,
            self._ranks,
            max_to_keep,
            is_complete,
        )
        self.restored = self._folder.restore_newest()
        self._is_first = _running is None
        _running = self
        self.termination.watch.arm()  # the strategy has replaced the handler of SIGTERM
        if _handler is None:
            _make_handler(strategy)

    def serialize(self) -> bytes:
        """Returns what TensorFlow saves of this object."""
        return pack((self.epoch, self.step, self.drawn, self.batch_size, self.more))

    def deserialize(self, string_value: bytes) -> None:
        """Restores what TensorFlow has saved."""
        try:
            position = unpack(string_value)
        except pickle.UnpicklingError as error:
            raise ResumeError(
                f"it was saved by another version of slurm_resolver ({error})"
            ) from error
        self.epoch, self.step, self.drawn, self.batch_size, self.more = position

    def restore_again(self) -> None:
        """Gives the variables the values of the checkpoint again, if there is one."""
        if self.restored:
            tf.train.Checkpoint(**self._state).read(self.restored).expect_partial()

    def begin_data(self, batch_size: int, count: int = 1) -> int:
        """Converts the position in the epoch if the batches have another size now.

        The number of samples stays the same, rounded down to `count` batches, which are read
        together. Returns the former size; 0 if it is the same, or one of them is not known.
        """
        before = self.batch_size
        self.batch_size = batch_size
        if before in (0, batch_size) or not batch_size:
            return 0
        samples = self.step * before
        self.step = samples // (batch_size * count) * count
        if self.leads and samples:
            warn(
                "a global batch has %s samples now, and had %s in the checkpoint: training resumes "
                "after step %s of epoch %s; samples trained on again: %s",
                batch_size,
                before,
                self.step,
                self.epoch + 1,
                samples - self.step * batch_size,
            )
        return before

    def say_start(self, epochs: int) -> None:
        """Logs where the training resumes; as a warning, which Python shows without settings."""
        if not self.leads:
            return
        step = self._ranks.step
        restarts = (step.restart_count or 0) + (step.step_restart or 0)
        if self.restored and self.epoch >= epochs:
            warn(
                "nothing is left to train: %s was saved after epoch %s. To train again, remove the "
                "folder or raise the number of epochs",
                self.restored,
                self.epoch,
            )
        elif self.restored:
            # `supervise` reads this line.
            warn("training resumes from %s, saved %s", self.restored, self._at)
        elif restarts and self._is_first:
            warn(
                "training starts from the beginning: %r holds no checkpoint, but this is restart "
                "%s of the job. Check that the job saves before it ends, and into this folder",
                self._folder.directory,
                restarts,
            )

    def save_if_due(self) -> None:
        """Saves if a signal has come to any rank (and does not return), or if a save is due."""
        global _running
        _running = self  # another training may have been made since
        _handler.save_checkpoint_if_preempted()
        if self._every and self._since >= self._every:
            self.save()

    def save_after(self, error: Exception, is_between_steps: bool) -> None:
        """Saves, and does not return, if a signal came before an error that ends the training.

        Slurm sends its signal to all processes of a step: it may end one that reads the data. What
        the leader saves is right if its own error came between two steps. The others may wait for
        it in the next step, and never end that.

        Args:
            error: the error of this rank.
            is_between_steps: whether this rank's variables are those after a whole step.
        """
        received = self.termination.watch.received
        if not received or isinstance(error, OF_PEERS):  # another rank has ended
            return
        # Without an answer, the leader saves alone, unless only SIGTERM came: another task may have
        # failed, and srun then ends this one by it.
        saves = (
            is_between_steps
            and self.leads
            and received != "SIGTERM"
            and not self._folder.is_read_together()
        )
        with contextlib.suppress(ResumeError):
            saves = self._ranks.ask_leader("the save after an error", is_between_steps, _ERROR_WAIT)
        warn(
            "after %s, the training failed (%s); it is %s this step",
            received,
            cause_of(error),
            "saved as it was before" if saves else "not saved, as the leader may be within",
        )
        if saves:
            self.save()
            self.termination.exit_fn()

    def after_steps(self, count: int = 1) -> None:
        """Counts steps that are done."""
        if not self._since:  # at least after the first step
            run_events.report_first_step()
        self.step += count
        self._since += count

    def save(self) -> None:
        """Saves; all ranks call it at the same step."""
        self.more = self._collect()
        with reporter.doing(SAVING):
            path = self._folder.save()
        self.termination.saved_at = self._at
        self._since = 0
        if path:
            logging.getLogger("slurm_resolver").info("training saved %s: %s", self._at, path)

    @property
    def _at(self) -> str:
        """The position in Keras' terms, with epochs counted from 1: after epoch 10."""
        if self.step or not self.epoch:
            return f"at step {self.step} of epoch {self.epoch + 1}"
        return f"after epoch {self.epoch}"


def batch_size_of(data: Any) -> int:
    """Returns how many samples a global batch of a dataset has; 0 if that is not known.

    It is read from the dataset's chain of inputs, as TensorFlow's own sharding does.
    """
    # A strategy's dataset holds the one that it distributes.
    whole = private_names.ORIGINAL_DATASET.of(data, data)
    try:
        return int(private_names.BATCH_SIZE.of(without(whole, _BATCH_BY_BATCH), 0))
    except (TypeError, ValueError):  # a tensor without a value yet
        return 0


class _QuietHandler(
    tf.distribute.experimental.PreemptionCheckpointHandler  # type: ignore[misc]
):
    """TensorFlow's handler, without a traceback if another rank has ended first."""

    total_run_calls = 0  # reads its own property, and warns that it is deprecated


def _watch_quietly(watch: Method, handler: object) -> None:
    """Watches for other ranks' signals, and ends without a traceback."""
    with contextlib.suppress(tf.errors.OpError):
        watch(handler)


def _make_handler(strategy: tf.distribute.Strategy) -> None:
    global _handler
    private_names.WATCH_KEY.replace(_watch_quietly, owner=_QuietHandler)
    config = tf.distribute.experimental.TerminationConfig(
        termination_watcher_fn=lambda: _running.termination.watch.received is not None,
        exit_fn=lambda: _running.termination.exit_fn(),
        grace_period=0,
        save_fn=lambda *args, **kwargs: _running.save(),
    )
    # TensorFlow's handler would restore from this manager's folder, which does not exist.
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), os.devnull + "/none", 1)
    # One process has none, but the handler of TensorFlow 2.15 needs a resolver.
    resolver = strategy.cluster_resolver or (
        tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    )
    # In Google's cloud, the handler would wait for the cloud's own notices, and without GPUs do
    # nothing at all (tensorflow/python/distribute/failure_handling/failure_handling_util.py).
    private_names.ON_GCP.replace(lambda original: False)
    _handler = _QuietHandler(resolver, manager, termination_config=config)
