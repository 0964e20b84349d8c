"""Trains models for an epoch on two workers; worker 0 prints the collectives of a step of each.

They are counted in the graph that `fit` runs, since each of them takes a round trip between nodes.
"""

from __future__ import annotations

import keras
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

import slurm_resolver as sr

COLLECTIVES = ("CollectiveReduceV2", "CollectiveGatherV2")

layers = keras.layers
call = AtomicFunction.call_flat
counts: list[int] = []


def count_and_call(function: AtomicFunction, *values: object) -> object:
    """Counts the collectives of a function that is called, and calls it."""
    graph = function.graph.as_graph_def()
    bodies = [
        graph.node,
        *(inner.node_def for inner in graph.library.function),
    ]
    counts.append(sum(node.op in COLLECTIVES for nodes in bodies for node in nodes))
    return call(function, *values)


AtomicFunction.call_flat = count_and_call
strategy = sr.MultiWorkerMirroredStrategy()
images = tf.random.stateless_uniform(
    (64, 8, 8, 2),
    seed=(1, 2),
)
labels = tf.range(64) % 4
MODELS = {
    "convolutions": [
        layers.Conv2D(4, 3),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
    ],
    "synchronized": [layers.Conv2D(4, 3), layers.BatchNormalization(synchronized=True)],
}
for name, hidden in MODELS.items():
    with strategy.scope():
        outputs = [layers.Flatten(), layers.Dense(4, activation="softmax")]
        model = keras.Sequential(
            [
                keras.Input((8, 8, 2)),
                *hidden,
                *outputs,
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images, labels, batch_size=16, epochs=1, verbose=0)
    if strategy.cluster_resolver.task_id == 0:
        print("told", name, counts[-1])
