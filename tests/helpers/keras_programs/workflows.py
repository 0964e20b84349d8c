"""Whole programs: small models of Keras' guides, transfer, saving and loading, checkpoints."""

# mypy: allow-subclassing-any

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import keras
import numpy as np
from keras import layers, ops
from keras_programs.callbacks import folder
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
    crossentropy,
    data,
    fitted,
    numbers,
    perceptron,
    program,
    ready,
    seen,
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


WORDS = np.array([" ".join("abcdefghij"[token] for token in row) for row in TOKENS])


def _texts(strategy: Any, inside: bool) -> Outcome:
    """Text in the model or, as usual, in the dataset."""
    vectorize = layers.TextVectorization(max_tokens=8, output_sequence_length=5)
    vectorize.adapt(WORDS)

    def make() -> Any:
        first = [keras.Input((), dtype="string"), vectorize] if inside else []
        embedding = layers.Embedding(8, 3)
        return keras.Sequential([*first, embedding, layers.GlobalMaxPooling1D(), layers.Dense(3)])

    model = ready(strategy, make, metrics=["accuracy"])
    rows = data(WORDS, Y)
    return fitted(model, rows if inside else rows.map(lambda x, y: (vectorize(x), y)), predict=True)


add("guide_text_vectorized_in_model", lambda strategy: _texts(strategy, True))


@program("guide")
def transfer_learning(strategy: Any) -> Outcome:
    """The base is frozen, then fine-tuned after compiling again."""
    model = ready(strategy, lambda: keras.Sequential([perceptron(), layers.Dense(3)]))
    base = model.layers[0]
    found = {}
    for name, trainable, rate in [("frozen", False, 0.1), ("tuned", True, 0.001)]:
        base.trainable = trainable
        with strategy.scope():
            model.compile(keras.optimizers.Adam(rate), crossentropy(), metrics=["accuracy"])
        found[name] = fitted(model, data())
    return found


@program("guide")
def lora(strategy: Any) -> Outcome:
    model = build(strategy)
    with strategy.scope():
        model.layers[1].enable_lora(2)
        model.compile("sgd", crossentropy())
    return fitted(model, data(), predict=True)


@program("guide", within=1e-2)
def quantized(strategy: Any) -> Outcome:
    model = build(strategy)
    model.fit(data(), verbose=0)
    model.quantize("int8")
    return {"predict": numbers(model.predict(X[:33], batch_size=8, verbose=0))}


def _saved(strategy: Any, inside: bool, ending: str) -> Outcome:
    model = build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01))
    model.fit(data(), verbose=0)
    file = str(folder() / f"model.{ending}")
    model.save(file)
    if inside:
        with strategy.scope():
            model = keras.models.load_model(file)
    else:
        model = keras.models.load_model(file)
    if ending == "h5":  # Keras itself cannot go on with this optimizer
        return seen(model, test=data(), predict=data())
    return fitted(model, data(), predict=True)


add("guide_saved_and_loaded_inside", lambda strategy: _saved(strategy, True, "keras"))
add("guide_saved_and_loaded_outside", lambda strategy: _saved(strategy, False, "keras"))
add("guide_saved_and_loaded_h5", lambda strategy: _saved(strategy, True, "h5"))


@program("guide")
def made_outside_the_scope(strategy: Any) -> Outcome:
    """A plain program around which nobody has put the scope."""
    keras.utils.set_random_seed(3)
    model = perceptron()
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return fitted(model, data(), predict=True)


def _distributed_training(strategy: Any, inside: bool) -> Outcome:
    """As Keras' guide to distributed training: make or restore, with checkpoints, twice."""
    place = folder()

    def restored() -> Any:
        saved = sorted(str(file) for file in Path(place).glob("*.keras"))
        return keras.models.load_model(saved[-1]) if saved else started()

    def started() -> Any:
        model = perceptron()
        model.compile(keras.optimizers.Adam(0.01), crossentropy(), metrics=["accuracy"])
        return model

    keras.utils.set_random_seed(3)
    found: List[Outcome] = []
    save = keras.callbacks.ModelCheckpoint(str(place / "ckpt-{epoch}.keras"), save_freq="epoch")
    for _ in range(2):
        with strategy.scope():
            model = restored()
            if inside:
                model.fit(data(), epochs=1, callbacks=[save], verbose=0)
        if not inside:
            model.fit(data(), epochs=1, callbacks=[save], verbose=0)
        with strategy.scope():
            found.append(seen(model, test=data(rows=33, batch=8)))
    return {"fits": found, "files": len(list(place.iterdir()))}


add("guide_distributed_training", lambda strategy: _distributed_training(strategy, False))
add("guide_distributed_fit_in_scope", lambda strategy: _distributed_training(strategy, True))
