"""The registry, the data, small models and the results that all programs share.

No module in this folder calls TensorFlow on import, because the strategy must come first.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf
from kinds import Action, Fields, Records, Texts

Outcome = Fields
Program = Callable[[tf.distribute.Strategy], Outcome]
PROGRAMS: dict[str, Program] = {}

# Programs whose results on several workers differ from one process. The workers still agree.
DIFFERS_BY_DESIGN: Texts = {}

# How much the other programs may differ, if not by the usual 1e-4.
TOLERANCES: dict[str, float] = {}

# Keras 3.16 weights the loss of each output by the rows of a batch, if their number is a constant.
_KERAS = tuple(map(int, keras.__version__.split(".")[:2]))
WEIGHTED_BY_ROWS = "weights the losses of outputs by rows" if _KERAS >= (3, 16) else None
# It also traces a step anew for a smaller last batch, in one process.
TRACED_TWICE = "begins the sequences again in a second graph" if _KERAS >= (3, 16) else None
ROWS = 120
COLUMNS = 6

_random = np.random.default_rng(7)
X = _random.normal(size=(ROWS, COLUMNS)).astype("float32")
Y = (X @ _random.normal(size=(COLUMNS, 3))).argmax(axis=1).astype("int32")
BINARY = (X[:, :1] + X[:, 1:2] > 0).astype("float32")
NUMBER = np.abs(X[:, :1] * 2 + X[:, 1:2]).astype("float32")
WEIGHT = np.linspace(0.1, 2.0, ROWS).astype("float32")
TOKENS = _random.integers(
    1,
    9,
    size=(ROWS, COLUMNS),
).astype("int32")
LENGTHS = _random.integers(
    1,
    COLUMNS + 1,
    size=ROWS,
)
PADDED = np.where(
    np.arange(COLUMNS) < LENGTHS[:, None],
    TOKENS,
    0,
).astype("int32")


def add(
    name: str, program: Program, differs: str | None = None, within: float | None = None
) -> None:
    assert name not in PROGRAMS, name
    PROGRAMS[name] = program
    if differs:
        DIFFERS_BY_DESIGN[name] = differs
    if within:
        TOLERANCES[name] = within


def add_each(prefix: str, run: Callable[..., Outcome], table: Fields, **how: Any) -> None:
    """Adds a program for each entry of a table; `run` gets the strategy and the entry."""
    for name, entry in table.items():
        add(f"{prefix}_{name}", partial(run, entry=entry), **how)


def program(prefix: str, **how: Any) -> Callable[[Program], Program]:
    def decorate(function: Program) -> Program:
        add(
            f"{prefix}_{function.__name__}",
            function,
            **how,
        )
        return function

    return decorate


def made(value: Any) -> Any:
    """Replaces callables by their results. Callers are in the strategy's scope."""
    return tf.nest.map_structure(lambda one: one() if callable(one) else one, value)


def data(x: Any = X, y: Any = Y, *rest: Any, rows: int = 33, batch: int = 8) -> Any:
    """Returns the first rows in batches; by default the last batch is a single row."""
    columns = tf.nest.map_structure(
        lambda column: column[:rows],
        (x, y, *rest),
    )
    return tf.data.Dataset.from_tensor_slices(columns).batch(batch)


def crossentropy(**how: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True,
        **how,
    )


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


def ready(
    strategy: tf.distribute.Strategy,
    make: Action,
    loss: Any = crossentropy,
    optimizer: Any = sgd,
    metrics: Any = None,
    **how: Any,
) -> Any:
    """Returns a compiled model with the same initial weights on every call."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make()
        model.compile(
            loss=made(loss), optimizer=made(optimizer), metrics=made(metrics), **made(how)
        )
    return model


def perceptron(
    *layers: Action,
    outputs: int = 3,
    activation: Any = None,
    kind: Any = None,
    **dense: Any,
) -> Any:
    """Returns a perceptron with these layers in the middle."""
    inputs = keras.Input((COLUMNS,))
    hidden = keras.layers.Dense(
        8,
        activation="relu",
        **dense,
    )(inputs)
    for layer in layers:
        hidden = layer()(hidden)
    head = keras.layers.Dense(
        outputs,
        activation=activation,
        dtype=keras.config.floatx(),
    )
    return (kind or keras.Model)(
        inputs,
        head(hidden),
    )


def build(strategy: tf.distribute.Strategy, *layers: Action, **how: Any) -> Any:
    """Returns a compiled perceptron, by default for three labels."""
    how.setdefault("metrics", ["accuracy"])
    shape = {key: how.pop(key) for key in ("outputs", "activation", "kind") if key in how}
    return ready(
        strategy,
        lambda: perceptron(*layers, **shape),
        **how,
    )


def numbers(value: Any) -> Any:
    """Converts all tensors in a structure to lists of Python floats."""
    return tf.nest.map_structure(lambda one: np.asarray(one, dtype="float64").tolist(), value)


def seen(model: Any, history: Any = None, test: Any = None, predict: Any = None) -> Outcome:
    """Returns the weights, the history, the evaluation and the predictions of a training."""
    result: Outcome = {"weights": numbers(model.get_weights())}
    if history is not None:
        result["history"] = numbers(history.history)
    if test is not None:
        result["evaluate"] = numbers(
            model.evaluate(
                test,
                verbose=0,
                return_dict=True,
            )
        )
    if predict is not None:
        result["predict"] = numbers(model.predict(predict, verbose=0))
    return result


def fitted(
    model: Any,
    train: Any,
    *,
    epochs: int = 2,
    test: Any = None,
    predict: bool = False,
    evaluate: bool = True,
    **how: Any,
) -> Outcome:
    history = model.fit(
        train,
        epochs=epochs,
        verbose=0,
        **how,
    )
    test = train if test is None and isinstance(train, tf.data.Dataset) else test
    return seen(
        model,
        history,
        test if evaluate else None,
        test if predict else None,
    )


def trained(strategy: tf.distribute.Strategy, entry: Action) -> Outcome:
    """Trains the model that `entry` makes."""
    return fitted(ready(strategy, entry, metrics=["accuracy"]), data(), predict=True)


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    """Records the logs of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.train: Records = []
        self.test: Records = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.train.append(numbers(logs or {}))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.test.append(numbers(logs or {}))
