"""Small programs whose data, model or callbacks have a state, trained whole or interrupted.

The argument "compare" trains each program in this process: whole, and interrupted by an exception
after each of the given steps. It prints as JSON how each ended. The argument "train" trains
programs one after the other with one folder for backups, and sends itself a signal after a step of
its first start, counted over all programs; a later start resumes.

A program ends in one of these ways:

equal
    Weights, history and the state of callbacks are those of the run that was left alone.
told
    They differ, and the first start has said so, with the reason and what to write.
different
    They differ, and nothing was said: a fault of BackupAndResume.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf
from kinds import Action, Fields, Strings
from labelled_rows import BrokenOffError, Interrupt, raise_error

import slurm_resolver as sr
from slurm_resolver import log

ROWS = 32
BATCH = 8
EPOCHS = 4
STEPS = ROWS // BATCH
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X[:, :1]
ARRAYS: Fields = {
    "x": X,
    "y": Y,
    "batch_size": BATCH,
}
SIGNATURE = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))

strategy: Any = None


def rows(first: int = 0, last: int = ROWS) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X[first:last], Y[first:last]))


def part(number: Any) -> tf.data.Dataset:
    return rows().skip(number * 8).take(8)


def numpy_noise(x: Any, y: Any) -> Any:
    noisy = tf.numpy_function(
        lambda value: value + np.random.normal(size=4).astype("float32"), [x], tf.float32
    )
    return tf.ensure_shape(noisy, (4,)), y


# Data. Each function returns a dataset of rows.
DATASETS: dict[str, Action] = {
    "shuffled": lambda: rows().shuffle(ROWS, seed=3),
    "shuffled_and_cached": lambda: rows().shuffle(ROWS, seed=3).cache(),
    "cached_and_shuffled": lambda: rows().cache().shuffle(ROWS, seed=3),
    "files_then_records": lambda: (
        tf.data.Dataset.range(4)
        .shuffle(4, seed=1)
        .interleave(part, cycle_length=2)
        .shuffle(16, seed=3)
    ),
    "concatenated": lambda: (
        rows(0, 16).shuffle(16, seed=3).concatenate(rows(16).shuffle(16, seed=4))
    ),
    "numpy_noise": lambda: rows().map(numpy_noise),
    "unknown_length": lambda: rows().shuffle(ROWS, seed=3).filter(lambda x, y: x[0] < 99.0),
}


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Shuffles after each epoch, and adds noise."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(1)
        self.order = np.arange(ROWS)

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        chosen = self.order[index * BATCH : (index + 1) * BATCH]
        return X[chosen] + self.random.normal(size=(BATCH, 4)).astype("float32"), Y[chosen]

    def on_epoch_end(self) -> None:
        self.order = self.random.permutation(ROWS)


# Models.


class Noise(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw

    def call(self, inputs: Any) -> Any:
        return inputs + self.draw(tf.shape(inputs))


def noisy(draw: Any, **how: Any) -> Fields:
    return {**ARRAYS, "model": perceptron(Noise(draw), **how)}


def perceptron(*layers: Any, kind: Any = keras.Sequential, **how: Any) -> Any:
    with strategy.scope():
        model = kind([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        optimizer = how.pop("optimizer", None) or keras.optimizers.SGD(0.05, momentum=0.5)
        model.compile(optimizer, "mse", **how)
    return model


class Silent(keras.Sequential):  # type: ignore[misc]
    """Its step returns only some of its metrics."""

    def train_step(self, data: Any) -> Fields:
        return {"loss": super().train_step(data)["loss"]}


class OwnOptimizer(keras.Sequential):  # type: ignore[misc]
    """Its step builds another optimizer than that of `compile`."""

    def train_step(self, data: Any) -> Fields:
        with tf.GradientTape() as tape:
            loss = self.compute_loss(
                y=data[1],
                y_pred=self(data[0]),
            )
        weights = self.trainable_variables
        (second,) = tf.nest.flatten(self.second)
        second.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


# Callbacks.


class Stops(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch == 3


class Draws(keras.callbacks.Callback):  # type: ignore[misc]
    """Draws the rate of each epoch as it begins, and halves the weights in the end."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.05 * np.random.rand()

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


class Evaluates(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == STEPS - 1:
            self.model.evaluate(X[:10], Y[:10], verbose=0)


class Rate(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate from its state, which changes in place."""

    def __init__(self, state: Any, rate: Any) -> None:
        super().__init__()
        self.state = state
        self.rate = rate
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        rate = 0.05 / (1 + abs(self.rate(self.state, self.steps)))
        self.model.optimizer.learning_rate.assign(rate)


@dataclasses.dataclass
class Sum:
    total: float = 0.0
    seen: list[int] = dataclasses.field(default_factory=list)

    def add(self, step: int) -> float:
        self.total += step
        self.seen.append(step)
        return self.total + len(self.seen)


def counter() -> Any:
    count = 0

    def increase() -> int:
        nonlocal count
        count += 1
        return count

    return increase


def growing(state: Any, step: int) -> float:
    state.append(Sum(step))
    return float(sum(each.total for each in state))


# The state of a callback, and the rate that it makes of that. Objects in a list, and what a closure
# counts, are not there when the program starts again.
CALLBACKS: dict[str, Any] = {
    "dataclass": (Sum, lambda state, step: state.add(step)),
    "list_of_objects": (list, growing),
    "closure": (counter, lambda state, step: state()),
    "iterator": (lambda: (float(n) for n in range(1000)), lambda state, step: next(state)),
    "global_numpy": (lambda: None, lambda state, step: np.random.normal()),
    "eager_tensorflow": (lambda: None, lambda state, step: float(tf.random.normal(()))),
}


def log_to_csv() -> Any:
    return keras.callbacks.CSVLogger(os.path.join(tempfile.mkdtemp(), "log.csv"))


# Programs: the arguments of `fit`, and the model if it is special. Without data, they train on the
# rows in batches.
PROGRAMS: dict[str, Action] = {
    "endless": lambda: {
        "x": rows().shuffle(ROWS, seed=1).cache().repeat().batch(BATCH),
        "steps_per_epoch": 3,
    },
    "py_dataset": lambda: {"x": Batches()},
    "py_dataset_for_validation": lambda: {"validation_data": Batches()},
    "cached_validation": lambda: {
        "validation_data": rows().shuffle(ROWS, seed=3).take(9).cache().batch(BATCH)
    },
    "keras_random_in_call": lambda: noisy(lambda shape: keras.random.normal((1, 4))),
    "tf_random_in_call": lambda: noisy(lambda shape: tf.random.normal((1, 4))),
    "tf_random_in_eager_call": lambda: noisy(
        lambda shape: tf.random.normal((1, 4)), run_eagerly=True
    ),
    "data_that_ends_within_an_epoch": lambda: {"steps_per_epoch": 3},
    "steps_per_execution": lambda: {
        "x": rows(last=27).batch(BATCH),
        "model": perceptron(steps_per_execution=3),
    },
    "dropout_and_normalization": lambda: {
        "model": perceptron(keras.layers.Dropout(0.5), keras.layers.BatchNormalization())
    },
    # It halves the rate at the start of each epoch, including a resumed one.
    "learning_rate_scheduler": lambda: {
        "callbacks": [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]
    },
    "metric_of_several_numbers": lambda: {
        "model": perceptron(
            metrics=[
                keras.metrics.F1Score(
                    average=None,
                    threshold=0.5,
                )
            ]
        )
    },
    "step_of_its_own": lambda: {
        "model": perceptron(
            kind=Silent,
            metrics=["mae"],
        )
    },
    "drawn_rates": lambda: {"callbacks": [Draws()]},
    # Keras trains one step of an epoch that a callback stops as it begins.
    "stop_at_the_beginning": lambda: {"callbacks": [Stops()]},
    # An epoch's history has the metrics of what was evaluated last.
    "evaluation_after_the_last_step": lambda: {"callbacks": [Evaluates()]},
    "csv_logger": lambda: {**ARRAYS, "callbacks": [log_to_csv()]},
}


def program(function: Action) -> Action:
    PROGRAMS[function.__name__] = function
    return function


def of_dataset(make: Action) -> Action:
    return lambda: {"x": make().batch(BATCH)}


def of_callback(state: Action, rate: Any) -> Action:
    return lambda: {**ARRAYS, "callbacks": [Rate(state(), rate)]}


for _name, _make in DATASETS.items():
    PROGRAMS[_name] = of_dataset(_make)
for _name, _of_rate in CALLBACKS.items():
    PROGRAMS[f"callback_with_{_name}"] = of_callback(*_of_rate)


@program
def random_generator() -> Fields:
    generator = tf.random.Generator.from_seed(3)
    return {"x": rows().map(lambda x, y: (x + generator.normal((4,)), y)).batch(BATCH)}


@program
def layer_in_map() -> Fields:
    layer = keras.layers.GaussianNoise(1.0)
    return {"x": rows().batch(BATCH).map(lambda x, y: (layer(x, training=True), y))}


@program
def generator_of_the_model_in_map() -> Fields:
    """The data change a variable of the model."""
    model = perceptron(keras.layers.Dense(4, "tanh"))
    model.generator = tf.random.Generator.from_seed(3)
    data = rows().batch(BATCH).map(lambda x, y: (x + model.generator.normal((4,)), y))
    return {"x": data, "model": model}


@program
def weight_in_map() -> Fields:
    """The data read a weight of the model, and must be read again."""
    model = perceptron(keras.layers.Dense(4, "tanh"))
    weight = model.layers[0].kernel.value
    data = rows().batch(BATCH).cache().map(lambda x, y: (x + tf.reduce_sum(weight), y))
    return {"x": data, "model": model}


@program
def counting_generator() -> Fields:
    epoch = 0

    def generate() -> Iterator[Any]:
        nonlocal epoch
        epoch += 1
        for row in np.random.default_rng(epoch).permutation(ROWS):
            yield X[row], Y[row]

    data = tf.data.Dataset.from_generator(generate, output_signature=SIGNATURE)
    return {"x": data.batch(BATCH)}


@program
def python_generator() -> Fields:
    def generate() -> Iterator[Any]:
        numbers = np.random.default_rng(1)
        while True:
            chosen = numbers.permutation(ROWS)[:BATCH]
            yield X[chosen], Y[chosen]

    return {"x": generate(), "steps_per_epoch": 3}


@program
def random_generator_in_call() -> Fields:
    generator = tf.random.Generator.from_seed(3)
    return noisy(lambda shape: generator.normal((1, 4)))


@program
def scaled_optimizer() -> Fields:
    """It has a loss scale, averaged weights and a learning-rate schedule."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)
    adam = keras.optimizers.Adam(
        rate,
        use_ema=True,
        ema_momentum=0.9,
    )
    optimizer = keras.mixed_precision.LossScaleOptimizer(adam, initial_scale=2.0)
    return {"model": perceptron(optimizer=optimizer)}


@program
def early_stopping() -> Fields:
    """Ends the training because the rate is too high. A callback also lowers it."""
    stopping = keras.callbacks.EarlyStopping(
        "val_loss",
        patience=1,
        restore_best_weights=True,
    )
    return {
        "model": perceptron(optimizer=keras.optimizers.SGD(0.6)),
        "validation_data": rows(last=9).batch(BATCH),
        "callbacks": [stopping, keras.callbacks.ReduceLROnPlateau("loss", patience=1)],
    }


@program
def optimizer_that_is_not_built() -> Fields:
    model = perceptron(kind=OwnOptimizer)
    with strategy.scope():
        model.second = keras.optimizers.Adam(0.01)
    return {"model": model}


@program
def optimizers_in_a_list() -> Fields:
    model = perceptron(kind=OwnOptimizer)
    with strategy.scope():
        model.second = [keras.optimizers.Adam(0.01)]
    model.second[0].build(model.trainable_variables)
    return {"model": model}


@program
def not_built() -> Fields:
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse")
    return {"model": model}


def fit(name: str, *callbacks: Any) -> Fields:
    """Trains a program from its beginning, and returns its weights and history."""
    keras.utils.set_random_seed(7)
    how = {
        "callbacks": [],
        "epochs": EPOCHS,
        "verbose": 0,
        **PROGRAMS[name](),
    }
    how.setdefault("x", rows().batch(BATCH))
    model = how.pop("model", None) or perceptron(keras.layers.Dense(4, "tanh"))
    others = how.pop("callbacks")
    history = model.fit(
        callbacks=[*callbacks, *others],
        **how,
    )
    return {
        "weights": [value.tolist() for value in model.get_weights()],
        "history": history.history,
    }


def compare(name: str, steps: list[int]) -> Strings:
    """Returns for each step "equal", "told" or "different", or an error."""
    whole = fit(name)
    outcomes = []
    for step in steps:
        log.warned.clear()
        with tempfile.TemporaryDirectory() as folder:
            backup = sr.BackupAndResume(folder, TERMINATION, save_every=1)
            try:
                with contextlib.suppress(BrokenOffError):
                    fit(name, Interrupt(step, raise_error), backup)
                _end_readers()
                warned = [line for line in log.warned if "resume exactly" in line]
                resumed = fit(name, sr.BackupAndResume(folder, TERMINATION, save_every=1))
            except Exception:
                outcomes.append(traceback.format_exc()[-700:])
                continue
        same = repr(resumed) == repr(whole)  # a tensor is no number
        outcomes.append("told" if warned else "equal" if same else "different")
    return outcomes


def _end_readers() -> None:
    """Ends the threads that read data for the interrupted training, and draw for a while."""
    gc.collect()
    drawn = ""
    while drawn != repr(np.random.get_state()):
        drawn = repr(np.random.get_state())
        time.sleep(0.2)


TERMINATION: Any = None


def main() -> None:
    global TERMINATION, strategy
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["compare", "train"])
    parser.add_argument("--folder")
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
    )
    parser.add_argument(
        "programs",
        nargs="*",
        default=list(PROGRAMS),
    )
    args = parser.parse_args()
    if args.kind == "compare":
        TERMINATION = sr.termination_config(None, requeue=None)
        strategy = tf.distribute.get_strategy()
        if args.mirrored:
            cpu = tf.config.list_physical_devices("CPU")[0]
            parts = [tf.config.LogicalDeviceConfiguration()] * 2
            tf.config.set_logical_device_configuration(cpu, parts)
            strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        for name in args.programs:
            print(json.dumps({name: compare(name, args.steps)}), flush=True)
        return
    strategy = sr.MultiWorkerMirroredStrategy()
    callbacks: list[Any] = []
    if args.folder:
        callbacks = [sr.BackupAndResume(args.folder)]
        if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
            signalled = Interrupt(args.steps[0], lambda: os.kill(os.getpid(), signal.SIGUSR1))
            callbacks.insert(0, signalled)
    print(json.dumps([fit(name, *callbacks) for name in args.programs]), flush=True)


if __name__ == "__main__":
    main()
