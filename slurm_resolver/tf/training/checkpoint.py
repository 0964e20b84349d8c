"""A training's state and counters in one checkpoint, saved by all ranks at the same step.

All ranks save when a signal arrives, every `save_every` steps, and at the end. `BackupAndResume`
and `ResumableLoop` offer this to users.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Callable, Mapping, Optional

import tensorflow as tf

from slurm_resolver import training_reports
from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.tf.progress import reporter
from slurm_resolver.tf.training import checkpoint_folder
from slurm_resolver.tf.training.termination import TerminationConfig, termination_config

# These datasets make of each batch one batch.
_BATCH_BY_BATCH = ("OptionsDataset", "MapDataset", "ParallelMapDataset", "PrefetchDataset")

# TensorFlow's handler agrees on a step through keys that a process can set only once: there is one
# handler for all trainings of a process, and it saves the one that runs now.
_handler: Any = None
_running: Any = None


class Backup:
    """A training's state and counters in one directory; every rank makes the same calls.

    Attributes:
        epoch: the epoch, from 0.
        step: how many of its steps are done.
        drawn: how many batches were taken from the iterator that is in use.
        batch_size: how many samples a global batch has; 0 if that is not known.
        restored: the path of the checkpoint that was restored; None if there was none.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: Mapping[str, Any],
        directory: str,
        termination: Optional[TerminationConfig],
        save_every: Optional[int],
        max_to_keep: int,
        *,
        complete: bool = False,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """Restores the newest checkpoint, if there is one; then a signal makes all ranks save.

        The arguments are those of `ResumableLoop`, and `complete`: whether the state has all its
        variables already; `prepare`: called in every rank before it saves.

        Raises:
            ResumeError: if the ranks find different checkpoints or none that can be read, and if
                the folder belongs to another task of a job array or to another model.
        """
        global _running
        if save_every is not None and save_every < 1:
            raise ResumeError(f"save_every={save_every!r}: expected a count of steps, or None.")
        self.epoch = self.step = self.drawn = self.batch_size = 0
        self._every = save_every
        self._since = 0  # steps since the last save
        self._reported = False
        self._prepare = prepare
        self._directory = os.fspath(directory)
        self._termination = termination or termination_config(strategy.cluster_resolver)
        self._ranks = ranks = self._termination.ranks
        self._counters = {
            name: tf.Variable(0, dtype=tf.int64, trainable=False, name=name)
            for name in ("epoch", "step", "drawn", "batch_size")
        }
        counters = tf.train.Checkpoint(**self._counters)
        self._checkpoint = checkpoint = tf.train.Checkpoint(**state, slurm_resolver=counters)
        checkpoint.save_counter  # noqa: B018 (which creates it, in all ranks)
        self.restored = checkpoint_folder.restore_newest(
            checkpoint, self._directory, ranks, complete
        )
        self._owner = self._claim()
        if self.restored:
            for name, variable in self._counters.items():
                setattr(self, name, int(variable.numpy()))
        self._manager: Optional[tf.train.CheckpointManager] = None
        if ranks.leads:
            checkpoint_folder.remove_unfinished(self._directory)
            self._manager = tf.train.CheckpointManager(checkpoint, self._directory, max_to_keep)
        _running = self
        if _handler is None:
            _make_handler(strategy, self._termination)

    def begin_data(self, batch_size: int, skip: bool = True) -> bool:
        """Converts the position if the batches have another size now, and returns whether they do.

        The count of samples stays the same; it is rounded down to a batch.

        Raises:
            ResumeError: if the batches have another size, and are not skipped.
        """
        before, self.batch_size = self.batch_size, batch_size
        if before == batch_size or not before or not batch_size:
            return False
        if not self.step and not self.drawn:
            return True
        sizes = f"a global batch has {batch_size} samples now, and had {before} in the checkpoint"
        if not skip:
            raise ResumeError(f"skip=False, and {sizes}: leave out skip=False.")
        again = self.drawn * before % batch_size
        self.step, self.drawn = (count * before // batch_size for count in (self.step, self.drawn))
        if self._ranks.leads:
            warn(
                "%s: training resumes after step %d of epoch %d; %s",
                sizes,
                self.step,
                self.epoch + 1,
                f"{again} samples are trained on again" if again else "no sample is repeated",
            )
        return True

    def say_start(self, epochs: int) -> None:
        """Logs where the training resumes; as a warning, which Python shows without settings."""
        if not self._ranks.leads:
            return
        step, restored = self._ranks.step, self.restored
        restarts = (step.restart_count or 0) + (step.step_restart or 0)
        if restored is None and restarts:
            warn(
                "training starts from the beginning: %r holds no checkpoint, but this is restart "
                "%d of the job. Check that the job saves before it ends, and into this folder",
                self._directory,
                restarts,
            )
        elif restored is not None and self.epoch < epochs:
            warn("training resumes from %s, saved %s", restored, self._at)
        elif restored is not None:
            warn(
                "nothing is left to train: %s was saved after epoch %d. To train again, remove the "
                "folder or raise the number of epochs",
                restored,
                self.epoch,
            )

    def save_if_due(self) -> None:
        """Saves if a signal has come to any rank (and does not return), or if it is time."""
        _handler.save_checkpoint_if_preempted()
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

    def save(self) -> None:
        """Saves; all ranks call it at the same step."""
        path = self.write()
        if path:
            logging.getLogger("slurm_resolver").info("training saved %s: %s", self._at, path)

    def write(self) -> str:
        """Saves, and returns the path in the rank that writes."""
        self._prepare()
        for name, variable in self._counters.items():
            variable.assign(getattr(self, name))
        if self._ranks.leads:
            checkpoint_folder.check_still_owner(self._directory, self._owner)
        with reporter.saving():
            path = checkpoint_folder.save(self._checkpoint, self._manager)
        self._termination.saved_at = self._at
        self._since = 0
        return path

    @property
    def _at(self) -> str:
        """The position in Keras' terms, with epochs counted from 1: after epoch 10."""
        if self.step or not self.epoch:
            return f"at step {self.step} of epoch {self.epoch + 1}"
        return f"after epoch {self.epoch}"

    def _claim(self) -> str:
        """Claims the folder in the leader, and raises its error in all ranks."""
        owner = problem = ""
        try:
            if self._ranks.leads:
                owner = checkpoint_folder.claim(self._directory, self._ranks.step)
        except ResumeError as error:
            problem = str(error)
        for message in filter(None, self._ranks.compare(problem).values()):
            raise ResumeError(message)
        return owner


def batch_size_of(data: Any) -> int:
    """Returns how many samples a global batch of a dataset has; 0 if that is not known.

    It is read from the dataset's chain of inputs, as TensorFlow's own sharding does.
    """
    # A strategy's dataset holds the one that it distributes.
    inner = getattr(data, "whole_batches", getattr(data, "_original_dataset", data))
    while type(inner).__name__.lstrip("_") in _BATCH_BY_BATCH:
        (inner,) = inner._inputs()
    try:
        return int(inner._batch_size) if "BatchDataset" in type(inner).__name__ else 0
    except (AttributeError, TypeError, ValueError):  # another TensorFlow
        return 0


class _QuietHandler(
    tf.distribute.experimental.PreemptionCheckpointHandler  # type: ignore[misc]
):
    """TensorFlow's, without its thread's traceback if another rank has ended first."""

    total_run_calls = 0  # TensorFlow's handler reads its own property and warns: it is deprecated

    def _watch_step_to_save_key(self) -> None:
        with contextlib.suppress(tf.errors.OpError):
            super()._watch_step_to_save_key()


def _make_handler(strategy: tf.distribute.Strategy, termination: TerminationConfig) -> None:
    global _handler
    termination.save_fn = lambda *args, **kwargs: _running.write()
    termination.reports_first_step = True
    # TensorFlow's handler would restore from this manager's folder, which does not exist.
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), os.devnull + "/none", 1)
    resolver = strategy.cluster_resolver
    if resolver is None:  # one process; TensorFlow's handler needs a resolver nevertheless
        spec = tf.train.ClusterSpec({})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec)
    # Keeps TensorFlow from asking whether this machine is in Google's cloud. Elsewhere that takes
    # 5 s; there the handler would wait for the cloud's own notices, and without GPUs do nothing at
    # all (tensorflow/python/distribute/failure_handling/gce_util.py).
    name = "GCE_METADATA_IP"
    before = os.environ.get(name)
    os.environ[name] = "127.0.0.1:9"
    try:
        _handler = _QuietHandler(resolver, manager, termination_config=termination)
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
