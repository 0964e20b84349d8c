"""Custom steps, written as in Keras' guides and examples, and models of several networks."""

# mypy: allow-subclassing-any

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from keras_programs.common import (
    COLUMNS,
    TRACED_TWICE,
    WEIGHT,
    Outcome,
    X,
    Y,
    add_each,
    build,
    data,
    fitted,
    perceptron,
    program,
    ready,
)
from kinds import Action, Fields


class OwnStep(keras.Model):
    """Follows the guide's first step: compute_loss() and the compiled metrics."""

    def train_step(self, batch: Any) -> Fields:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(
                x=x,
                y=y,
                y_pred=predicted,
                sample_weight=weight,
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.told(loss, x, y, predicted, weight)

    def told(self, loss: Any, x: Any, y: Any, predicted: Any, weight: Any) -> Fields:
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, batch: Any) -> Fields:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        predicted = self(x, training=False)
        loss = self.compute_loss(
            x=x,
            y=y,
            y_pred=predicted,
            sample_weight=weight,
        )
        return self.told(loss, x, y, predicted, weight)


class Lower(keras.Model):
    """Follows the guide's lower-level step, which computes its own loss and metrics."""

    own_optimizer: Any = None  # instead of that of compile()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.own_loss = keras.metrics.Mean(name="loss")
        self.own_mae = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_function = keras.losses.MeanSquaredError()

    def loss_of(self, y: Any, predicted: Any) -> Any:
        return self.loss_function(y, predicted)

    def train_step(self, batch: Any) -> Fields:
        x = batch[0]
        y = tf.one_hot(batch[1], 3)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.loss_of(y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        optimizer = self.own_optimizer or self.optimizer
        optimizer.apply(gradients, self.trainable_variables)
        return self.told(y, predicted)

    def test_step(self, batch: Any) -> Fields:
        return self.told(
            tf.one_hot(batch[1], 3),
            self(batch[0], training=False),
        )

    def told(self, y: Any, predicted: Any) -> Fields:
        self.own_loss.update_state(self.loss_of(y, predicted))
        self.own_mae.update_state(y, predicted)
        return {
            "loss": self.own_loss.result(),
            "mae": self.own_mae.result(),
        }

    @property
    def metrics(self) -> list[Any]:
        return [self.own_loss, self.own_mae]


class MakesOptimizer(Lower):
    """Creates its optimizer in its first step."""

    def train_step(self, batch: Any) -> Fields:
        if self.own_optimizer is None:
            self.own_optimizer = keras.optimizers.Adam(0.02)
        return super().train_step(batch)


class Crops(Lower):
    """Draws by an operation that the partition does not know, from its own place in a sequence."""

    def loss_of(self, y: Any, predicted: Any) -> Any:
        box = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        begin, _, _ = tf.image.sample_distorted_bounding_box([9, 9, 1], box, seed=1)
        return tf.reduce_mean(tf.square(y - predicted)) * tf.cast(begin[0], tf.float32)


class Samples(Lower):
    """Draws classes, as for a large vocabulary."""

    def loss_of(self, y: Any, predicted: Any) -> Any:
        classes = tf.argmax(y, axis=1)[:, tf.newaxis]
        biases = tf.zeros(9)
        losses = tf.nn.sampled_softmax_loss(tf.eye(9, 3), biases, classes, predicted, 4, 9)
        return tf.reduce_mean(losses)


class ByStrategy(Lower):
    """Divides by the number of replicas, as a loop of TensorFlow's tutorials does."""

    def loss_of(self, y: Any, predicted: Any) -> Any:
        losses = tf.reduce_mean(tf.square(y - predicted), axis=-1)
        count = tf.shape(y)[0] * self.distribute_strategy.num_replicas_in_sync
        return tf.nn.compute_average_loss(losses, global_batch_size=count)


class DrawsInXla(Lower):
    """XLA draws other numbers by the same seed."""

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def noise(self, like: Any) -> Any:
        return tf.random.stateless_normal(tf.shape(like), [3, 4])

    def loss_of(self, y: Any, predicted: Any) -> Any:
        return super().loss_of(y, predicted + 0.1 * self.noise(predicted))


class TwoBatches(Lower):
    """Learns from rows without labels as well, of which there are more, as in FixMatch."""

    def train_step(self, batch: Any) -> Fields:
        without, (x, y) = batch
        y = tf.one_hot(y, 3)
        sizes = [tf.shape(x)[0], tf.shape(without)[0]]
        with tf.GradientTape() as tape:
            predicted = self(tf.concat([x, without], axis=0), training=True)
            labelled, others = tf.split(predicted, sizes)
            loss = self.loss_of(y, labelled) + 0.1 * tf.reduce_mean(others**2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.told(y, labelled)


class Decorated(OwnStep):
    @tf.function  # type: ignore[untyped-decorator]
    def train_step(self, batch: Any) -> Fields:
        return super().train_step(batch)


class DecoratedParts(keras.Model):
    """Has a tf.function, converted by AutoGraph, that updates a metric.

    Keras builds a layer without build() by a call that updates no metric, and TensorFlow would keep
    that function.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="relu")
        self.head = layers.Dense(3)
        self.watched = keras.metrics.Mean(name="watched")

    def build(self, shape: Any) -> None:
        self.hidden.build(shape)
        self.head.build((None, 8))

    @tf.function  # type: ignore[untyped-decorator]
    def watch(self, x: Any) -> Any:
        if tf.reduce_any(x > 0):
            x = 0.5 * x
        self.watched.update_state(x)
        return x

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.watch(self.hidden(x)))


class Returns(keras.Model):
    """Returns nested logs, and values other than scalar tensors."""

    def train_step(self, batch: Any) -> Any:
        super().train_step(batch)
        outer = {"float": 1.5, "tensor": tf.constant(4)}
        return {"outer": outer, "bias": self.weights[1]}


class Unseeded(layers.Layer):
    """Draws from the generator that Keras keeps for random numbers without a seed."""

    def call(self, x: Any) -> Any:
        noise = keras.random.normal(ops.shape(x))
        return x + keras.random.uniform(()) * noise


class OfGlobalSeed(layers.Layer):
    """Draws by operations of TensorFlow, each of which keeps its place in a sequence."""

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        others = tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[0])))
        mixed = x + tf.random.uniform(()) * others
        return tf.cond(
            tf.random.uniform((), 0, 9, tf.int32) > 3,
            lambda: mixed + tf.random.normal(tf.shape(x)),
            lambda: mixed + tf.random.gamma(tf.shape(x), 2.0),
        )


MODELS: dict[str, Action] = {
    "own": lambda: perceptron(kind=OwnStep),
    "random_without_seed": lambda: perceptron(Unseeded, kind=OwnStep),
    "decorated": lambda: perceptron(kind=Decorated),
    "decorated_parts": DecoratedParts,
    "lower": lambda: perceptron(kind=Lower),
    "by_strategy": lambda: perceptron(kind=ByStrategy),
    "draws_in_xla": lambda: perceptron(kind=DrawsInXla),
    "makes_optimizer": lambda: perceptron(kind=MakesOptimizer),
    "returns_nested": lambda: perceptron(kind=Returns),
}


def _of(strategy: Any, entry: Action) -> Outcome:
    return fitted(
        ready(strategy, entry, metrics=["accuracy"]),
        data(X, Y, WEIGHT),
        predict=True,
    )


add_each("step", _of, MODELS)


TRACED_AGAIN: dict[str, Action] = {
    "crops": lambda: perceptron(kind=Crops),
    "samples": lambda: perceptron(kind=Samples),
    "random_of_global_seed": lambda: perceptron(OfGlobalSeed, kind=OwnStep),
}
add_each("step", _of, TRACED_AGAIN, differs=TRACED_TWICE)


def _two_batches(strategy: Any, without: tf.data.Dataset, rows: int = 16) -> Outcome:
    model = ready(strategy, lambda: perceptron(kind=TwoBatches))
    labelled = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(4)
    return fitted(model, tf.data.Dataset.zip((without, labelled)), evaluate=False)


@program("step")
def with_more_rows_without_labels(strategy: Any) -> Outcome:
    without = tf.data.Dataset.from_tensor_slices(X[:32]).batch(8)
    return _two_batches(strategy, without)


@program("step")
def with_unequal_rows(strategy: Any) -> Outcome:
    """The numbers of rows in the last batch have another proportion."""
    without = tf.data.Dataset.from_tensor_slices(X[:36]).batch(12)
    return _two_batches(strategy, without, rows=10)


def _noisy(x: Any) -> Any:
    """Returns rows as each worker augments them for itself."""
    return x + tf.random.normal(tf.shape(x))


@program("step", differs="augments at random in tf.data")
def with_unequal_rows_drawn_by_each_worker(strategy: Any) -> Outcome:
    without = tf.data.Dataset.from_tensor_slices(X[:32]).batch(7).map(_noisy)
    return _two_batches(strategy, without)


@program("step", differs="augments at random in tf.data")
def eagerly_on_rows_drawn_by_each_worker(strategy: Any) -> Outcome:
    noisy = data().map(lambda x, y: (_noisy(x), y))
    return fitted(build(strategy, run_eagerly=True), noisy, evaluate=False)


def _run(strategy: Any, entry: Fields) -> Outcome:
    how: Fields = {"kind": OwnStep, **entry}
    rows = how.pop("rows", 33)
    return fitted(
        build(strategy, **how),
        data(rows=rows),
        predict=True,
    )


RUNS: Fields = {
    "eagerly": {"run_eagerly": True},
    "jit_compile": {"jit_compile": True, "kind": keras.Model},
    "five_per_execution": {"steps_per_execution": 5, "rows": 56},
}
add_each("step", _run, RUNS)


@program("step")
def of_functions_that_run_eagerly(strategy: Any) -> Outcome:
    tf.config.run_functions_eagerly(True)
    try:
        return fitted(
            build(strategy, lambda: layers.Dropout(0.5)),
            data(),
        )
    finally:
        tf.config.run_functions_eagerly(False)


@program("step", differs="normalizes each row by the other rows of its batch")
def lower_batch_normalization(strategy: Any) -> Outcome:
    return fitted(
        build(strategy, layers.BatchNormalization, kind=Lower),
        data(),
    )


def small(inputs: int, outputs: int) -> Any:
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(6, activation="tanh"),
            layers.Dense(outputs),
        ]
    )


class Networks(keras.Model):
    """A model of several networks, with its own optimizers and loss metric, but without call()."""

    is_built = True

    def __init__(self, **networks: Any) -> None:
        super().__init__()
        self.mean = keras.metrics.Mean(name="loss")
        for name, network in networks.items():
            setattr(self, name, network)
        self.built = self.is_built

    def compile(self) -> None:
        super().compile()
        self.own_optimizer = keras.optimizers.SGD(0.005)
        self.other_optimizer = keras.optimizers.Adam(0.01)

    def descend(self, loss: Action, network: Any, optimizer: Any) -> Fields:
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, network.trainable_weights)
        optimizer.apply_gradients(zip(gradients, network.trainable_weights))
        self.mean.update_state(value)
        return {"loss": self.mean.result()}

    def train_step(self, batch: Any) -> Fields:
        return self.descend(
            lambda: self.loss_of(batch[0]),
            self,
            self.own_optimizer,
        )

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]


class Gan(Networks):
    """Has a gradient penalty. The noise is derived from the rows, so it is the same in all runs."""

    def train_step(self, batch: Any) -> Fields:
        real = batch[0]
        noise = batch[0][:, :3] * 2.0
        self.descend(
            lambda: self.critic_loss(
                real,
                self.generator(noise),
            ),
            self.critic,
            self.own_optimizer,
        )
        return self.descend(
            lambda: -ops.mean(self.critic(self.generator(noise))),
            self.generator,
            self.other_optimizer,
        )

    def critic_loss(self, real: Any, fake: Any) -> Any:
        share = ops.sigmoid(real[:, :1])
        between = share * real + (1 - share) * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            found = self.critic(between, training=True)
        norm = tf.sqrt(
            tf.reduce_sum(
                tf.square(tape.gradient(found, between)),
                axis=1,
            )
            + 1e-8
        )
        cost = tf.reduce_mean(self.critic(fake)) - tf.reduce_mean(self.critic(real))
        return cost + 10.0 * tf.reduce_mean((norm - 1.0) ** 2)


class Vae(Networks):
    def loss_of(self, x: Any) -> Any:
        mean, log_var = ops.split(
            self.encoder(x),
            2,
            axis=-1,
        )
        noise = keras.random.normal(
            ops.shape(mean),
            seed=self.seed,
        )
        decoded = self.decoder(mean + ops.exp(0.5 * log_var) * noise)
        divergence = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
        by_row = ops.sum(
            ops.square(x - decoded),
            axis=-1,
        ) + ops.sum(divergence, axis=1)
        return ops.mean(by_row)


class Triplet(Networks):
    """A siamese network, trained by distances. Each row contains its three inputs."""

    is_built = False  # as in most examples, Keras detects that nothing must be built

    def loss_of(self, x: Any) -> Any:
        anchor, like, unlike = (self.embedding(part) for part in ops.split(x, 3, axis=1))
        near, far = (ops.sum(ops.square(anchor - other), -1) for other in (like, unlike))
        return ops.maximum(
            near - far + 0.5,
            0.0,
        )  # one value per row


class Contrastive(Networks):
    """Compares each row with all others: its halves are two views of one thing."""

    def loss_of(self, x: Any) -> Any:
        left, right = (ops.normalize(self.embedding(part)) for part in ops.split(x, 2, axis=1))
        alike = (
            ops.matmul(
                left,
                ops.transpose(right),
            )
            / 0.1
        )
        rows = ops.arange(ops.shape(x)[0])
        return ops.mean(ops.sparse_categorical_crossentropy(rows, alike, from_logits=True))


class Transport(Networks):
    """Balances the similarities of all rows in a loop, and chooses by a condition."""

    def loss_of(self, x: Any) -> Any:
        rows = self.embedding(x)

        def again(turn: Any, alike: Any) -> Any:
            alike /= ops.sum(alike, 1, keepdims=True)
            return turn + 1, alike / ops.sum(alike, 0)

        alike = ops.exp(
            ops.matmul(
                rows,
                ops.transpose(rows),
            )
        )
        _, alike = tf.while_loop(
            lambda turn, _: turn < 3,
            again,
            (0, alike),
        )
        by_norm = tf.cond(
            tf.shape(x)[0] > 1,
            lambda: rows / (tf.norm(rows) + 0.1),
            lambda: rows,
        )
        mapped = tf.map_fn(
            lambda row: row * ops.sum(row),
            by_norm,
        )
        loss = ops.mean(ops.square(ops.matmul(alike, rows))) + ops.mean(mapped)

        def damp(turn: Any, total: Any) -> Any:
            return turn + 1, ops.tanh(total) + 0.5 * total

        return (
            loss
            + tf.while_loop(
                lambda turn, _: turn < 3,
                damp,
                (0, loss),
            )[1]
        )


def _networks(strategy: Any, entry: Action) -> Outcome:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = entry()
        model.compile()
    return fitted(model, data(), evaluate=False)


NETWORKS: dict[str, Action] = {
    "gan": lambda: Gan(
        generator=small(3, COLUMNS),
        critic=small(COLUMNS, 1),
    ),
    "contrastive": lambda: Contrastive(embedding=small(3, 4)),
    "transport": lambda: Transport(embedding=small(6, 4)),
    "triplet_per_row": lambda: Triplet(embedding=small(2, 3)),
    "vae": lambda: Vae(
        encoder=small(COLUMNS, 4),
        decoder=small(2, COLUMNS),
        seed=keras.random.SeedGenerator(5),
    ),
}
add_each("step", _networks, NETWORKS)
