"""Small models after the topics of Keras' guides and examples."""

# mypy: allow-subclassing-any

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Tuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.common import (
    BINARY,
    COLUMNS,
    IMAGES,
    NUMBER,
    ONE_HOT,
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
    program,
    ready,
)

Make = Callable[[], Any]
SERIES = X[..., None]
PAST, FUTURE = SERIES[:, :3], SERIES[:, 3:]


def chain(shape: Tuple[Any, ...], *steps: Any, dtype: Any = None) -> Any:
    """A functional model: what each step makes of what the one before has made."""
    inputs = keras.Input(shape, dtype=dtype)
    hidden = inputs
    for step in steps:
        hidden = step(hidden)
    return keras.Model(inputs, hidden)


def residual(*steps: Any) -> Callable[[Any], Any]:
    def apply(inputs: Any) -> Any:
        hidden = inputs
        for step in steps:
            hidden = step(hidden)
        return layers.Add()([inputs, hidden])

    return apply


def attending(**how: Any) -> Callable[[Any], Any]:
    attention = layers.MultiHeadAttention(2, 3)
    return lambda hidden: attention(hidden, hidden, **how)


def convnet() -> Any:
    pictures = [layers.Conv2D(3, 3, activation="relu"), layers.MaxPooling2D()]
    return chain((8, 8, 1), *pictures, layers.Flatten(), layers.Dense(3))


def bidirectional() -> Any:
    first = layers.Bidirectional(layers.LSTM(3, return_sequences=True))
    last = layers.Bidirectional(layers.LSTM(3))
    head = layers.Dense(1, activation="sigmoid")
    return chain((None,), layers.Embedding(9, 4), first, last, head, dtype="int32")


def unet() -> Any:
    inputs = keras.Input((8, 8, 1))
    first = layers.Conv2D(2, 3, padding="same", activation="relu")(inputs)
    deep = layers.SeparableConv2D(4, 3, strides=2, padding="same")(first)
    back = layers.UpSampling2D()(layers.Conv2DTranspose(2, 3, padding="same")(deep))
    return keras.Model(inputs, layers.Conv2D(2, 1)(layers.Concatenate()([first, back])))


class Patches(layers.Layer):
    """Pictures in pieces, with a learnt position for each."""

    def build(self, shape: Any) -> None:
        self.position = self.add_weight(shape=(4, 6), name="position")
        self.dense = layers.Dense(6)

    def call(self, images: Any) -> Any:
        pieces = ops.image.extract_patches(images, (4, 4))
        return self.dense(ops.reshape(pieces, (ops.shape(images)[0], 4, 16))) + self.position


def vision_transformer() -> Any:
    block = residual(layers.LayerNormalization(), attending())
    mixed = residual(layers.LayerNormalization(), layers.Dense(6, activation="gelu"))
    head = [layers.GlobalAveragePooling1D(), layers.Dense(3)]
    return chain((8, 8, 1), Patches(), block, mixed, *head)


def mlp_mixer() -> Any:
    tokens = residual(layers.Permute((2, 1)), layers.Dense(4), layers.Permute((2, 1)))
    channels = residual(layers.LayerNormalization(), layers.Dense(6, activation="gelu"))
    head = [layers.GlobalAveragePooling1D(), layers.Dense(3)]
    return chain((8, 8, 1), Patches(), tokens, channels, *head)


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


def miniature_gpt() -> Any:
    block = TransformerBlock(causal=True)
    return chain((COLUMNS,), TokenAndPosition(), block, layers.Dense(9), dtype="int32")


def sequence_to_sequence() -> Any:
    source, target = keras.Input((None, 1)), keras.Input((None, 1))
    _, *states = layers.LSTM(3, return_state=True)(source)
    decoded = layers.LSTM(3, return_sequences=True)(target, initial_state=states)
    return keras.Model([source, target], layers.Dense(1)(decoded))


class Recommender(keras.Model):
    """As collaborative filtering: users and films, and a bias for each."""

    def __init__(self) -> None:
        super().__init__()
        self.users = layers.Embedding(9, 3, embeddings_regularizer=keras.regularizers.L2(1e-3))
        self.films, self.bias = layers.Embedding(9, 3), layers.Embedding(9, 1)

    def call(self, pairs: Any) -> Any:
        product = ops.sum(self.users(pairs[:, 0]) * self.films(pairs[:, 1]), axis=-1)
        return ops.sigmoid(product[:, None] + self.bias(pairs[:, 0]))


def mixture(y_true: Any, y_pred: Any) -> Any:
    """What a mixture of two normal distributions says against the rows."""
    mean, scale, share = ops.split(y_pred, 3, axis=-1)
    scale = ops.softplus(scale) + 0.1
    log = -0.5 * ops.square((y_true - mean) / scale) - ops.log(scale)
    return -ops.logsumexp(log + ops.log_softmax(share), axis=-1)


def super_resolution() -> Any:
    steps = [
        layers.Conv2D(4, 3, padding="same"),
        layers.Lambda(lambda x: tf.nn.depth_to_space(x, 2)),
    ]
    return chain((4, 4, 1), *steps)


def convolutions() -> Any:
    down = layers.Conv1D(3, 3, strides=2, padding="same")
    up = layers.Conv1DTranspose(1, 3, strides=2, padding="same")
    return chain((COLUMNS, 1), down, up)


def siamese() -> Any:
    left, right = keras.Input((3,)), keras.Input((3,))
    shared = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(2)])
    distance = layers.Lambda(
        lambda pair: ops.sqrt(ops.sum(ops.square(pair[0] - pair[1]), 1, keepdims=True) + 1e-6)
    )([shared(left), shared(right)])
    return keras.Model([left, right], layers.Dense(1, activation="sigmoid")(distance))


def contrastive(y_true: Any, y_pred: Any) -> Any:
    far = ops.square(ops.maximum(1.0 - y_pred, 0.0))
    return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * far)


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


def cross_network() -> Any:
    """Wide, deep and crossed."""
    inputs = keras.Input((COLUMNS,))
    crossed = inputs
    for _ in range(2):
        crossed = inputs * layers.Dense(COLUMNS)(crossed) + crossed
    deep = layers.Dense(4, activation="relu")(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.Concatenate()([crossed, deep, inputs])))


def additive_attention() -> Any:
    inputs = keras.Input((COLUMNS,), dtype="int32")
    hidden = layers.GRU(4, return_sequences=True)(layers.Embedding(9, 4, mask_zero=True)(inputs))
    last = layers.GRU(4)(hidden)
    context = layers.AdditiveAttention()([layers.Reshape((1, 4))(last), hidden])
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(context)))


def pooled(*steps: Any, shape: Tuple[int, ...] = (COLUMNS, 1)) -> Make:
    return lambda: chain(shape, *(step() for step in steps), layers.Flatten(), layers.Dense(3))


class ComputeSum(layers.Layer):
    """As the guide's layer: a sum that is no weight to be trained."""

    def build(self, shape: Any) -> None:
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")

    def call(self, inputs: Any) -> Any:
        self.total.assign_add(ops.sum(inputs))
        return inputs


class Centralized(keras.optimizers.RMSprop):
    """As gradient centralization: every gradient less its mean."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        grads = [
            grad - ops.mean(grad, axis=list(range(len(grad.shape) - 1)), keepdims=True)
            if len(grad.shape) > 1
            else grad
            for grad in grads
        ]
        return super().apply(grads, trainable_variables)


class Subclass(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [layers.Dense(4, activation="relu"), layers.Dense(3)]

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = inputs
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


# By task: the inputs, the targets, and how a model is compiled for it.
ACCURACY: Dict[str, Any] = {"metrics": ["accuracy"]}
TASKS: Dict[str, Tuple[Any, Any, Dict[str, Any]]] = {
    "rows": (X, Y, ACCURACY),
    "numbers": (X, NUMBER, {"loss": lambda: mixture}),
    "one_hot": (X, ONE_HOT, {"loss": "mse"}),
    "back": (X, X, {"loss": "mse"}),
    "centralized": (X, Y, {"optimizer": lambda: Centralized(0.01), **ACCURACY}),
    "halves": ((X[:, :3], X[:, 3:]), BINARY, {"loss": lambda: contrastive}),
    "series": (SERIES, Y, ACCURACY),
    "holes": (np.maximum(SERIES, 0), Y, ACCURACY),
    "forecast": (SERIES, NUMBER, {"loss": "mse", "optimizer": keras.optimizers.Adam}),
    "series_back": (SERIES, SERIES, {"loss": "mse"}),
    "past": ((PAST, FUTURE), FUTURE, {"loss": "mse"}),
    "films": (np.repeat(X, 2, axis=1).reshape(-1, 3, 4, 1), Y, ACCURACY),
    "images": (IMAGES, Y, {"optimizer": keras.optimizers.AdamW, **ACCURACY}),
    "masks": (IMAGES, (IMAGES > 0.5).astype("int32")[..., 0], ACCURACY),
    "enlarged": (IMAGES[:, ::2, ::2], IMAGES, {"loss": "mse"}),
    "tokens": (TOKENS, Y, ACCURACY),
    "padded": (PADDED, Y, ACCURACY),
    "sentiment": (PADDED, BINARY, {"loss": "binary_crossentropy", **ACCURACY}),
    "next_token": (TOKENS, np.roll(TOKENS, -1, axis=1), ACCURACY),
    "ratings": (TOKENS[:, :2], BINARY, {"loss": "mse"}),
}


def dense(units: int, activation: Any = None) -> Make:
    return lambda: layers.Dense(units, activation=activation)


# By name: the task and the model.
GUIDES: Dict[str, Tuple[str, Make]] = {
    "mnist_convnet": ("images", convnet),
    "bidirectional_lstm": ("sentiment", bidirectional),
    "timeseries_lstm": (
        "forecast",
        lambda: chain((COLUMNS, 1), layers.LSTM(4), layers.Dense(1)),
    ),
    "anomalies": ("series_back", convolutions),
    "unet": ("masks", unet),
    "vision_transformer": ("images", vision_transformer),
    "mlp_mixer": ("images", mlp_mixer),
    "transformer": ("tokens", transformer),
    "miniature_gpt": ("next_token", miniature_gpt),
    "seq2seq": ("past", sequence_to_sequence),
    "collaborative_filtering": ("ratings", Recommender),
    "mixture_density": ("numbers", lambda: perceptron(outputs=6)),
    "super_resolution": ("enlarged", super_resolution),
    "siamese": ("halves", siamese),
    "vector_quantized": ("back", lambda: perceptron(dense(3), Quantizer, outputs=COLUMNS)),
    "wide_deep_cross": ("rows", cross_network),
    "additive_attention": ("padded", additive_attention),
    "masked_timeseries": ("holes", pooled(layers.Masking, lambda: layers.GRU(3))),
    "conv_lstm": ("films", pooled(lambda: layers.ConvLSTM1D(2, 2), shape=(3, 4, 1))),
    "depthwise": ("images", pooled(lambda: layers.DepthwiseConv2D(3), shape=(8, 8, 1))),
    "group_norm": ("series", pooled(dense(4), lambda: layers.GroupNormalization(2))),
    "spectral_norm": ("series", pooled(lambda: layers.SpectralNormalization(layers.Dense(4)))),
    "rms_and_unit_norm": ("series", pooled(layers.RMSNormalization, layers.UnitNormalization)),
    "prelu": ("series", pooled(layers.PReLU, dense(3, "swish"))),
    "einsum_dense": ("series", pooled(lambda: layers.EinsumDense("abc,cd->abd", (COLUMNS, 3)))),
    "gradient_centralization": ("centralized", perceptron),
    "unbuilt_sequential": ("rows", lambda: keras.Sequential([dense(4, "relu")(), dense(3)()])),
    "built_sequential": (
        "one_hot",
        lambda: keras.Sequential([keras.Input((COLUMNS,)), layers.Dense(3)]),
    ),
    "subclass": ("rows", Subclass),
    "nested": ("rows", lambda: keras.Sequential([perceptron(), layers.ReLU(), Subclass()])),
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
    "gaussian_noise": (lambda: layers.GaussianNoise(0.1), RANDOM),
    "compute_sum": (ComputeSum, "keeps a state of its own of the rows that a worker sees"),
}
for name, (layer, reason) in LAYERS.items():
    add(f"guide_{name}", partial(_with, layer=layer), differs=reason)


@program("guide", differs=RANDOM)
def augmented_images(strategy: Any) -> Outcome:
    def make() -> Any:
        changes = [layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)]
        return keras.Sequential([keras.Input((8, 8, 1)), *changes, convnet()])

    return fitted(ready(strategy, make), data(IMAGES, Y))
