"""Training that goes on at the very step where it was saved: `ResumableLoop`, and what is below it.

`Backup` keeps the counters beside the model in one checkpoint, and saves it when a signal says so
and every so many steps. `ResumableLoop` is its form for a training loop of one's own; the callback
for Keras is in `slurm_resolver.tf.keras`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Dict, Iterable, Iterator, Mapping, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.tf.termination import TerminationConfig, termination_config

# TensorFlow's handler agrees through keys that a process can set only once: one for all trainings.
_handler: Optional[_Handler] = None


class Backup:
    """A training's state and counters in one directory; the same calls in every rank.

    Attributes:
        epoch: the epoch, from 0.
        step: how many of its steps are done.
        drawn: how many batches were drawn from the iterator that is in use.
    """

    def __init__(
        self,
        directory: str,
        strategy: tf.distribute.Strategy,
        termination: Optional[TerminationConfig],
        state: Mapping[str, Any],
        save_every: Optional[int],
        max_to_keep: int,
    ) -> None:
        if save_every is not None and save_every < 1:
            raise ResumeError(f"save_every={save_every!r}: expected a count of steps, or None.")
        self.epoch = self.step = self.drawn = 0
        self._strategy = strategy
        self._every = save_every
        self._since = 0  # steps since the last save
        resolver = strategy.cluster_resolver if strategy is not None else None
        self._termination = termination or termination_config(resolver)
        self._counters = {
            name: tf.Variable(0, dtype=tf.int64, trainable=False, name=name)
            for name in ("epoch", "step", "drawn")
        }
        counters = tf.train.Checkpoint(**self._counters)
        checkpoint = tf.train.Checkpoint(**state, slurm_resolver=counters)
        directory = os.fspath(directory)
        self._reader = tf.train.CheckpointManager(checkpoint, directory, max_to_keep)
        # In this strategy some variables are only read by all ranks together, so that all must
        # save; what the others write is thrown away.
        self._scratch: Optional[str] = None
        self._writer = self._reader
        if not self._termination.leads:
            self._scratch = os.path.join(directory, f"scratch_{self._termination.name}")
            self._writer = tf.train.CheckpointManager(checkpoint, self._scratch, 1)

    def restore(self) -> bool:
        """Restores the latest checkpoint; whether there was one. Watches for signals from now on.

        Raises:
            ResumeError: where the ranks find different checkpoints.
        """
        global _handler
        self._agree()
        if _handler is None:
            _handler = _Handler(self._strategy, self._reader, self._termination)
        else:
            self._reader.restore_or_initialize()
        _handler.saves_with(self.save)
        for name, variable in self._counters.items():
            setattr(self, name, int(variable.numpy()))
        return self._reader.latest_checkpoint is not None

    def before_step(self) -> None:
        """Saves if a signal has come to any rank (and does not return), or if it is time."""
        assert _handler is not None
        _handler.save_and_exit_if_due()
        if self._every is not None and self._since >= self._every:
            self.save()

    def after_steps(self, count: int = 1) -> None:
        """Counts steps that are done."""
        self.step += count
        self.drawn += count
        self._since += count

    def next_epoch(self) -> None:
        """Counts an epoch that is done."""
        self.epoch, self.step = self.epoch + 1, 0

    def save(self) -> None:
        """Saves now. All ranks must."""
        for name, variable in self._counters.items():
            variable.assign(getattr(self, name))
        self._writer.save()
        self._termination.saved_at = f"epoch {self.epoch}, step {self.step}"
        self._since = 0
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _agree(self) -> None:
        """Ranks with different starts would hang, or train on in silence to different weights.

        Asked before the restore, which is itself something that the ranks do together.
        """
        latest = self._reader.latest_checkpoint
        found = "none"
        if latest:
            start = counters(self._reader.directory)
            found = f"{os.path.basename(latest)} (epoch {start['epoch']}, step {start['step']})"
        seen = self._termination.compare(found)
        if len(set(seen.values())) > 1:
            listed = "; ".join(f"{name}: {what}" for name, what in sorted(seen.items()))
            raise ResumeError(
                f"the ranks find different checkpoints in {self._reader.directory!r}: {listed}. "
                "Expected the same for all: the folder must be on a file system that all nodes of "
                "the job share."
            )


class ResumableLoop:
    """A training loop that is saved on a signal, and goes on at the very step after it.

    ::

        loop = ResumableLoop("checkpoints", strategy, model=model, optimizer=optimizer)
        for epoch in loop.epochs(10):
            for batch in loop.batches(strategy.experimental_distribute_dataset(data(epoch))):
                train_step(batch)

    A run that was preempted ends with the weights of one that was not, if the batches of an epoch
    come in the same order each time: seed whatever shuffles. The batches of the epoch that were
    seen already are drawn once more and dropped; to jump there instead, begin at `step` and pass
    `skip=False`. Keras' dropout draws new masks after a restart, unless its random generator is in
    the state too.

    Every rank makes the same calls.
    """

    def __init__(
        self,
        directory: str,
        strategy: Optional[tf.distribute.Strategy] = None,
        *,
        termination: Optional[TerminationConfig] = None,
        save_every: Optional[int] = None,
        max_to_keep: int = 2,
        **state: Any,
    ) -> None:
        """Restores the latest checkpoint of the directory, if there is one.

        Args:
            directory: for this training's checkpoints; one that all nodes share.
            strategy: the training's; None is the one in whose scope this is.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after so many steps: what a crash can lose.
            max_to_keep: how many checkpoints to keep.
            state: whatever a `tf.train.Checkpoint` holds; at least the model and the optimizer.
        """
        strategy = strategy or tf.distribute.get_strategy()
        self._backup = Backup(directory, strategy, termination, state, save_every, max_to_keep)
        self._endless: Optional[Iterator[Any]] = None
        self.restored = self._backup.restore()

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self._backup.epoch

    @property
    def step(self) -> int:
        """How many steps of the epoch are done."""
        return self._backup.step

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the numbers of the epochs that are left, and saves after the last one."""
        trained = self.epoch < count
        while self.epoch < count:
            yield self.epoch
            self._backup.next_epoch()
        if trained:
            self._backup.save()

    def batches(
        self, data: Iterable[Any], steps: Optional[int] = None, *, skip: bool = True
    ) -> Iterator[Any]:
        """Yields the batches of this epoch that are left; each is a step.

        Args:
            data: all batches of the epoch, in the same order each time; or one iterator over the
                batches of all epochs.
            steps: ends the epoch after so many; None at the end of the data.
            skip: whether to drop the batches that were seen before; False if `data` begins after
                them.
        """
        iterator = iter(data)
        backup = self._backup
        if iterator is data:
            done = backup.drawn if self._endless is not iterator else 0
            self._endless = iterator
        else:
            backup.drawn = done = backup.step
        if skip:
            for _ in range(done):
                next(iterator, None)
        while steps is None or backup.step < steps:
            backup.before_step()
            try:
                batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                return
            yield batch
            backup.after_steps()


class _QuietHandler(
    tf.distribute.experimental.PreemptionCheckpointHandler  # type: ignore[misc]
):
    """TensorFlow's, without the traceback of its thread where another rank has ended first."""

    def _watch_step_to_save_key(self) -> None:
        with contextlib.suppress(tf.errors.OpError):
            super()._watch_step_to_save_key()


class _Handler:
    """TensorFlow's PreemptionCheckpointHandler, the one of this process."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        manager: tf.train.CheckpointManager,
        termination: TerminationConfig,
    ) -> None:
        self._save: Any = None
        termination.save_fn = self._save_now
        with _no_metadata_host():
            self._handler = _QuietHandler(
                strategy.cluster_resolver, manager, termination_config=termination
            )

    def saves_with(self, save: Any) -> None:
        """Sets whose state is saved: the training's that runs now."""
        self._save = save

    def save_and_exit_if_due(self) -> None:
        """Before every step: all ranks save, and do not return, at the step they agreed on."""
        self._handler.save_checkpoint_if_preempted()

    def _save_now(self, *args: Any, **kwargs: Any) -> None:
        self._save()


@contextlib.contextmanager
def _no_metadata_host() -> Iterator[None]:
    """Answers TensorFlow's question whether this is a certain cloud with no.

    It asks over the network, which takes 5 s where there is no such host; and in that cloud its
    handler would look for the cloud's own notices, and do nothing at all without GPUs.
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


def counters(directory: str) -> Dict[str, int]:
    """Returns epoch and step of a directory's latest checkpoint, both 0 where there is none."""
    latest = tf.train.latest_checkpoint(os.fspath(directory))
    if latest is None:
        return {"epoch": 0, "step": 0}
    reader = tf.train.load_checkpoint(latest)
    key = "slurm_resolver/{}/.ATTRIBUTES/VARIABLE_VALUE"
    return {name: int(reader.get_tensor(key.format(name))) for name in ("epoch", "step")}
