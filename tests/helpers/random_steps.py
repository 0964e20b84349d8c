"""Trains models whose steps are made of random operations, alone or as one of several workers.

    python random_steps.py FIRST COUNT      the seeds FIRST, FIRST + 1, …

A step is a `train_step` of operations that people use: of each row, of rows with each other, random
numbers, conditions, loops, custom gradients, and variables that are assigned and read. A seed gives
the same step everywhere. The results go as JSON to the file <rank>, or to the file "alone"; all
numbers are of 64 bits, so that only a wrong result differs by more than rounding.

A seed that differs from one process is looked at like this:

1. Train it alone and in two workers, and compare the two files::

       python random_steps.py 212 1
       slurm-resolver run -n 2 -- python random_steps.py 212 1

   "used" has the names of its operations, in their order.
2. Leave lines out of `OF_ROWS`, `SCALARS`, `GRADIENTS` and `UPDATES`, until two or three operations
   are left that still differ.
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
from pathlib import Path
from typing import Any

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

F = tf.float64
Table = dict[str, Any]
errors = tf.nn.sparse_softmax_cross_entropy_with_logits


def table(text: str) -> Table:
    """Returns the operations of a text, each with its name, which are Python's expressions."""
    lines = [line.partition(":") for line in text.split("\n") if ":" in line]
    return {name: compile(expression.strip(), name, "eval") for name, _, expression in lines}


# Operations that return a value for each row. They see:
#     a, b        values for each row that have been computed, of shape (number of rows, WIDTH)
#     labels      the class of each row
#     count       the number of rows; the same as a float, `number`; and their `places`
#     model       with the layers, the variables and the generator of random numbers
#     choose      returns one of its arguments, the same one whenever the step is traced
OF_ROWS = table("""
# Each row by itself
dense: model.second(a)
activation: choose(tf.nn.relu, tf.nn.softmax, tf.tanh, tf.nn.gelu)(a)
layer_normalization: (a - tf.reduce_mean(a, 1, True)) / (tf.math.reduce_std(a, 1, True) + 0.1)
unit_length: unit(a)
reshaped: tf.reshape(tf.transpose(tf.reshape(a, [-1, 2, 4]), [0, 2, 1]), [-1, 8])
flattened: tf.reshape(tf.sin(tf.reshape(a, [-1])), [count, 8])
transposed: tf.transpose(tf.nn.softmax(tf.transpose(a), 0) + tf.cumsum(tf.transpose(a), 0) / 8)
convolution: tf.squeeze(tf.nn.conv1d(tf.reshape(a, [-1, 8, 1]), model.filters, 1, "SAME"), axis=2)
fourier: tf.abs(tf.signal.fft(tf.cast(a, tf.complex128))) / 8 + a
sorted_columns: tf.sort(a, axis=-1)
embedding: a + tf.gather(model.table, labels)
by_class: tf.where(tf.equal(labels, 0)[:, None], a, tf.tanh(b))
own_column: a + 0.3 * tf.gather_nd(b, tf.stack([places, labels], 1))[:, None]
own_columns: a + 0.3 * tf.gather(b, labels[:, None], axis=1, batch_dims=1)
row_by_row: choose(tf.map_fn, tf.vectorized_map)(lambda row: row * tf.tanh(tf.reduce_sum(row)), a)
product: tf.einsum("ni,ij->nj", a, model.second.kernel) * 0.5
stopped: a + tf.stop_gradient(b) * 0.3
sum_of_two: a * 0.7 + b * 0.5

# Rows with each other
reversed_batch: a * 0.6 + model.second(tf.reverse(a, [0])) * 0.4
rolled_batch: a - tf.roll(a, 1, axis=0)
centered: a - tf.reduce_mean(a, axis=0)
standardized: (a - tf.reduce_mean(a, axis=0)) / tf.sqrt(tf.nn.moments(a, axes=[0])[1] + 0.1)
attention: tf.nn.softmax(tf.matmul(a, b, transpose_b=True)) @ a
in_order: tf.gather(a, tf.argsort(a[:, 0]))
running_sum: tf.cumsum(a, axis=0) / number
mean_of_class: a - tf.gather(tf.math.unsorted_segment_mean(a, labels, CLASSES), labels)
first_row: a + 0.3 * choose(a[:1], a[0])
two_views: sum_of_views(tf.split(model.second(tf.concat([a, b], 0)), 2))
second_view: a * 0.5 + tf.tanh(tf.concat([a, b], 0))[count:]
repeated_batch: a + sum_of_views(tf.split(model.second(tf.tile(b, [2, 1])), 2))
masked: a + mean_of_some(tf.boolean_mask(a, labels > 0))
rarity: a / tf.cast(tf.gather((u := tf.unique_with_counts(labels)).count, u.idx), F)[:, None]
position: a * (1 + (tf.cast(places, F) / number)[:, None])

# Random numbers
dropout: keras.random.dropout(a, 0.3, seed=model.generator)
dropout_of_tensorflow: tf.nn.dropout(a, 0.3)
noise: a + 0.2 * keras.random.normal(tf.shape(a), dtype="float64", seed=model.generator)
noise_without_rows: a + 0.2 * tf.random.normal([8], dtype=F)
stateless_noise: a + 0.2 * tf.random.stateless_normal(tf.shape(a), [1, 2], dtype=F)
random_scale: a * (0.5 + share(model))
random_branch: tf.cond(tf.random.uniform(()) < 0.5, lambda: tf.tanh(a), lambda: a * 0.5)
mixup: (s := share(model)) * a + (1 - s) * tf.gather(a, tf.random.shuffle(places))

# Conditions, loops and gradients; the mean of centered rows is rounding, and not 0.0123
by_number_of_rows: tf.cond(count > 3, lambda: tf.sin(a), lambda: tf.cos(a))
by_loss: tf.cond(tf.reduce_mean(a) > 0.0123, lambda: a - tf.reduce_max(a, axis=0), lambda: a)
repeated: three_times(lambda rows: tf.tanh(model.second(rows)), a)
repeated_with_mean: three_times(lambda rows: rows - 0.5 * tf.reduce_mean(rows, axis=0), a)
clipped_gradient: with_gradient(lambda upstream: tf.clip_by_norm(upstream, 0.01), a)
reversed_gradient: with_gradient(lambda upstream: -0.5 * upstream, a)
recomputed: tf.recompute_grad(lambda rows: tf.tanh(rows))(a) * 2.0
from_centre: a - model.centre
""")

# Those that return a part of the loss.
SCALARS = table("""
mean_square: tf.reduce_mean(tf.square(a))
sum_by_number: tf.reduce_sum(tf.abs(a)) / number
crossentropy: tf.reduce_mean(errors(labels, model.head(a)))
loss_of_keras: keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, model.head(a))
average_loss: tf.nn.compute_average_loss(tf.reduce_sum(a**2, axis=1))
weighted: tf.reduce_sum((w := tf.cast(labels, F) + 0.5) * tf.reduce_sum(a**2, 1)) / tf.reduce_sum(w)
contrastive: tf.reduce_mean(errors(places, 2 * unit(a) @ tf.transpose(unit(model.second(b)))))
of_the_same_class: tf.reduce_mean(tf.where(are_alike(labels), distances(a), 1 / (1 + distances(a))))
redundancy: tf.reduce_mean((correlations(a) / number - tf.eye(8, dtype=F)) ** 2)
hardest: tf.reduce_mean(tf.math.top_k(tf.reduce_sum(a**2, axis=1), 1 + count // 2).values)
logarithm_of_all: tf.reduce_logsumexp(a) * 0.1
deviation: tf.reduce_mean(tf.math.reduce_std(a + 0.01, axis=0) ** 2)
norm: tf.norm(a + 0.01)
penalty_of_gradient: tf.reduce_mean((tf.norm(slope(model, a) + 0.01, axis=1) - 1.0) ** 2)
decay: 0.01 * tf.nn.l2_loss(model.second.kernel)
""")

# What a step does with its gradients.
GRADIENTS = table("""
gradients_as_they_are: gradients
gradients_clipped: tf.clip_by_global_norm(gradients, 0.5)[0]
gradients_each_clipped: [tf.clip_by_norm(one, 0.1) for one in gradients]
gradients_with_noise: [one + 0.01 * tf.random.normal(tf.shape(one), dtype=F) for one in gradients]
""")

# Those that assign variables; some add to `rows`, the values for each row.
UPDATES = table("""
moving_centre: model.centre.assign(model.centre * 0.9 + tf.reduce_mean(a, axis=0) * 0.1)
count_of_rows: (model.seen.assign_add(number), rows.append(a / (1 + 0.01 * model.seen)))
classes: model.classes.assign(tf.tensor_scatter_nd_add(model.classes * 0.5, labels[:, None], a))
metric_that_is_read: rows.append(a * tf.tanh(tf.cast(model.average(tf.reduce_sum(a, 1)), F)))
""")


def unit(rows: Any) -> Any:
    return tf.math.l2_normalize(rows, axis=1, epsilon=0.1)


def sum_of_views(views: Any) -> Any:
    return views[0] + tf.tanh(views[1])


def mean_of_some(rows: Any) -> Any:
    """Returns nearly the mean of rows whose number is not known beforehand, and may be 0."""
    return tf.reduce_sum(rows, axis=0) / (tf.cast(tf.shape(rows)[0], F) + 1)


def share(model: RandomModel) -> Any:
    return keras.random.uniform((), 0.1, 0.9, "float64", model.generator)


def three_times(function: Any, rows: Any) -> Any:
    def body(turn: Any, rows: Any) -> Any:
        return turn + 1, function(rows)

    return tf.while_loop(lambda turn, _: turn < 3, body, [0, rows])[1]


def with_gradient(gradient: Any, rows: Any) -> Any:
    return tf.custom_gradient(lambda rows: (rows * 1.0, gradient))(rows)


def are_alike(labels: Any) -> Any:
    return tf.equal(labels[:, None], labels[None])


def distances(rows: Any) -> Any:
    return tf.reduce_sum((rows[:, None] - rows[None]) ** 2, axis=-1)


def correlations(rows: Any) -> Any:
    """Returns what Barlow Twins makes small."""
    rows -= tf.reduce_mean(rows, axis=0)
    return tf.matmul(rows, rows, transpose_a=True)


def slope(model: RandomModel, rows: Any) -> Any:
    """Returns a gradient within the loss, as in WGAN-GP."""
    with tf.GradientTape() as tape:
        tape.watch(rows)
        score = model.head(tf.tanh(rows))
    return tape.gradient(score, rows)


class Step:
    """A step that is being traced.

    Attributes:
        choice: what is random about the program; the same whenever the step is traced.
        rows: the values for each row that have been computed.
        used: the names of the operations, in order.
    """

    def __init__(self, model: RandomModel, inputs: Any, labels: Any) -> None:
        self.choice = random.Random(model.seed)
        self.rows = [model.first(inputs)]
        self.used: list[str] = []
        count = tf.shape(labels)[0]
        self._names = {
            **globals(),
            "model": model,
            "labels": labels,
            "rows": self.rows,
            "count": count,
            "places": tf.range(count),
            "number": tf.cast(count, F),
            "choose": lambda *values: self.choice.choice(values),
        }

    def apply(self, operations: Table, **given: Any) -> Any:
        """Returns the result of one of the operations."""
        name = self.choice.choice(sorted(operations))
        self.used.append(name)
        a = self.choice.choice(self.rows)
        b = self.choice.choice(self.rows)
        return eval(operations[name], {**self._names, "a": a, "b": b, **given})


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
            self.used = step.used
            for _ in range(step.choice.randint(1, 6)):
                step.rows.append(step.apply(OF_ROWS))
                if step.choice.random() < 0.2:
                    step.apply(UPDATES)
            loss = tf.add_n([step.apply(SCALARS) for _ in range(step.choice.randint(1, 3))])
        variables = self.trainable_variables
        gradients = tape.gradient(
            loss,
            [variable.value for variable in variables],
            unconnected_gradients="zero",
        )
        dense = [tf.convert_to_tensor(one) for one in gradients]
        gradients = step.apply(GRADIENTS, gradients=dense)
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
        return {"used": model.used, "error": f"{type(error).__name__}: {error}"[:400]}
    weights = [
        float(np.sum(np.abs(one) * np.arange(1, one.size + 1).reshape(one.shape)))
        for one in map(np.asarray, model.get_weights())
    ]
    return {"used": model.used, "history": history, "weights": weights}


def main() -> None:
    first, count = map(int, sys.argv[1:])
    strategy = tf.distribute.get_strategy()
    if "SLURM_STEP_ID" in os.environ:
        strategy = sr.MultiWorkerMirroredStrategy()
    keras.config.set_floatx("float64")
    found = {seed: outcome(seed, strategy) for seed in range(first, first + count)}
    name = os.environ.get("SLURM_PROCID", "alone")
    Path(name).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
