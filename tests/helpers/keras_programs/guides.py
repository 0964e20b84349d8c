"""Small models after the topics of Keras' guides and examples."""

# mypy: allow-subclassing-any

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Tuple

import keras
from keras import layers, ops
from keras_programs.common import (
    BINARY,
    COLUMNS,
    PADDED,
    TOKENS,
    UNEVEN,
    Outcome,
    X,
    Y,
    add,
    build,
    data,
    fitted,
    perceptron,
    ready,
)

Make = Callable[[], Any]


def chain(shape: Tuple[Any, ...], *steps: Any, dtype: Any = None) -> Any:
    """A functional model: what each step makes of what the one before has made."""
    inputs = keras.Input(shape, dtype=dtype)
    hidden = inputs
    for step in steps:
        hidden = step(hidden)
    return keras.Model(inputs, hidden)


def bidirectional() -> Any:
    first = layers.Bidirectional(layers.LSTM(3, return_sequences=True))
    last = layers.Bidirectional(layers.LSTM(3))
    head = layers.Dense(1, activation="sigmoid")
    return chain((None,), layers.Embedding(9, 4), first, last, head, dtype="int32")


class TokenAndPosition(layers.Layer):
    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.tokens, self.positions = layers.Embedding(9, size), layers.Embedding(COLUMNS, size)

    def call(self, tokens: Any) -> Any:
        return self.tokens(tokens) + self.positions(ops.arange(ops.shape(tokens)[-1]))


class TransformerBlock(layers.Layer):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 3)
        self.dense = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(6)])
        self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()
        self.causal = causal

    def call(self, hidden: Any) -> Any:
        hidden = self.first(hidden + self.attention(hidden, hidden, use_causal_mask=self.causal))
        return self.second(hidden + self.dense(hidden))


def transformer() -> Any:
    head = [layers.GlobalAveragePooling1D(), layers.Dense(3)]
    return chain((COLUMNS,), TokenAndPosition(), TransformerBlock(), *head, dtype="int32")


class Quantizer(layers.Layer):
    """As in VQ-VAE: the nearest of the vectors learnt, whose gradient goes straight through."""

    def build(self, shape: Any) -> None:
        self.vectors = self.add_weight(shape=(shape[-1], 5), initializer="uniform", name="vectors")

    def call(self, x: Any) -> Any:
        distances = ops.sum(self.vectors**2, axis=0) - 2 * ops.matmul(x, self.vectors)
        nearest = ops.one_hot(ops.argmin(distances, axis=1), 5)
        found = ops.matmul(nearest, ops.transpose(self.vectors))
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(found) - x) ** 2))
        self.add_loss(ops.mean((found - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(found - x)


class ComputeSum(layers.Layer):
    """As the guide's layer: a sum that is no weight to be trained."""

    def build(self, shape: Any) -> None:
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")

    def call(self, inputs: Any) -> Any:
        self.total.assign_add(ops.sum(inputs))
        return inputs


# By task: the inputs, the targets, and how a model is compiled for it.
ACCURACY: Dict[str, Any] = {"metrics": ["accuracy"]}
TASKS: Dict[str, Tuple[Any, Any, Dict[str, Any]]] = {
    "rows": (X, Y, ACCURACY),
    "back": (X, X, {"loss": "mse"}),
    "tokens": (TOKENS, Y, ACCURACY),
    "sentiment": (PADDED, BINARY, {"loss": "binary_crossentropy", **ACCURACY}),
}


# By name: the task and the model.
GUIDES: Dict[str, Tuple[str, Make]] = {
    "bidirectional_lstm": ("sentiment", bidirectional),
    "transformer": ("tokens", transformer),
    "vector_quantized": (
        "back",
        lambda: perceptron(lambda: layers.Dense(3), Quantizer, outputs=COLUMNS),
    ),
    "unbuilt_sequential": (
        "rows",
        lambda: keras.Sequential([layers.Dense(4, "relu"), layers.Dense(3)]),
    ),
    "synchronized_batch_normalization": (
        "rows",
        lambda: perceptron(lambda: layers.BatchNormalization(momentum=0.9, synchronized=True)),
    ),
    "frozen_batch_normalization": (
        "rows",
        lambda: perceptron(lambda: layers.BatchNormalization(trainable=False)),
    ),
}


def _of(name: str, **size: int) -> Callable[[Any], Outcome]:
    task, make = GUIDES[name]
    x, y, how = TASKS[task]
    return lambda strategy: fitted(ready(strategy, make, **how), data(x, y, **size), predict=True)


for name in GUIDES:
    add(f"guide_{name}", _of(name))
    add(f"guide_{name}_33", _of(name, **UNEVEN))


def _with(strategy: Any, layer: Make) -> Outcome:
    return fitted(build(strategy, layer), data())


RANDOM = "draws random numbers by row"
LAYERS: Dict[str, Tuple[Make, str]] = {
    "batch_normalization": (
        layers.BatchNormalization,
        "normalizes the rows of a batch by one another, of which a worker sees its part",
    ),
    "dropout": (lambda: layers.Dropout(0.3), RANDOM),
    "compute_sum": (ComputeSum, "keeps a state of its own of the rows that a worker sees"),
}
for name, (layer, reason) in LAYERS.items():
    add(f"guide_{name}", partial(_with, layer=layer), differs=reason)
