"""Whole programs: preprocessing, transfer, saving and loading, checkpoints, several models."""

# mypy: allow-subclassing-any

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import keras
import numpy as np
from keras import layers
from keras_programs.callbacks import folder
from keras_programs.common import (
    TOKENS,
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
