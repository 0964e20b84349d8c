"""Checks that the workers still hold the same weights: before `fit`, and after each epoch.

Workers hold equal weights because they do equal things.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras.differences import REMEDY, Entry, compare
from slurm_resolver.tf.keras.protocols import Logs, Model


def digest_of(model: Model) -> int:
    """Returns a digest of all variables of a model and its optimizers."""
    digest = 0
    for _, variable in variables_of(model):
        digest = zlib.crc32(variable.numpy().tobytes(), digest)
    return digest


def variables_of(model: Model) -> Iterator[tuple[str, tf.Variable]]:
    """Yields the paths and values of this worker's variables: of the optimizers, then of the model.

    The states of random generators are not among them: what a worker draws alone changes them.
    """
    variables = []
    for _, optimizer in optimizers_of(model):
        variables += optimizer.variables
    local = model.distribute_strategy.experimental_local_results
    for variable in variables + model.weights:
        if isinstance(variable.value, tf.Variable):
            # TensorFlow reads this worker's own part four times as fast.
            yield variable.path, local(variable.value)[0]


def optimizers_of(model: Model) -> Iterable[tuple[str, Any]]:
    """Returns a model's optimizers, each with the name of the attribute that it is, or is in."""
    import keras

    found = {}  # by their ids: TensorFlow keeps attributes in a dict as well, which comes first
    for name, value in vars(model).items():
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in value.values() if isinstance(value, dict) else items:
            if isinstance(item, keras.optimizers.Optimizer):
                found[id(item)] = name, item
    return found.values()


def compare_weights(
    model: Model,
    when: str,
    remedy: str = REMEDY,
    described: Sequence[Entry] = (),
) -> None:
    """Raises FitError in every worker if their variables differ by more than rounding.

    Args:
        model: this worker's.
        when: such as "after epoch 2".
        remedy: the end of the error.
        described: what else is compared, before the variables.
    """
    compare(
        model.distribute_strategy.workers,
        when,
        itertools.chain(described, measures(variables_of(model))),
        remedy,
        digest=[described, digest_of(model)],
    )


def measures(variables: Iterable[tuple[str, tf.Variable]]) -> Iterator[Entry]:
    """Yields what rounding changes little: a projection of each variable's values."""
    for path, variable in variables:
        values = variable.numpy().astype(np.float64).ravel()
        direction = np.random.default_rng(0).normal(size=values.size)
        direction[:1] = 1.0  # so that the projection of a single number is that number
        yield Entry(
            name=path,
            text=f"{variable.dtype.name} {variable.shape}",
            number=float(values @ direction),
            norm=float(np.linalg.norm(values)),
        )


def callback_of(workers: Workers, remedy: str) -> object:
    """Returns a callback for `fit` that compares the weights, and ends `FitError`s with `remedy`.

    It comes after all others, so that it sees what they do.
    """
    import keras

    class SlurmResolverCheck(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
            self.on_test_end()  # which `fit` calls only after a validation
            stops = workers.exchange(f"ends epoch {epoch + 1}", bool(self.model.stop_training))
            compare_weights(self.model, f"after epoch {epoch + 1}", remedy)
            # All workers take the same steps, so that they also stop together.
            self.model.stop_training = any(stops)

        def on_train_end(self, logs: Logs = None) -> None:
            compare_weights(self.model, "after fit", remedy)

        def on_test_end(self, logs: Logs = None) -> None:
            for comparison in self.model.distribute_strategy.comparisons:
                comparison.end()  # the batches may have differed

        on_predict_end = on_test_end

    return SlurmResolverCheck()
