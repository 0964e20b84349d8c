"""Trains models whose steps are made of random operations, alone or as one of several workers.

    python random_steps.py FIRST COUNT      the seeds FIRST, FIRST + 1, …

A step is a `train_step` of operations that people use: of each row, of rows with each other, random
numbers, conditions, loops, custom gradients, and variables that are assigned and read. A seed gives
the same step everywhere. The results go as JSON to TASK_OUTPUT/<rank>, or to TASK_OUTPUT/alone; all
numbers are of 64 bits, so that only a wrong result differs by more than rounding.

A seed that differs from one process is looked at like this:

1. Train it alone and in two workers, and compare the two files::

       TASK_OUTPUT=. python random_steps.py 212 1
       TASK_OUTPUT=. slurm-resolver run -n 2 -- python random_steps.py 212 1

   "used" has the names of its operations, in their order.
2. Leave operations out of `OF_ROWS`, `SCALARS`, `GRADIENTS` and `UPDATES`, until two or three are
   left that still differ.
3. Ask whether the step is well-conditioned. The sign of a mean that is 0, or the order of equal
   numbers, depends on rounding: then the operation here is wrong, and not the partition.
4. Look at the plan of the step (`plan_step`): its steps in their order, and why an operation is
   computed whole.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from kinds import Fields

import slurm_resolver as sr

WIDTH = 8
COLUMNS = 6
CLASSES = 3
ROWS = 11  # batches of 4, 4 and 3 rows
BATCH = 4

Rows = Any  # a tensor, (number of rows, WIDTH)
Scalar = Any  # a tensor


class Step:
    """What operations see of the step that is being traced.

    Attributes:
        model: with the layers, the variables and the generators of random numbers.
        labels: the class of each row, (number of rows,).
        choice: what is random about the program; the same whenever the step is traced.
        rows: the values for each row that have been computed.
        used: the names of the operations, in order.
    """

    def __init__(self, model: RandomModel, inputs: tf.Tensor, labels: tf.Tensor) -> None:
        self.model = model
        self.labels = labels
        self.choice = random.Random(model.seed)
        self.rows = [model.first(inputs)]
        self.used: list[str] = []

    def pick(self) -> Rows:
        """Returns one of the values for each row."""
        return self.choice.choice(self.rows)

    def count(self) -> tf.Tensor:
        return tf.shape(self.labels)[0]

    def number(self) -> Scalar:
        return tf.cast(self.count(), tf.float64)

    def apply(self, table: dict[str, Callable[[Step], Any]]) -> Any:
        """Returns the result of one of the operations."""
        name = self.choice.choice(sorted(table))
        self.used.append(name)
        return table[name](self)


Operation = Callable[[Step], Any]
OF_ROWS: dict[str, Operation] = {}
SCALARS: dict[str, Operation] = {}
GRADIENTS: dict[str, Callable[[Step, Any], Any]] = {}
UPDATES: dict[str, Operation] = {}


def of_rows(operation: Operation) -> Operation:
    """Registers an operation that returns a value for each row."""
    OF_ROWS[operation.__name__] = operation
    return operation


def scalar(operation: Operation) -> Operation:
    """Registers an operation that returns a part of the loss."""
    SCALARS[operation.__name__] = operation
    return operation


def update(operation: Operation) -> Operation:
    """Registers an operation that assigns a variable."""
    UPDATES[operation.__name__] = operation
    return operation


# --- Each row by itself


@of_rows
def dense(step: Step) -> Rows:
    """A layer with variables."""
    return step.model.second(step.pick())


@of_rows
def activation(step: Step) -> Rows:
    """One of the usual activations."""
    function = step.choice.choice([tf.nn.relu, tf.nn.softmax, tf.tanh, tf.nn.gelu])
    return function(step.pick())


@of_rows
def layer_normalization(step: Step) -> Rows:
    """Statistics of each row, by hand."""
    rows = step.pick()
    mean = tf.reduce_mean(rows, axis=-1, keepdims=True)
    deviation = tf.math.reduce_std(rows, axis=-1, keepdims=True)
    return (rows - mean) / (deviation + 0.1)


@of_rows
def unit_length(step: Step) -> Rows:
    """Each row is divided by its norm."""
    return tf.math.l2_normalize(step.pick(), axis=1, epsilon=0.1)


@of_rows
def reshaped(step: Step) -> Rows:
    """The numbers of each row in another order."""
    rows = tf.reshape(step.pick(), [-1, 2, WIDTH // 2])
    return tf.reshape(tf.transpose(rows, [0, 2, 1]), [-1, WIDTH])


@of_rows
def flattened(step: Step) -> Rows:
    """All rows in one axis, and back."""
    flat = tf.reshape(step.pick(), [-1])
    return tf.reshape(tf.sin(flat), [step.count(), WIDTH])


@of_rows
def transposed(step: Step) -> Rows:
    """Rows along the last axis, and back."""
    columns = tf.transpose(step.pick())
    return tf.transpose(tf.nn.softmax(columns, axis=0) + tf.cumsum(columns, axis=0) / WIDTH)


@of_rows
def convolution(step: Step) -> Rows:
    """Each row as a sequence."""
    images = tf.reshape(step.pick(), [-1, WIDTH, 1])
    return tf.squeeze(tf.nn.conv1d(images, step.model.filters, 1, "SAME"), axis=2)


@of_rows
def fourier(step: Step) -> Rows:
    """Each row's spectrum."""
    rows = step.pick()
    spectrum = tf.signal.fft(tf.cast(rows, tf.complex128))
    return tf.abs(spectrum) / WIDTH + rows


@of_rows
def sorted_columns(step: Step) -> Rows:
    """Each row's numbers in order."""
    return tf.sort(step.pick(), axis=-1)


@of_rows
def embedding(step: Step) -> Rows:
    """A row of a table for each label."""
    return step.pick() + tf.gather(step.model.table, step.labels)


@of_rows
def by_class(step: Step) -> Rows:
    """Another function for one class."""
    is_first = tf.equal(step.labels, 0)[:, None]
    return tf.where(is_first, step.pick(), tf.tanh(step.pick()))


@of_rows
def row_by_row(step: Step) -> Rows:
    """A Python function of a single row."""
    mapped = step.choice.choice([tf.map_fn, tf.vectorized_map])
    return mapped(lambda row: row * tf.tanh(tf.reduce_sum(row)), step.pick())


@of_rows
def product(step: Step) -> Rows:
    """A product that names its axes."""
    return tf.einsum("ni,ij->nj", step.pick(), step.model.second.kernel) * 0.5


@of_rows
def stopped(step: Step) -> Rows:
    """A part without a gradient."""
    return step.pick() + tf.stop_gradient(step.pick()) * 0.3


@of_rows
def sum_of_two(step: Step) -> Rows:
    """Two values of each row."""
    return step.pick() * 0.7 + step.pick() * 0.5


# --- Rows with each other


@of_rows
def reversed_batch(step: Step) -> Rows:
    """Each row beside another one, as in mixup."""
    rows = step.pick()
    return rows * 0.6 + step.model.second(tf.reverse(rows, [0])) * 0.4


@of_rows
def rolled_batch(step: Step) -> Rows:
    """Each row beside the one before."""
    rows = step.pick()
    return rows - tf.roll(rows, 1, axis=0)


@of_rows
def centered(step: Step) -> Rows:
    """The mean of the batch is 0."""
    rows = step.pick()
    return rows - tf.reduce_mean(rows, axis=0)


@of_rows
def standardized(step: Step) -> Rows:
    """The moments of the batch, as in batch normalization."""
    rows = step.pick()
    mean, variance = tf.nn.moments(rows, axes=[0])
    return (rows - mean) / tf.sqrt(variance + 0.1)


@of_rows
def attention(step: Step) -> Rows:
    """Each row looks at all others."""
    rows = step.pick()
    return tf.nn.softmax(tf.matmul(rows, step.pick(), transpose_b=True)) @ rows


@of_rows
def in_order(step: Step) -> Rows:
    """The rows in the order of one of their numbers."""
    rows = step.pick()
    return tf.gather(rows, tf.argsort(rows[:, 0]))


@of_rows
def running_sum(step: Step) -> Rows:
    """Each row, with all rows before."""
    return tf.cumsum(step.pick(), axis=0) / step.number()


@of_rows
def mean_of_class(step: Step) -> Rows:
    """The mean of the rows with the same label."""
    rows = step.pick()
    means = tf.math.unsorted_segment_mean(rows, step.labels, CLASSES)
    return rows - tf.gather(means, step.labels)


@of_rows
def first_row(step: Step) -> Rows:
    """One row beside all others."""
    rows = step.pick()
    return rows + 0.3 * step.choice.choice([rows[:1], rows[0]])


@of_rows
def two_views(step: Step) -> Rows:
    """Two batches one after another, as in SimCLR."""
    views = tf.concat([step.pick(), step.pick()], axis=0)
    one, other = tf.split(step.model.second(views), 2)
    return one + tf.tanh(other)


@of_rows
def masked(step: Step) -> Rows:
    """Some of the rows, whose number is not known beforehand."""
    rows = step.pick()
    chosen = tf.boolean_mask(rows, step.labels > 0)
    return rows + tf.reduce_sum(chosen, axis=0) / (tf.cast(tf.shape(chosen)[0], tf.float64) + 1)


@of_rows
def rarity(step: Step) -> Rows:
    """Weights from the counts of the labels."""
    _, index, counts = tf.unique_with_counts(step.labels)
    return step.pick() / tf.cast(tf.gather(counts, index), tf.float64)[:, None]


@of_rows
def position(step: Step) -> Rows:
    """A number that depends on the row's place in the batch."""
    place = tf.cast(tf.range(step.count()), tf.float64) / step.number()
    return step.pick() * (1 + place[:, None])


# --- Random numbers


@of_rows
def dropout(step: Step) -> Rows:
    """Keras' dropout, from a generator with a state."""
    return keras.random.dropout(step.pick(), 0.3, seed=step.model.generator)


@of_rows
def dropout_of_tensorflow(step: Step) -> Rows:
    """TensorFlow's dropout, from its global seed."""
    return tf.nn.dropout(step.pick(), 0.3)


@of_rows
def noise(step: Step) -> Rows:
    """Noise for each row."""
    rows = step.pick()
    return rows + 0.2 * keras.random.normal(
        tf.shape(rows),
        dtype="float64",
        seed=step.model.generator,
    )


@of_rows
def noise_without_rows(step: Step) -> Rows:
    """The same noise for all rows."""
    return step.pick() + 0.2 * tf.random.normal([WIDTH], dtype=tf.float64)


@of_rows
def stateless_noise(step: Step) -> Rows:
    """Noise from a seed, of the batch's shape."""
    rows = step.pick()
    return rows + 0.2 * tf.random.stateless_normal(tf.shape(rows), [1, 2], dtype=tf.float64)


@of_rows
def random_scale(step: Step) -> Rows:
    """One random number for the batch."""
    scale = keras.random.uniform((), dtype="float64", seed=step.model.generator)
    return step.pick() * (0.5 + scale)


@of_rows
def random_branch(step: Step) -> Rows:
    """A condition on a random number."""
    rows = step.pick()
    return tf.cond(tf.random.uniform(()) < 0.5, lambda: tf.tanh(rows), lambda: rows * 0.5)


@of_rows
def mixup(step: Step) -> Rows:
    """Rows that are mixed with those of a random order."""
    rows = step.pick()
    share = keras.random.uniform((), 0.1, 0.9, dtype="float64", seed=step.model.generator)
    order = tf.random.shuffle(tf.range(step.count()))
    return share * rows + (1 - share) * tf.gather(rows, order)


# --- Conditions, loops and gradients


@of_rows
def by_number_of_rows(step: Step) -> Rows:
    """A condition on the number of rows."""
    rows = step.pick()
    return tf.cond(step.count() > 3, lambda: tf.sin(rows), lambda: tf.cos(rows))


@of_rows
def by_loss(step: Step) -> Rows:
    """A condition on what the rows are."""
    rows = step.pick()
    large = tf.reduce_mean(rows) > 0.0123  # the mean of centered rows is rounding
    return tf.cond(large, lambda: rows - tf.reduce_max(rows, axis=0), lambda: rows)


@of_rows
def repeated(step: Step) -> Rows:
    """A loop of the rows' own values."""

    def body(turn: tf.Tensor, rows: Rows) -> tuple[tf.Tensor, Rows]:
        return turn + 1, tf.tanh(step.model.second(rows))

    return tf.while_loop(lambda turn, _: turn < 3, body, [0, step.pick()])[1]


@of_rows
def repeated_with_mean(step: Step) -> Rows:
    """A loop that needs all rows in each round."""

    def body(turn: tf.Tensor, rows: Rows) -> tuple[tf.Tensor, Rows]:
        return turn + 1, rows - 0.5 * tf.reduce_mean(rows, axis=0)

    return tf.while_loop(lambda turn, _: turn < 3, body, [0, step.pick()])[1]


@of_rows
def clipped_gradient(step: Step) -> Rows:
    """A gradient that is clipped on its way."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def clipped(rows: Rows) -> Any:
        return rows, lambda upstream: tf.clip_by_norm(upstream, 0.01)

    return clipped(step.pick())


@of_rows
def reversed_gradient(step: Step) -> Rows:
    """A gradient with another sign, as for adversarial domains."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def backwards(rows: Rows) -> Any:
        return rows * 1.0, lambda upstream: -0.5 * upstream

    return backwards(step.pick())


@of_rows
def recomputed(step: Step) -> Rows:
    """What backpropagation computes once more."""
    return tf.recompute_grad(lambda rows: tf.tanh(rows) * 2.0)(step.pick())


@of_rows
def from_centre(step: Step) -> Rows:
    """A variable that steps assign."""
    return step.pick() - step.model.centre


# --- Parts of the loss


@scalar
def mean_square(step: Step) -> Scalar:
    """A mean of all numbers."""
    return tf.reduce_mean(tf.square(step.pick()))


@scalar
def sum_by_number(step: Step) -> Scalar:
    """A sum that the program divides by the number of rows."""
    return tf.reduce_sum(tf.abs(step.pick())) / step.number()


@scalar
def crossentropy(step: Step) -> Scalar:
    """A loss by row of TensorFlow."""
    logits = step.model.head(step.pick())
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(step.labels, logits)
    return tf.reduce_mean(losses)


@scalar
def loss_of_keras(step: Step) -> Scalar:
    """A loss of Keras, which reduces it."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return loss(step.labels, step.model.head(step.pick()))


@scalar
def average_loss(step: Step) -> Scalar:
    """It reads the number of replicas."""
    return tf.nn.compute_average_loss(tf.reduce_sum(step.pick() ** 2, axis=1))


@scalar
def weighted(step: Step) -> Scalar:
    """A ratio of two sums."""
    weights = tf.cast(step.labels, tf.float64) + 0.5
    losses = tf.reduce_sum(step.pick() ** 2, axis=1)
    return tf.reduce_sum(weights * losses) / tf.reduce_sum(weights)


@scalar
def contrastive(step: Step) -> Scalar:
    """Each row has to be most like its own other view."""
    one = tf.math.l2_normalize(step.pick(), axis=1, epsilon=0.1)
    other = tf.math.l2_normalize(step.model.second(step.pick()), axis=1, epsilon=0.1)
    similar = tf.matmul(one, other, transpose_b=True) * 2.0
    places = tf.range(step.count())
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(places, similar))


@scalar
def of_the_same_class(step: Step) -> Scalar:
    """All pairs of rows."""
    rows = step.pick()
    distances = tf.reduce_sum((rows[:, None] - rows[None]) ** 2, axis=-1)
    same = tf.equal(step.labels[:, None], step.labels[None])
    return tf.reduce_mean(tf.where(same, distances, tf.nn.relu(1.0 - distances)))


@scalar
def redundancy(step: Step) -> Scalar:
    """Correlations of the columns, as in Barlow Twins."""
    rows = step.pick()
    rows = rows - tf.reduce_mean(rows, axis=0)
    correlation = tf.matmul(rows, rows, transpose_a=True) / step.number()
    return tf.reduce_mean((correlation - tf.eye(WIDTH, dtype=tf.float64)) ** 2)


@scalar
def hardest(step: Step) -> Scalar:
    """The larger half of the losses."""
    losses = tf.reduce_sum(step.pick() ** 2, axis=1)
    return tf.reduce_mean(tf.math.top_k(losses, 1 + step.count() // 2).values)


@scalar
def logarithm_of_all(step: Step) -> Scalar:
    """A logarithm of a sum over all rows."""
    return tf.reduce_logsumexp(step.pick()) * 0.1


@scalar
def deviation(step: Step) -> Scalar:
    """Deviations of the columns, as in VICReg."""
    return tf.reduce_mean(tf.math.reduce_std(step.pick() + 0.01, axis=0) ** 2)


@scalar
def norm(step: Step) -> Scalar:
    """A root of a sum over all rows."""
    return tf.norm(step.pick() + 0.01)


@scalar
def penalty_of_gradient(step: Step) -> Scalar:
    """A gradient within the loss, as in WGAN-GP."""
    rows = step.pick()
    with tf.GradientTape() as tape:
        tape.watch(rows)
        score = step.model.head(tf.tanh(rows))
    slope = tape.gradient(score, rows)
    return tf.reduce_mean((tf.norm(slope + 0.01, axis=1) - 1.0) ** 2)


@scalar
def decay(step: Step) -> Scalar:
    """No rows at all."""
    return 0.01 * tf.nn.l2_loss(step.model.second.kernel)


# --- What a step does with its gradients and variables


def gradients_as_they_are(step: Step, gradients: Any) -> Any:
    """As backpropagation gives them."""
    return gradients


def gradients_clipped(step: Step, gradients: Any) -> Any:
    """By the norm of all of them."""
    return tf.clip_by_global_norm(gradients, 0.5)[0]


def gradients_each_clipped(step: Step, gradients: Any) -> Any:
    """By the norm of each of them."""
    return [tf.clip_by_norm(gradient, 0.1) for gradient in gradients]


def gradients_with_noise(step: Step, gradients: Any) -> Any:
    """With random numbers, as for privacy."""
    return [one + 0.01 * tf.random.normal(tf.shape(one), dtype=one.dtype) for one in gradients]


GRADIENTS.update(
    {
        function.__name__: function
        for function in (
            gradients_as_they_are,
            gradients_clipped,
            gradients_each_clipped,
            gradients_with_noise,
        )
    }
)


@update
def moving_centre(step: Step) -> None:
    """An average of batches."""
    mean = tf.reduce_mean(step.pick(), axis=0)
    step.model.centre.assign(step.model.centre * 0.9 + mean * 0.1)


@update
def count_of_rows(step: Step) -> None:
    """A counter, which is read after it was assigned."""
    step.model.seen.assign_add(step.number())
    step.rows.append(step.pick() / (1 + 0.01 * step.model.seen))


@update
def centre_of_class(step: Step) -> None:
    """An average for each label."""
    places = step.labels[:, None]
    added = tf.tensor_scatter_nd_add(tf.identity(step.model.classes), places, step.pick() * 0.1)
    step.model.classes.assign(added)


@update
def metric_that_is_read(step: Step) -> None:
    """A metric whose result the step uses."""
    step.model.average.update_state(tf.reduce_sum(step.pick(), axis=1))
    step.rows.append(step.pick() * tf.tanh(tf.cast(step.model.average.result(), tf.float64)))


# --- The model


class RandomModel(keras.Model):  # type: ignore[misc]
    """A model whose `train_step` follows from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.used: list[str] = []
        self.first = keras.layers.Dense(WIDTH, "tanh")
        self.second = keras.layers.Dense(WIDTH)
        self.head = keras.layers.Dense(CLASSES)
        self.first.build((None, COLUMNS))
        self.second.build((None, WIDTH))
        self.head.build((None, WIDTH))
        self.filters = self.add_weight(shape=(3, 1, 1), initializer="ones")
        self.table = self.add_weight(shape=(CLASSES, WIDTH))
        self.centre = self.add_weight(shape=(WIDTH,), initializer="zeros", trainable=False)
        self.classes = self.add_weight(shape=(CLASSES, WIDTH), initializer="zeros", trainable=False)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.generator = keras.random.SeedGenerator(seed)
        self.average = keras.metrics.Mean(name="average")
        self.loss_seen = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        return self.head(self.second(self.first(inputs)))

    def train_step(self, data: Any) -> Any:
        inputs, labels = data
        with tf.GradientTape() as tape:
            step = Step(self, inputs, labels)
            for _ in range(step.choice.randint(1, 6)):
                step.rows.append(step.apply(OF_ROWS))
                if step.choice.random() < 0.2:
                    step.apply(UPDATES)
            loss = tf.add_n([step.apply(SCALARS) for _ in range(step.choice.randint(1, 3))])
        variables = [
            *self.first.trainable_variables,
            *self.second.trainable_variables,
            *self.head.trainable_variables,
            self.filters,
            self.table,
        ]
        gradients = tape.gradient(
            loss,
            [variable.value for variable in variables],
            unconnected_gradients="zero",
        )
        name = step.choice.choice(sorted(GRADIENTS))
        self.used = [*step.used, name]
        gradients = GRADIENTS[name](step, [tf.convert_to_tensor(one) for one in gradients])
        self.optimizer.apply_gradients(zip(gradients, variables))
        if step.choice.random() < 0.3:
            step.apply(UPDATES)
        self.loss_seen.update_state(loss)
        results = {"loss": self.loss_seen.result(), "average": self.average.result()}
        if step.choice.random() < 0.5:
            results["scalar"] = step.apply(SCALARS)
        return results

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_seen, self.average]


def outcome(seed: int, strategy: tf.distribute.Strategy) -> Fields:
    """Trains a random step for two epochs, and returns the history and the sizes of all weights."""
    keras.utils.set_random_seed(seed)
    values = np.random.default_rng(seed)
    inputs = values.normal(size=(ROWS, COLUMNS))
    labels = values.integers(0, CLASSES, size=ROWS).astype("int32")
    with strategy.scope():
        model = RandomModel(seed)
        model.compile(keras.optimizers.SGD(0.05), jit_compile=False)
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(BATCH)
    try:
        history = model.fit(data, epochs=2, verbose=0).history
    except Exception as error:
        last = traceback.format_exception(type(error), error, None)[-1]
        return {"used": model.used, "error": last[:400]}
    weights = [
        float(np.sum(np.abs(one) * np.arange(1, one.size + 1).reshape(one.shape)))
        for one in map(np.asarray, model.get_weights())
    ]
    return {"used": model.used, "history": history, "weights": weights}


def outcomes(seeds: range) -> Iterator[tuple[int, Fields]]:
    strategy = tf.distribute.get_strategy()
    if "SLURM_STEP_ID" in os.environ:
        strategy = sr.MultiWorkerMirroredStrategy()
    keras.config.set_floatx("float64")
    for seed in seeds:
        yield seed, outcome(seed, strategy)


def main() -> None:
    first, count = map(int, sys.argv[1:])
    found = dict(outcomes(range(first, first + count)))
    name = os.environ.get("SLURM_PROCID", "alone")
    Path(os.environ["TASK_OUTPUT"], name).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
