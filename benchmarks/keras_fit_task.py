"""One worker of benchmarks/keras_fit.py: trains in one way, and tells its steps a second."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable

WAY, UNITS, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LEGACY = WAY.startswith("tf_keras")
if LEGACY:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf  # noqa: E402 (after TF_USE_LEGACY_KERAS)

import slurm_resolver as sr  # noqa: E402

FEATURES, CLASSES, BATCH = 64, 10, 32
PER_EXECUTION = 10 if WAY.endswith("10") else 1


def build(keras: Any) -> Any:
    """Returns a perceptron of three layers; `UNITS` decides how long a step takes."""
    layers = [keras.layers.Dense(UNITS, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(CLASSES)])


def seconds(train: Callable[[], Any]) -> float:
    """Returns what the second call takes: the first one also traces the graph."""
    train()
    start = time.perf_counter()
    train()
    return time.perf_counter() - start


def by_fit(keras: Any, strategy: Any, data: Any) -> float:
    """Trains with `fit`."""
    with strategy.scope():
        model = build(keras)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"], steps_per_execution=PER_EXECUTION)
    return seconds(lambda: model.fit(data, steps_per_epoch=STEPS, verbose=0))


def by_hand(keras: Any, strategy: Any, data: Any) -> float:
    """Trains as TensorFlow's tutorial on custom training loops does."""
    with strategy.scope():
        model = build(keras)
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

    def epoch() -> None:
        for _ in range(STEPS):
            float(train_step(iterator))

    return seconds(epoch)


def main() -> None:
    """Trains twice, and prints the steps a second of the second time."""
    strategy = sr.MultiWorkerMirroredStrategy()
    batch = BATCH * strategy.num_replicas_in_sync
    rows = tf.random.stateless_uniform((batch * 20, FEATURES), seed=(1, 2))
    labels = tf.range(batch * 20) % CLASSES
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).repeat().batch(batch)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    if LEGACY:
        import tf_keras as keras
    else:
        import keras
    train = by_hand if WAY == "loop" else by_fit
    taken = train(keras, strategy, data.with_options(options))
    print(f"steps a second: {STEPS / taken:.2f}", flush=True)


if __name__ == "__main__":
    main()
