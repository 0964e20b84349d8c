"""One worker of benchmarks/keras_fit.py: trains by `fit` and by hand in turn, and tells the times.

Its arguments are the library, keras or tf_keras, and for each model the width of its layers, the
steps of a block, and the number of blocks, as in 16,20,30.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from typing import Any, Callable, List, Tuple

LIBRARY = sys.argv[1]
if LIBRARY == "tf_keras":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf  # noqa: E402 (after TF_USE_LEGACY_KERAS)

import slurm_resolver as sr  # noqa: E402

FEATURES, CLASSES, BATCH = 64, 10, 32


class Times:
    """The time before and after each execution of a step or of several, of clock and CPU."""

    def __init__(self) -> None:
        self._times: List[Tuple[float, float]] = []

    def note(self) -> None:
        """Takes the time; the CPU's is that of the main thread."""
        self._times.append((time.perf_counter(), time.thread_time()))

    def medians(self, steps: int) -> List[float]:
        """Returns the ms of a step, and those of CPU, where `steps` make an execution.

        Medians, as a machine stands still for a second now and then.
        """
        return [
            1000
            * statistics.median(after - before for before, after in zip(times, times[1:]))
            / steps
            for times in zip(*self._times)
        ]


def build(keras: Any, width: int) -> Any:
    """Returns a perceptron of three layers, whose width decides how long a step takes."""
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])


def by_fit(keras: Any, strategy: Any, width: int, per_execution: int) -> Any:
    """Returns a model for `fit`."""
    with strategy.scope():
        model = build(keras, width)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"], steps_per_execution=per_execution)
    return model


def by_hand(keras: Any, strategy: Any, data: Any, width: int, steps: int) -> Callable[[], Times]:
    """Returns what trains a block as TensorFlow's tutorial on custom training loops does."""
    with strategy.scope():
        model = build(keras, width)
        optimizer = keras.optimizers.SGD()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(batch: Any) -> Any:
        images, labels = batch
        with tf.GradientTape() as tape:
            predicted = model(images, training=True)
            loss = tf.nn.compute_average_loss(loss_of(labels, predicted))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(labels, predicted)
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> Any:
        loss = strategy.run(step, args=(next(iterator),))
        return strategy.reduce("SUM", loss, axis=None)

    iterator = iter(strategy.experimental_distribute_dataset(data))

    def block() -> Times:
        accuracy.reset_state()
        times = Times()
        times.note()
        for _ in range(steps):
            float(train_step(iterator))
            times.note()
        return times

    return block


def in_turn(keras: Any, loop: Callable[[], Times]) -> Any:
    """Returns a callback that notes the times of each epoch, and trains by hand before it."""

    class InTurn(keras.callbacks.Callback):  # type: ignore[misc]
        _supports_tf_logs = True  # it does not read them

        def __init__(self) -> None:
            super().__init__()
            self.by_hand: List[Times] = []
            self.by_fit: List[Times] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.by_hand.append(loop())
            self.by_fit.append(Times())

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not batch:
                self.by_fit[-1].note()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.by_fit[-1].note()

    return InTurn()


def main() -> None:
    """Trains, and prints in worker 0 the ms of a step in each two blocks, by hand and by `fit`."""
    strategy = sr.MultiWorkerMirroredStrategy()
    keras = importlib.import_module(LIBRARY)
    batch = BATCH * strategy.num_replicas_in_sync
    rows = tf.random.stateless_uniform((batch * 20, FEATURES), seed=(1, 2))
    labels = tf.range(batch * 20) % CLASSES
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    endless = tf.data.Dataset.from_tensor_slices((rows, labels)).repeat().with_options(options)
    data = endless.batch(batch)
    ways = {"1": (1, data), "10": (10, data)}
    if LIBRARY == "keras":
        ways["uneven"] = (1, endless.batch(batch - 1))
    for task in sys.argv[2:]:
        width, steps, blocks = map(int, task.split(","))
        loop = by_hand(keras, strategy, data, width, steps)
        for kind, (per_execution, of_fit) in ways.items():
            model = by_fit(keras, strategy, width, per_execution)
            turns = in_turn(keras, loop)
            model.fit(
                of_fit,
                epochs=1 + blocks,  # the first traces the graphs
                steps_per_epoch=steps if per_execution == 1 else 2 * per_execution,
                callbacks=[turns],
                verbose=0,
            )
            if strategy.cluster_resolver.task_id == 0:
                for one, other in list(zip(turns.by_hand, turns.by_fit))[1:]:
                    times = *one.medians(1), *other.medians(per_execution)
                    print("ms:", width, kind, *times, flush=True)


if __name__ == "__main__":
    main()
