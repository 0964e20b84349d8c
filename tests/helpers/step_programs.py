"""Programs whose steps are partitioned: Keras' own steps, steps that compare rows, and others.

A program is a model, compiled, and the batches that it trains on. `CASES` has them by name, with
the number of collectives that a step may take at most: one more is a loss of speed that no result
shows.

The models are small, and their numbers are of 32 bits, as in most programs; the tests allow for
rounding. Steps of 64 bits, and of random operations, are in `random_steps`.
"""

from __future__ import annotations

import operator
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf
from keras_3 import keras
from keras_programs.common import COLUMNS, PADDED, X, Y, crossentropy
from keras_programs.losses import precision
from keras_programs.steps import NETWORKS, Networks, small

from slurm_resolver.tf.partition.emission import Plan
from slurm_resolver.tf.partition.step import plan_step

ROWS = 13  # of a batch; the last batch has fewer
CLASSES = 3

layers: Any = keras.layers
ops: Any = keras.ops
optimizers: Any = keras.optimizers
mean: Any = layers.GlobalAveragePooling1D

Data = tuple[Any, Any]
Program = Callable[[], tuple[Any, Data]]


class Case(NamedTuple):
    """A program, and how many collectives a step of it has at most."""

    program: Program
    collectives: int
    nightly: bool


CASES: dict[str, Case] = {}


def case(collectives: int, nightly: bool = True) -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        CASES[program.__name__] = Case(
            program,
            collectives,
            nightly,
        )
        return program

    return note


random = np.random.default_rng(1)
TABLE = X[: 3 * ROWS]
LABELS = Y[: 3 * ROWS]
TOKENS = PADDED[: 3 * ROWS]
IMAGES = random.normal(size=(3 * ROWS, 8, 8, 3)).astype("float32")
SERIES = random.normal(size=(3 * ROWS, 5, 2)).astype("float32")


def classifier(
    inputs: Any,
    hidden: Any,
    model: Any = keras.Model,
    **given: Any,
) -> Any:
    """Returns a compiled model with a dense output."""
    found = model(inputs, layers.Dense(CLASSES)(hidden))
    arguments = {
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": crossentropy(),
        "metrics": ["accuracy"],
    }
    found.compile(**{**arguments, **given})
    return found


def stacked(
    inputs: Any, data: Data, *hidden: Any, model: Any = keras.Model, **given: Any
) -> tuple[Any, Data]:
    """Returns a classifier of these layers, and its data."""
    found = inputs
    for layer in hidden:
        found = layer(found)
    return classifier(inputs, found, model, **given), data


def mlp(*more: Any, **given: Any) -> tuple[Any, Data]:
    """Returns a model of dense layers, and of others after the first one."""
    first = layers.Dense(8, "relu")
    return stacked(keras.Input((COLUMNS,)), (TABLE, LABELS), first, *more, **given)


def tokens_model(*hidden: Any) -> tuple[Any, Data]:
    """Returns a model of tokens, of which some are masked."""
    inputs = keras.Input((6,), dtype="int32")
    embedding = layers.Embedding(9, 8, mask_zero=True)
    return stacked(inputs, (TOKENS, LABELS), embedding, *hidden)


def images_model(*hidden: Any, **given: Any) -> tuple[Any, Data]:
    return stacked(keras.Input((8, 8, 3)), (IMAGES, LABELS), *hidden, layers.Flatten(), **given)


def series_model(*hidden: Any) -> tuple[Any, Data]:
    return stacked(keras.Input((5, 2)), (SERIES, LABELS), *hidden)


# --- Keras' own steps ----------------------------------------------------------------------------


@case(2, nightly=False)
def speech() -> tuple[Any, Data]:
    """CTC, whose loops are functions as TensorFlow 1 made them; rows of one or two letters."""
    model = keras.Sequential(
        [
            keras.Input((5, 2)),
            layers.GRU(4, return_sequences=True),
            layers.Dense(4),
        ]
    )
    model.compile(optimizers.SGD(0.1), keras.losses.CTC())
    letters = np.stack([LABELS + 1, LABELS[::-1]], axis=1)
    return model, (SERIES, letters)


@case(collectives=1, nightly=False)
def convolutions() -> Any:
    return images_model(
        layers.Conv2D(
            4,
            3,
            activation="relu",
            padding="same",
        ),
        layers.MaxPooling2D(),
        layers.DepthwiseConv2D(3),
        layers.AveragePooling2D(2),
    )


@case(collectives=1, nightly=False)
def compiled_and_dilated_convolutions() -> Any:
    """Keras lets XLA compile those of groups. TensorFlow has no kernel for them in float64."""
    with precision("float64"):
        return images_model(
            layers.Conv2D(6, 3, groups=3),
            layers.Conv2D(4, 2, dilation_rate=2),
        )


@case(collectives=5)
def synchronized_batch_normalization() -> Any:
    return images_model(
        layers.BatchNormalization(synchronized=True),
        layers.Conv2D(4, 3),
        layers.BatchNormalization(synchronized=True),
        # Adam would enlarge the rounding of a bias' gradient before the statistics, which is 0.
        optimizer=optimizers.SGD(0.1),
    )


@case(collectives=1)
def half_precision() -> Any:
    with precision("mixed_float16"):
        return mlp(optimizer=optimizers.SGD(0.1))


class Attention(keras.layers.Layer):  # type: ignore[misc]
    """Self-attention beside its input."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.supports_masking = True
        self._attention = layers.MultiHeadAttention(
            2,
            4,
            **given,
        )

    def call(self, inputs: Any) -> Any:
        attended = self._attention(inputs, inputs)
        return layers.add([inputs, attended])


# --- Steps that compare rows ---------------------------------------------------------------------


def network(kind: Callable[[], Any]) -> tuple[Any, Data]:
    """Returns one of the models of several networks, which have steps of their own."""
    model = kind()
    model.compile()
    return model, (TABLE, LABELS)


def two_views(loss_of: Callable[[Any, Any], Any]) -> tuple[Any, Data]:
    """Returns a model whose loss compares two views of each row, which are its halves."""

    class TwoViews(Networks):
        def loss_of(self, x: Any) -> Any:
            return loss_of(*map(self.embedding, ops.split(x, 2, axis=1)))

    return network(lambda: TwoViews(embedding=small(COLUMNS // 2, 4)))


@case(collectives=3, nightly=False)
def simclr() -> Any:
    def loss(first: Any, second: Any) -> Any:
        views = tf.concat([first, second], 0)
        both = tf.math.l2_normalize(views, 1)
        rows = tf.shape(first)[0]
        alike = tf.matmul(
            both,
            both,
            transpose_b=True,
        )
        alike /= 0.3
        alike -= 1e9 * tf.eye(2 * rows)
        places = tf.range(rows)
        labels = tf.concat([places + rows, places], 0)
        return tf.reduce_mean(errors(labels, alike))

    return two_views(loss)


@case(collectives=4)
def clip() -> Any:
    errors_of = keras.losses.sparse_categorical_crossentropy

    def loss(first: Any, second: Any) -> Any:
        alike = first @ tf.transpose(second)
        labels = ops.arange(ops.shape(first)[0])
        one = errors_of(labels, alike, from_logits=True)
        other = errors_of(labels, ops.transpose(alike), from_logits=True)
        return ops.mean(one + other)

    return two_views(loss)


@case(collectives=6)
def barlow_twins() -> Any:
    def normalized(view: Any) -> Any:
        mean = tf.reduce_mean(view, 0)
        deviation = tf.math.reduce_std(view, 0)
        return (view - mean) / (deviation + 1e-3)

    def loss(first: Any, second: Any) -> Any:
        rows = tf.cast(tf.shape(first)[0], tf.float32)
        alike = tf.matmul(
            normalized(first),
            normalized(second),
            transpose_a=True,
        )
        errors = tf.square(alike / rows - tf.eye(4))
        return tf.reduce_sum(errors * (0.1 + tf.eye(4)))

    return two_views(loss)


@case(collectives=3)
def hardest_triplets() -> Any:
    def loss(first: Any, second: Any) -> Any:
        is_positive = second[:, :1] > 0
        alike = tf.equal(is_positive, tf.transpose(is_positive))
        differences = first[:, None] - first[None]
        distances = tf.reduce_sum(tf.square(differences), -1)
        farthest = tf.reduce_max(
            tf.where(
                alike,
                distances,
                0.0,
            ),
            1,
        )
        nearest = tf.reduce_min(
            tf.where(
                alike,
                1e9,
                distances,
            ),
            1,
        )
        nearest = tf.minimum(nearest, 9.0)
        return tf.reduce_mean(tf.nn.relu(farthest - nearest + 0.5))

    return two_views(loss)


# --- Losses of all rows --------------------------------------------------------------------------


def errors(labels: Any, logits: Any) -> Any:
    labels = tf.cast(tf.reshape(labels, [-1]), tf.int32)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def weights(labels: Any) -> Any:
    return tf.cast(tf.reshape(labels, [-1]) > 0, tf.float32)


# --- Steps of one's own --------------------------------------------------------------------------


@case(collectives=2, nightly=False)
def mixup_with_the_reversed_batch() -> Any:
    class Mixup(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            mixed = []
            for one in data:
                other = tf.reverse(one, [0])
                mixed.append(0.7 * one + 0.3 * other)
            return super().train_step(tuple(mixed))

    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True,
        label_smoothing=0.1,
    )
    model, (table, labels) = mlp(
        model=Mixup,
        loss=loss,
    )
    classes = np.eye(CLASSES, dtype="float32")
    return model, (table, classes[labels])


@case(collectives=1)
def moving_centres() -> Any:
    class Centres(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.centres = self.add_weight(
                shape=(CLASSES, 8),
                initializer="zeros",
                trainable=False,
            )

        def call(self, inputs: Any) -> Any:
            hidden, labels = inputs
            distances = hidden - ops.take(self.centres, labels, 0)
            self.add_loss(0.1 * ops.mean(ops.sum(distances**2, 1)))
            moved = ops.segment_sum(ops.stop_gradient(distances), labels, CLASSES)
            counts = ops.segment_sum(ops.ones_like(distances), labels, CLASSES)
            self.centres.assign_add(0.5 * moved / (1 + counts))
            return hidden

    inputs = keras.Input((COLUMNS,))
    labels = keras.Input((), dtype="int32")
    hidden = layers.Dense(8, "tanh")(inputs)
    hidden = Centres()([hidden, labels])
    model = classifier([inputs, labels], hidden)
    return model, ((TABLE, LABELS), LABELS)


@case(collectives=2)
def gan_with_a_gradient_penalty() -> Any:
    return network(NETWORKS["gan"])


@case(collectives=1)
def vae() -> Any:
    """Draws noise for each row."""
    return network(NETWORKS["vae"])


# --- Programs of one line ------------------------------------------------------------------------

# Models, and how many collectives a step has at most. Batch normalization takes three for each
# layer; there is one for the last gradients.
MODELS = """
dense: mlp() -> 1
dropout: mlp(layers.Dropout(0.5, seed=1), layers.GaussianNoise(0.1, seed=2)) -> 1
batch_normalization: mlp(layers.BatchNormalization()) -> 4
masked_attention: tokens_model(Attention(dropout=0.2), mean()) -> 1
masked_gru_both_ways: tokens_model(layers.Bidirectional(layers.GRU(4, dropout=0.1))) -> 1
lstm: series_model(layers.LSTM(4)) -> 1
attention: series_model(layers.Dense(8), Attention(), layers.LayerNormalization(), mean()) -> 1
regularized: mlp(layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")) -> 1
clipped_gradients: mlp(optimizer=optimizers.Adam(0.01, global_clipnorm=0.1)) -> 1
accumulated_gradients: mlp(optimizer=optimizers.Adam(0.01, gradient_accumulation_steps=2)) -> 1
averaged_weights: mlp(optimizer=optimizers.AdamW(0.01, use_ema=True, weight_decay=0.01)) -> 1
"""
OFTEN = ("dense", "dropout", "batch_normalization", "masked_attention", "lstm")

# A loss of labels y and logits p, and how many collectives a step has at most.
LOSSES = """
tf.reduce_sum(errors(y, p) * weights(y)) / (tf.reduce_sum(weights(y)) + 0.1)                -> 2
tf.reduce_mean(tf.math.top_k(errors(y, p), tf.shape(p)[0] // 2)[0])                         -> 2
tf.reduce_mean(errors(y, p) * tf.cast(tf.range(tf.shape(p)[0]) % 3, tf.float32))            -> 1
tf.reduce_mean(tf.boolean_mask(errors(y, p), tf.reshape(y, [-1]) > 0))                      -> 3
tf.cond(tf.reduce_mean(errors(y, p)) > 1.0, lambda: tf.reduce_mean(p), lambda: 2 * p[0, 0]) -> 3
tf.cond(tf.shape(p)[0] > 12, lambda: tf.reduce_mean(errors(y, p)), lambda: 2 * p[0, 0])     -> 3
tf.reduce_mean(tf.map_fn(lambda row: tf.reduce_sum(tf.square(row)), p))                     -> 3
tf.reduce_mean(tf.square(tf.cumsum(p, 0)))                                                  -> 2
tf.reduce_mean(tf.sort(p[:, 0])[: tf.shape(p)[0] // 2]) + tf.reduce_max(p)                  -> 3
tf.reduce_mean(errors(y[::2], p[::2])) + tf.reduce_mean(tf.square(p[1:] - p[:-1]))          -> 2
tf.reduce_mean(p) * tf.cast(tf.size(tf.unique(tf.reshape(y, [-1]))[0]), tf.float32)         -> 2
tf.reduce_mean(errors(y, p)) * tf.random.stateless_uniform([], [1, 2])                      -> 1
tf.reduce_mean(errors(y, p + tf.random.stateless_normal(tf.shape(p), [1, 2])))              -> 1
tf.nn.compute_average_loss(errors(y, p))                                                    -> 1
tf.reduce_sum(tf.concat([p, 2 * p], 0)[3 : 3 + tf.shape(p)[0]])                             -> 2
tf.function(lambda y, p: tf.reduce_mean(errors(y, p)))(y, p)                               -> 1
tf.reduce_mean(p[:, tf.shape(p)[0] % 3])                                                    -> 1
tf.reduce_mean(tf.square(p[: tf.shape(p)[0] // 2 * 2]))                                    -> 2
tf.reduce_mean(tf.reshape(p[: tf.shape(p)[0] // 4 * 4], [-1, 2 * p.shape[1]]) ** 2)        -> 2
tf.reduce_mean(tf.square(p - tf.repeat(p[::3], 3, axis=0)[: tf.shape(p)[0]]))              -> 2
tf.reduce_sum(tf.RaggedTensor.from_tensor(tf.nn.relu(p), padding=0).values)                -> 3
"""


def note(name: str, text: str, nightly: bool) -> None:
    """Adds a program of one line.

    Args:
        text: an expression, and after it how many collectives a step has at most.
    """
    expression, _, collectives = text.partition(" -> ")
    code = compile(expression.strip(), name, "eval")
    CASES[name] = Case(
        lambda: eval(code, globals()),
        int(collectives),
        nightly,
    )


for _line in MODELS.strip().split("\n"):
    _name, _, _text = _line.partition(": ")
    note(_name, _text, nightly=_name not in OFTEN)
for _line in LOSSES.strip().split("\n"):
    _loss, _, _count = _line.partition(" -> ")
    _text = f"mlp(loss=lambda y, p: {_loss}, metrics=[], optimizer=optimizers.SGD(0.1)) -> {_count}"
    note(_loss.strip(), _text, nightly="cond" not in _loss)


def traced_step(model: Any, data: Data) -> tuple[Any, Any]:
    """Returns the step as a function, and as it is traced once all variables are made."""
    specs = tf.nest.map_structure(
        lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), data
    )
    for _ in range(2):
        step = tf.function(
            model.train_step,
            autograph=False,
        )
        traced = step.get_concrete_function(specs)
    return step, traced


def batches(data: Data) -> list[Data]:
    """Returns the batches of the data, of which the last one is smaller."""
    limits = (
        slice(0, ROWS),
        slice(ROWS, 2 * ROWS),
        slice(2 * ROWS, 3 * ROWS - 2),
    )
    found = []
    for part in limits:
        take = operator.itemgetter(part)
        found.append(tf.nest.map_structure(take, data))
    return found


def planned(program: Program) -> tuple[Any, Any, Plan, Data]:
    """Returns a program's step, as it is traced and planned, and its data."""
    keras.utils.set_random_seed(3)
    model, data = program()
    if not model.built:
        model(data[0][:2])
    step, traced = traced_step(model, data)
    return step, traced, plan_step(traced), data
