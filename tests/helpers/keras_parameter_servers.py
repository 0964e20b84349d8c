"""Trains with Keras 3's `fit` on two workers and a parameter server.

The chief writes the results as JSON to the file "chief".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf
from keras_programs import common as cases

import slurm_resolver as sr

ROWS = np.arange(400 * 3) % cases.ROWS  # for an epoch of 400 steps
METRICS = ["TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives"]
Trial = Callable[[sr.ParameterServerStrategy], Any]
TRIALS: dict[str, Trial] = {}


def trial(function: Trial) -> Trial:
    TRIALS[function.__name__] = function
    return function


def build(strategy: tf.distribute.Strategy) -> Any:
    return cases.build(strategy, optimizer="adam")


@trial
def nothing_is_lost_between_workers(strategy: sr.ParameterServerStrategy) -> Any:
    """Every step and every row is counted once, even if both workers count at the same time."""
    with strategy.scope():
        counts = [getattr(keras.metrics, name)() for name in METRICS]
        model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
        model.compile("sgd", "binary_crossentropy", metrics=counts)
    history = model.fit(
        cases.X[ROWS],
        (cases.Y[ROWS] > 0).astype("float32"),
        batch_size=3,
        epochs=2,
        verbose=0,
    ).history
    return {
        "iterations": int(model.optimizer.iterations),
        "counted": [sum(history[count.name][epoch] for count in counts) for epoch in range(2)],
    }


@trial
def nothing_is_under_way_when_it_is_saved(strategy: sr.ParameterServerStrategy) -> Any:
    """Returns the number of steps in each checkpoint."""
    model = build(strategy)
    backup = sr.BackupAndResume(
        "checkpoints",
        save_every=150,
        max_to_keep=9,
    )
    model.fit(
        tf.data.Dataset.from_tensor_slices((cases.X[ROWS], cases.Y[ROWS])).batch(3),
        epochs=2,
        verbose=0,
        callbacks=[backup],
    )
    steps = []
    for name in tf.train.get_checkpoint_state("checkpoints").all_model_checkpoint_paths:
        reader = tf.train.load_checkpoint(name)
        (iterations,) = (n for n in reader.get_variable_to_shape_map() if "iterations" in n)
        steps.append(int(reader.get_tensor(iterations)))
    return steps


@trial
def evaluation_and_prediction(strategy: sr.ParameterServerStrategy) -> Any:
    """Evaluates and predicts with the strategy and with a local copy; the last batch is shorter."""
    model = build(strategy)
    model.fit(
        cases.data(),
        epochs=2,
        verbose=0,
    )
    copy = build(tf.distribute.get_strategy())
    copy.set_weights(model.get_weights())
    return [
        [
            each.evaluate(
                cases.data(rows=cases.ROWS, batch=7),
                verbose=0,
            ),
            each.predict(cases.X, 7, 0).tolist(),
        ]
        for each in (model, copy)
    ]


@trial
def datasets_of_the_workers(strategy: sr.ParameterServerStrategy) -> Any:
    """A finite dataset is repeated; its length is the length of an epoch."""
    model = build(strategy)
    data = strategy.distribute_datasets_from_function(
        lambda context: cases.data(rows=cases.ROWS, batch=24).shuffle(9)
    )
    history = model.fit(
        data,
        epochs=20,
        class_weight={
            0: 1.0,
            1: 2.0,
            2: 1.0,
        },
        verbose=0,
    ).history
    steps = int(model.optimizer.iterations)
    return [
        steps,
        history["accuracy"],
        model.evaluate(data, verbose=0),
    ]


@trial
def data_that_ends(strategy: sr.ParameterServerStrategy) -> Any:
    model = build(strategy)
    model.fit(
        strategy.distribute_datasets_from_function(
            lambda context: cases.data().filter(lambda x, y: True)
        ),
        epochs=1,
        steps_per_epoch=50,
        verbose=0,
    )


@trial
def an_optimizer_made_outside_the_scope(strategy: sr.ParameterServerStrategy) -> Any:
    model = build(strategy)
    model.compile(keras.optimizers.Adam(), "mse")
    model.fit(cases.data(), verbose=0)


@trial
def a_step_that_fails(strategy: sr.ParameterServerStrategy) -> Any:
    build(strategy).fit(
        cases.X,
        np.full(cases.ROWS, 7),
        verbose=0,
    )


@trial
def the_tutorial(strategy: sr.ParameterServerStrategy) -> Any:
    """Trains as in TensorFlow's tutorial, with the same callbacks, after the errors above."""
    x = tf.random.uniform((10, 10))
    y = tf.random.uniform((10, 10))
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat().batch(64).prefetch(2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile(
            keras.optimizers.SGD(),
            loss="mse",
            steps_per_execution=10,
        )
    history = model.fit(
        data,
        epochs=5,
        steps_per_epoch=20,
        callbacks=[
            keras.callbacks.TensorBoard("log"),
            keras.callbacks.ModelCheckpoint("model.keras"),
            keras.callbacks.BackupAndRestore("backup"),
        ],
        verbose=0,
    ).history
    return [
        len(history["loss"]),
        history["loss"][-1] < history["loss"][0],
        int(model.optimizer.iterations),
        float(
            np.abs(
                keras.models.load_model("model.keras").predict(x, verbose=0)
                - model.predict(x, verbose=0)
            ).max()
        ),
        len(list(Path.cwd().glob("log/train/events*"))),
    ]


def main() -> None:
    resolver = sr.SlurmClusterResolver(
        {
            "chief": 1,
            "ps": 1,
            "worker": -1,
        }
    )
    if resolver.task_type == "worker":
        try:
            sr.ParameterServerStrategy(resolver)
        except sr.JobsError as error:
            print("told", error)
    if resolver.task_type != "chief":
        sys.exit(resolver.serve())
    # The tutorial's partitioner divides only large variables. These models have none.
    divide = tf.distribute.experimental.partitioners.MinSizePartitioner(
        256 << 10,
        max_shards=2,
    )
    strategy = sr.ParameterServerStrategy(resolver, variable_partitioner=divide)
    found = {}
    for name, function in TRIALS.items():
        try:
            found[name] = function(strategy)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path("chief").write_text(json.dumps(found, default=float))


if __name__ == "__main__":
    main()
