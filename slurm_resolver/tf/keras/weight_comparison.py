"""Checks that the workers still hold the same weights: before `fit`, and after each epoch.

Workers hold equal weights because they do equal things. They compare digests, which costs one
message. Only if these differ do they exchange what the digests are made of, in blocks, until the
first difference. It is a FitError in every worker that says which worker has what.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import tell_once
from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.progress import reporter

_AT_ONCE = 200  # variables whose measures fit into one message
# What `_measure` returns of a variable that a worker's model lacks.
_NO_VARIABLE = ("a variable", "no variable", "", 0.0, 0.0)
_ROUNDING = 1e-3  # how far weights may differ by rounding alone, relative to their norm
REMEDY = (
    "Do the same in all workers: leave out what lets one worker alone change the training, such as "
    "a callback, a learning rate or weights in `if task_id == 0:`."
)


def digest_of(model: Any) -> int:
    """Returns a digest of all variables of a model and its optimizers."""
    digest = 0
    for _, variable in variables_of(model):
        digest = zlib.crc32(variable.numpy().tobytes(), digest)
    return digest


def variables_of(model: Any) -> list[tuple[str, tf.Variable]]:
    """Returns the paths and values of a model's variables, after those of its optimizers.

    The states of random generators are not among them: the workers draw different numbers.
    """
    import keras

    variables = []
    for value in vars(model).values():
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in value.values() if isinstance(value, dict) else items:
            if isinstance(item, keras.optimizers.Optimizer):
                variables += item.variables
    variables += model.weights
    distinct = {id(variable): variable for variable in variables}
    local = model.distribute_strategy.experimental_local_results
    return [
        # TensorFlow reads this worker's own part four times as fast.
        (variable.path, local(variable.value)[0])
        for variable in distinct.values()
        if isinstance(variable.value, tf.Variable)
    ]


def compare_weights(workers: Workers, model: Any, callbacks: Sequence[str], when: str) -> None:
    """Raises FitError in every worker if their variables differ by more than rounding.

    Args:
        workers: of which this one has one model.
        model: this worker's.
        callbacks: the kinds of each worker's callbacks, for the error.
        when: such as "after epoch 2".
    """
    call = f"compares its weights {when}"
    if len(set(workers.exchange(call, digest_of(model)))) == 1:
        return
    own = [_measure(path, variable) for path, variable in variables_of(model)]
    for begin in itertools.count(0, _AT_ONCE):
        parts = workers.exchange(call, own[begin : begin + _AT_ONCE])
        if not any(parts):
            break
        for column in itertools.zip_longest(*parts, fillvalue=_NO_VARIABLE):
            paths, shapes, shown, values, norms = zip(*column)
            # Only floats are rounded: a step counts the same in all workers.
            is_rounded = "float" in shapes[0]
            tolerance = _ROUNDING * max(norms) * is_rounded
            # Keras numbers the names of layers, so that they may differ.
            if len(set(shapes)) > 1:
                shown = shapes
            elif np.allclose(values, values[0], rtol=0.0, atol=tolerance, equal_nan=True):
                continue
            others = f"Callbacks: {workers.holders(callbacks)}. " if len(set(callbacks)) > 1 else ""
            raise FitError(
                f"{paths[0]} differs from worker to worker {when}: {workers.holders(shown)}. "
                f"{others}{REMEDY}"
            )
    tell_once(
        "the workers' weights differ by rounding: their processors compute the same step "
        "differently. Use nodes of one kind for equal weights"
    )


def _measure(path: str, variable: tf.Variable) -> list[Any]:
    """Returns what the workers compare of a variable, which rounding changes little.

    After the path come the type and shape, what an error shows of the values, a projection of them,
    and their norm.
    """
    values = variable.numpy().astype(np.float64).ravel()
    direction = np.random.default_rng(0).normal(size=values.size)
    projection = float(values @ direction)
    norm = float(np.linalg.norm(values))
    shown = f"norm {norm:.6g}, projection {projection:.6g}"
    if values.size == 1:
        shown = f"{values[0]:.6g}"
    return [path, f"{variable.dtype.name} {tuple(variable.shape)}", shown, projection, norm]


def callback_of(workers: Workers, callbacks: Sequence[str]) -> Any:
    """Returns a callback for `fit` that comes after all others, so that it sees what they do.

    It compares the weights, and gives `callbacks` to `compare_weights`.
    """

    import keras

    class SlurmResolverCheck(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.stop_training:
                place = f"after step {batch + 1} of epoch {reporter.epoch}"
                workers.exchange(f"stops training {place} (stop_training)", None)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.on_test_end()  # which `fit` calls only after a validation
            stops = workers.exchange(f"ends epoch {epoch + 1}", bool(self.model.stop_training))
            compare_weights(workers, self.model, callbacks, f"after epoch {epoch + 1}")
            # All workers take the same steps, so that they also stop together.
            self.model.stop_training = any(stops)

        def on_train_end(self, logs: Any = None) -> None:
            compare_weights(workers, self.model, callbacks, "after fit")

        def on_test_end(self, logs: Any = None) -> None:
            model = self.model
            for function in (model.train_function, model.test_function, model.predict_function):
                comparison = getattr(function, "comparison", None)
                if comparison:
                    comparison.end()  # the batches may have differed

        on_predict_end = on_test_end

    return SlurmResolverCheck()
