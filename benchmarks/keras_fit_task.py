"""A worker of benchmarks/keras_fit.py: trains by hand and by `fit` in turn, and prints the times.

The first argument is the library, keras or tf_keras. Each further argument is a model: the width of
its layers, the steps of a block, and the number of blocks, such as 16,20,30.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import time
from typing import Any, Callable

LIBRARY = sys.argv[1]
if LIBRARY == "tf_keras":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf  # noqa: E402 (after TF_USE_LEGACY_KERAS)

import slurm_resolver as sr  # noqa: E402

FEATURES, CLASSES, BATCH = 64, 10, 32


class Times:
    """Times before and after the executions of a block, of the clock and of the CPU."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []

    def record(self) -> None:
        """Records the time, and the CPU time of this thread."""
        self._times.append((time.perf_counter(), time.thread_time()))

    def medians(self, steps: int) -> list[float]:
        """Returns the median time and CPU time of a step in ms.

        Medians leave out the moments in which the machine stalls.

        Args:
            steps: the number of steps in an execution.
        """
        medians = [
            statistics.median(after - before for before, after in zip(times, times[1:]))
            for times in zip(*self._times)
        ]
        return [1000 * median / steps for median in medians]


def build(keras: Any, width: int) -> Any:
    """Returns a perceptron of three layers, whose width decides how long a step takes."""
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])


def build_for_fit(keras: Any, strategy: Any, width: int, per_execution: int) -> Any:
    """Returns a compiled model."""
    with strategy.scope():
        model = build(keras, width)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"], steps_per_execution=per_execution)
    return model


def make_loop(keras: Any, strategy: Any, data: Any, width: int, steps: int) -> Callable[[], Times]:
    """Returns a function that trains a block as TensorFlow's tutorial on custom loops does."""
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

    def train_block() -> Times:
        accuracy.reset_state()
        times = Times()
        times.record()
        for _ in range(steps):
            float(train_step(iterator))
            times.record()
        return times

    return train_block


def make_callback(keras: Any, train_block: Callable[[], Times]) -> Any:
    """Returns a callback that trains a block by hand before each epoch, and records both."""

    class TrainInTurn(keras.callbacks.Callback):  # type: ignore[misc]
        _supports_tf_logs = True  # the callback does not read the logs

        def __init__(self) -> None:
            super().__init__()
            self.by_hand: list[Times] = []
            self.by_fit: list[Times] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.by_hand.append(train_block())
            self.by_fit.append(Times())

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not batch:
                self.by_fit[-1].record()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.by_fit[-1].record()

    return TrainInTurn()


def main() -> None:
    """Trains; worker 0 prints the times of a step for each pair of blocks."""
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
    for argument in sys.argv[2:]:
        width, steps, blocks = map(int, argument.split(","))
        train_block = make_loop(keras, strategy, data, width, steps)
        for way, (per_execution, data_for_fit) in ways.items():
            model = build_for_fit(keras, strategy, width, per_execution)
            callback = make_callback(keras, train_block)
            model.fit(
                data_for_fit,
                epochs=1 + blocks,  # the first traces the graphs
                steps_per_epoch=steps if per_execution == 1 else 2 * per_execution,
                callbacks=[callback],
                verbose=0,
            )
            if strategy.cluster_resolver.task_id == 0:
                for by_hand, by_fit in list(zip(callback.by_hand, callback.by_fit))[1:]:
                    times = *by_hand.medians(1), *by_fit.medians(per_execution)
                    print("ms:", width, way, *times, flush=True)


if __name__ == "__main__":
    main()
