"""Whole programs: preprocessing, transfer, saving and loading, checkpoints, several models."""

# mypy: allow-subclassing-any

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras_programs.callbacks import folder
from keras_programs.common import (
    IMAGES,
    NUMBER,
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


add("guide_text_vectorized_in_data", lambda strategy: _texts(strategy, False))
add("guide_text_vectorized_in_model", lambda strategy: _texts(strategy, True))

TABLE: Dict[str, Any] = {
    "age": TOKENS[:, 0],
    "kind": np.array(["low", "mid", "high"])[TOKENS[:, 1] % 3],
    "height": X[:, 0],
}


@program("guide")
def feature_space(strategy: Any) -> Outcome:
    space = keras.utils.FeatureSpace(
        {
            "age": keras.utils.FeatureSpace.integer_categorical(num_oov_indices=0),
            "kind": keras.utils.FeatureSpace.string_categorical(),
            "height": keras.utils.FeatureSpace.float_discretized(3),
        },
        output_mode="concat",
    )
    rows = data(TABLE, Y)
    space.adapt(rows.map(lambda x, y: x))
    model = ready(strategy, lambda: keras.Sequential([layers.Dense(3)]), metrics=["accuracy"])
    return fitted(model, rows.map(lambda x, y: (space(x), y)))


@program("guide")
def preprocessing_layers(strategy: Any) -> Outcome:
    """Lookups, an encoding and an adapted normalization in the model itself."""

    def make() -> Any:
        age, kind, height = (
            keras.Input((1,), name=name, dtype=dtype)
            for name, dtype in [("age", "int32"), ("kind", "string"), ("height", "float32")]
        )
        normalize = layers.Normalization()
        normalize.adapt(X[:, :1])
        lookup = layers.StringLookup(vocabulary=["low", "mid", "high"], output_mode="one_hot")
        encoded = layers.CategoryEncoding(9, output_mode="one_hot")(age)
        hashed = layers.Hashing(4, output_mode="one_hot")(kind)
        joined = layers.Concatenate()([encoded, lookup(kind), normalize(height), hashed])
        return keras.Model([age, kind, height], layers.Dense(3)(joined))

    table = {name: column[:, None] for name, column in TABLE.items()}
    return fitted(ready(strategy, make, metrics=["accuracy"]), data(table, Y), predict=True)


@program("guide")
def adapted_of_a_dataset(strategy: Any) -> Outcome:
    def make() -> Any:
        normalize = layers.Normalization()
        normalize.adapt(data().map(lambda x, y: x))
        return keras.Sequential([normalize, layers.Dense(3)])

    return fitted(ready(strategy, make), data())


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


@program("guide")
def cloned(strategy: Any) -> Outcome:
    model = build(strategy)
    with strategy.scope():
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        copy.compile("adam", crossentropy(), metrics=["accuracy"])
    return fitted(copy, data(), predict=True)


@program("guide")
def exported(strategy: Any) -> Outcome:
    model = build(strategy)
    model.fit(data(), verbose=0)
    place = str(folder() / "export")
    model.export(place, verbose=False)
    loaded = tf.saved_model.load(place)
    return {"predict": numbers(loaded.serve(X[:33]))}


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


@program("guide")
def several_models_in_turn(strategy: Any) -> Outcome:
    """Two models of different kinds, fitted by turns."""
    one, other = build(strategy), build(strategy, outputs=1, loss="mse", metrics=None)
    for _ in range(2):
        one.fit(data(), verbose=0)
        other.fit(data(X, NUMBER), verbose=0)
    return {"one": seen(one), "other": seen(other)}


@program("guide")
def multi_task_with_shared_layers(strategy: Any) -> Outcome:
    def make() -> Any:
        inputs = keras.Input((8, 8, 1), name="image")
        shared = layers.Flatten()(layers.Conv2D(2, 3)(inputs))
        return keras.Model(
            inputs, [layers.Dense(3, name="label")(shared), layers.Dense(1, name="size")(shared)]
        )

    model = ready(
        strategy,
        make,
        loss={"label": crossentropy, "size": keras.losses.Huber},
        loss_weights={"label": 1.0, "size": 0.5},
        metrics={"label": ["accuracy"], "size": ["mae", keras.metrics.R2Score]},
    )
    return fitted(model, data(IMAGES, {"label": Y, "size": NUMBER}, rows=33, batch=8), predict=True)
