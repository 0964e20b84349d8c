"""Checks that the workers still hold the same model: before `fit`, and after each epoch.

Workers hold equal weights because they do equal things. A difference is a FitError in every worker
that says which worker has what.
"""

from __future__ import annotations

import functools
import itertools
import sys
import zlib
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.log import tell_once
from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras import borrowed
from slurm_resolver.tf.keras.comparison import by_worker
from slurm_resolver.tf.keras.configuration import Entry
from slurm_resolver.tf.keras.file_callbacks import listed

_CHUNKS = 64  # of a list, which the workers compare at once
_VALUES = 1000  # which fit into one message
_ROUNDING = 1e-3  # how far weights may differ by rounding alone, relative to their norm
REMEDY = (
    "Do the same in all workers: leave out what lets one worker alone change the training, such as "
    "a callback, a learning rate or weights in `if task_id == 0:`."
)


def digest_of(model: Any) -> int:
    """Returns a digest of all variables of a model and its optimizers."""
    digest = 0
    for variable in variables_of(model).values():
        digest = zlib.crc32(memoryview(variable.numpy()).cast("B"), digest)
    return digest


def variables_of(model: Any) -> Dict[str, Any]:
    """Returns a model's variables by name, and those of its optimizers.

    The states of random generators are not among them: the workers draw different numbers.
    """
    import keras

    held = [item for value in vars(model).values() for item in _items(value)]
    optimizers = [item for item in held if isinstance(item, keras.optimizers.Optimizer)]
    optimizers += filter(None, [getattr(model, "optimizer", None)])  # none before `compile`
    random = {
        id(item.state)
        for layer in borrowed.FLATTEN_LAYERS.of(model)()
        for value in vars(layer).values()
        for item in _items(value)
        if isinstance(item, keras.random.SeedGenerator)
    }
    found: Dict[int, Tuple[str, Any]] = {}
    local = model.distribute_strategy.experimental_local_results
    for owner in [*optimizers, model]:
        for variable in owner.variables:
            if id(variable) not in random and isinstance(variable.value, tf.Variable):
                # TensorFlow reads this worker's own part four times as fast.
                found[id(variable)] = (variable.path, local(variable.value)[0])
    return {f"{path} ({place})": one for place, (path, one) in enumerate(found.values())}


def _items(value: Any) -> List[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Drift:
    """Compares the variables of the workers' models, of which this worker has one.

    Args:
        callbacks: the kinds of each worker's callbacks, for the error.
    """

    def __init__(self, workers: Workers, model: Any, callbacks: Sequence[List[str]]) -> None:
        self.workers = workers
        self._model = model
        self._callbacks = callbacks

    def compare_now(self, when: str) -> None:
        """Compares the variables that the workers have now; see `compare`."""
        self.compare(
            self.workers.exchange(f"compares its weights {when}", digest_of(self._model)), when
        )

    def compare(self, digests: Sequence[int], when: str) -> None:
        """Raises FitError in every worker if their variables differ by more than rounding.

        Args:
            digests: of all workers' variables, by index.
            when: such as "after epoch 2".
        """
        if len(set(digests)) == 1:
            return
        call = f"compares the weights {when}"
        variables = variables_of(self._model)
        names = list(variables)
        for begin in range(0, max(self.workers.exchange(call, len(names))), _VALUES):
            part = names[begin : begin + _VALUES]
            own = [[name, _shape(variables[name]), *_measure(variables[name])] for name in part]
            told = self.workers.exchange(call, own)
            # Keras numbers the names of layers, so that they may differ.
            for column in itertools.zip_longest(*told, fillvalue=["", "no variable", 0.0, 0.0]):
                name = column[0][0].rpartition(" ")[0]
                shapes = [shape for _, shape, _, _ in column]
                if len(set(shapes)) > 1:
                    self._fail(name, shapes, when)
                values = [value for _, _, value, _ in column]
                norms = [norm for _, _, _, norm in column]
                # Only floats are rounded: a step counts the same in all workers.
                if _differ(values, _ROUNDING * max(norms) * ("float" in shapes[0])):
                    self._fail(name, _shown(values, norms), when)
        tell_once(
            "the workers' weights differ by rounding: their processors compute the same step "
            "differently. Use nodes of one kind for equal weights"
        )

    def _fail(self, what: str, values: Sequence[str], when: str) -> None:
        raise FitError(
            f"{what} differs from worker to worker {when}: "
            f"{by_worker(self.workers.names, values)}. {self._missing_callback()}{REMEDY}"
        )

    def _missing_callback(self) -> str:
        """Returns a sentence about a callback that only some workers have, or ""."""
        everywhere = set(self._callbacks[0]).intersection(*self._callbacks)
        for kinds in self._callbacks:
            for kind in sorted(set(kinds) - everywhere):
                has = [kind if kind in own else f"no {kind}" for own in self._callbacks]
                return f"Callbacks: {by_worker(self.workers.names, has)}. "
        return ""

    def watch(self, arguments: Dict[str, Any]) -> None:
        """Adds a callback after all others in the arguments of `fit`; it compares the workers."""
        check = _check_class()(self)
        given = arguments["callbacks"]
        if not hasattr(given, "callbacks"):
            arguments["callbacks"] = [*listed(given), check]
        elif not any(isinstance(one, type(check)) for one in given.callbacks):
            check.set_model(given.model)
            given.callbacks.append(check)


def _measure(variable: Any) -> List[float]:
    """Returns a projection of a variable's values, and their norm. Rounding changes both little."""
    values = variable.numpy().astype(np.float64).ravel()
    signs = np.random.default_rng(0).integers(0, 2, size=values.size) * 2 - 1
    if values.size == 1:
        return [float(values[0]), abs(float(values[0]))]
    return [float(values @ signs), float(np.linalg.norm(values))]


def _shown(values: Sequence[float], norms: Sequence[float]) -> List[str]:
    """Returns what an error shows of the values of a variable in each worker."""
    if all(abs(value) == norm for value, norm in zip(values, norms)):  # a single number
        return [f"{value:.6g}" for value in values]
    return [f"norm {norm:.6g}, projection {value:.6g}" for value, norm in zip(values, norms)]


def _shape(variable: Any) -> str:
    """Returns the type and shape of a variable, such as "float32 (3, 4)"."""
    return f"{variable.dtype.name} {tuple(variable.shape)}"


def _differ(values: Sequence[float], tolerance: float) -> bool:
    return not np.allclose(values, values[0], rtol=0.0, atol=tolerance, equal_nan=True)


def compare_entries(workers: Workers, call: str, entries: Sequence[Entry]) -> None:
    """Raises FitError in every worker with the first entry that differs from worker to worker."""
    purpose = f"compares what {call} trains with"
    told = workers.exchange(purpose, [zlib.crc32(repr(entries).encode()), len(entries)])
    if len({digest for digest, _ in told}) == 1:
        return
    begin = 0
    end = max(length for _, length in told)
    while end - begin > 1:
        size = -(-(end - begin) // _CHUNKS)
        starts = range(begin, end, size)
        digests = [zlib.crc32(repr(entries[at : at + size]).encode()) for at in starts]
        told = workers.exchange(purpose, digests)
        differs = [len(set(column)) > 1 for column in zip(*told)]
        begin = starts[differs.index(True)]
        end = min(begin + size, end)
    own = list(entries[begin]) if begin < len(entries) else ["", "nothing"]
    by_index = workers.exchange(purpose, [part[:200] for part in own])
    names = {name for name, _ in by_index}
    if len(names) == 1:
        what = names.pop()
        values = [value for _, value in by_index]
    else:  # the models have other parts
        what = "its model"
        values = [f"{name} {value}" for name, value in by_index]
    raise FitError(
        f"{call} differs from worker to worker, in {what}: {by_worker(workers.names, values)}. "
        "Expected the same program in every worker, with the same data, of which each takes its "
        "share. Data that each worker has of its own (AutoShardPolicy.OFF) needs steps_per_epoch."
    )


@functools.cache  # once, and only here, as Keras need not be imported
def _check_class() -> Any:
    class SlurmResolverCheck(sys.modules["keras"].callbacks.Callback):  # type: ignore[misc]
        """Comes after all other callbacks, so that it sees what they have done."""

        def __init__(self, drift: Drift) -> None:
            super().__init__()
            self._drift = drift
            self._epoch = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch = epoch + 1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.stop_training:
                place = f"after step {batch + 1} of epoch {self._epoch}"
                self._drift.workers.exchange(f"stops training {place} (stop_training)", None)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            _end(self.model.train_function)
            own = [digest_of(self.model), bool(self.model.stop_training)]
            told = self._drift.workers.exchange(f"ends epoch {epoch + 1}", own)
            self._drift.compare([digest for digest, _ in told], f"after epoch {epoch + 1}")
            # All workers take the same steps, so that they also stop together.
            self.model.stop_training = any(stops for _, stops in told)

        def on_train_end(self, logs: Any = None) -> None:
            self._drift.compare_now("after fit")

        def on_test_end(self, logs: Any = None) -> None:
            _end(self.model.test_function)

        def on_predict_end(self, logs: Any = None) -> None:
            _end(self.model.predict_function)

    return SlurmResolverCheck


def _end(function: Any) -> None:
    comparison = getattr(function, "comparison", None)
    if comparison is not None:
        comparison.end()
