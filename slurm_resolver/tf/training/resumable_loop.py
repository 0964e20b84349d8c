"""`ResumableLoop`: a training loop that is saved on a signal and resumed at the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import tensorflow as tf

from slurm_resolver.coordination.progress import DATA, FIRST, IDLE, STEP, TRAINING
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.tf.training.checkpoint import Backup, batch_size_of
from slurm_resolver.tf.training.termination import TerminationConfig

Batch = TypeVar("Batch")
_END_SECONDS = 60.0  # for which the workers wait for each other's reports


class ResumableLoop(Backup):
    """A training loop that is saved on a signal, and resumes at the next step.

    ::

        loop = ResumableLoop("checkpoints", strategy, model=model, optimizer=optimizer)
        for epoch in loop.epochs(10):
            for batch in loop.batches(strategy.experimental_distribute_dataset(data(epoch))):
                train_step(batch)

    A run that was preempted ends with the weights of an uninterrupted one, if the batches of an
    epoch come in the same order each time: seed whatever shuffles. If the batches have a different
    size than before, as with a different number of workers, the position is converted by the number
    of samples, rounded down to a batch. Keras' dropout draws new masks after a restart, unless its
    random generator is in the state too.

    Every rank makes the same calls.

    Attributes:
        epoch: the epoch, from 0.
        step: how many of its steps are done.
        restored: the path of the checkpoint that was restored; None if there was none.
    """

    _endless: Iterator[object] | None = None

    def __init__(
        self,
        directory: str,
        strategy: tf.distribute.Strategy | None = None,
        *,
        termination: TerminationConfig | None = None,
        save_every: int | None = None,
        max_to_keep: int = 2,
        **state: object,
    ) -> None:
        """Restores the latest checkpoint of the directory, if there is one.

        Args:
            directory: for this training's checkpoints; one that all nodes share.
            strategy: the training's; None is the one in whose scope this is.
            termination: what `termination_config` returned; None makes one with its defaults.
            save_every: also save after this many steps, the most that a crash can lose.
            max_to_keep: how many checkpoints to keep.
            state: whatever a `tf.train.Checkpoint` holds; at least the model and the optimizer.
        """
        strategy = strategy or tf.distribute.get_strategy()
        self._resolver = strategy.cluster_resolver
        reporter.start(self._resolver)
        super().__init__(strategy, state, directory, termination, save_every, max_to_keep)

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the numbers of the epochs that are left, and saves after the last one."""
        self.say_start(count)
        if self.epoch >= count:
            return
        reporter.begin_training(is_measured=False)
        while self.epoch < count:
            yield self.epoch
            self.epoch += 1
            self.step = 0
        self.save()
        of_all = reporter.of_all_workers(_END_SECONDS)
        if self.leads:
            reporter.tell_usage(self._resolver, "the loop", of_all)

    def batches(self, data: Iterable[Batch], steps: int | None = None) -> Iterator[Batch]:
        """Yields the batches of this epoch that are left; each is a step.

        Args:
            data: all batches of the epoch, in the same order each time; or one iterator over the
                batches of all epochs, which must keep their size in all starts.
            steps: how many steps an epoch has; None: it ends with the data.
        """
        iterator = iter(data)
        is_endless = iterator is data
        if not is_endless:
            self.begin_data(batch_size_of(data))
        if not is_endless or self._endless not in (None, iterator):  # it is of this epoch alone
            self.drawn = self.step
        if iterator is not self._endless:  # leaves out what was trained on before
            for _ in range(self.drawn):
                next(iterator, None)
        self._endless = iterator if is_endless else None
        reporter.enter(STEP, TRAINING)
        reporter.begin_epoch(self.epoch + 1)
        phase = FIRST
        try:
            while steps is None or self.step < steps:
                self.save_if_due()
                reporter.step = self.step + 1
                reporter.begin_step(phase=DATA)
                try:
                    batch = next(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    self.drawn = 0  # the next epoch has its own
                    return
                except Exception as error:
                    self.save_after(error, is_between_steps=True)
                    raise
                self.drawn += 1
                reporter.enter(phase)
                yield batch
                reporter.end_step()
                phase = STEP
                self.after_steps()
        finally:
            reporter.enter(IDLE, "")
