"""Models of several networks, or without call(), that train in a train_step() of their own."""

# mypy: allow-subclassing-any

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import keras
import tensorflow as tf
from keras import layers, ops
from keras_programs.common import (
    COLUMNS,
    Outcome,
    add,
    data,
    fitted,
    numbers,
)

Logs = Dict[str, Any]


def small(inputs: int, outputs: int) -> Any:
    steps = [layers.Dense(6, activation="tanh"), layers.Dense(outputs)]
    return keras.Sequential([keras.Input((inputs,)), *steps])


class Networks(keras.Model):
    """Several networks with no call() between them, and optimizers and means of their own."""

    def __init__(self, *means: str, **networks: Any) -> None:
        super().__init__()
        self.means = [keras.metrics.Mean(name=name) for name in means]
        for name, network in networks.items():
            setattr(self, name, network)
        self.built = True

    def compile(self, **optimizers: Any) -> None:
        super().compile()
        for name, optimizer in optimizers.items():
            setattr(self, name, optimizer)

    def descend(self, loss: Callable[[], Any], network: Any, optimizer: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, network.trainable_weights)
        optimizer.apply_gradients(zip(gradients, network.trainable_weights))
        return value

    def told(self, *values: Any) -> Logs:
        for mean, value in zip(self.means, values):
            mean.update_state(value)
        return {mean.name: mean.result() for mean in self.means}

    @property
    def metrics(self) -> List[Any]:
        return list(self.means)


class Gan(Networks):
    """The noise is made of the rows, so that it is the same in every number of workers."""

    def __init__(self, generator: Any, discriminator: Any) -> None:
        networks = {"generator": generator, "discriminator": discriminator}
        super().__init__("d_loss", "g_loss", **networks)
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, batch: Any) -> Logs:
        real = batch[0] if isinstance(batch, tuple) else batch
        rows = ops.shape(real)[0]
        noise = real[:, :3] * 2.0
        both = ops.concatenate([self.generator(noise), real], axis=0)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
        d_loss = self.descend(
            lambda: self.entropy(labels, self.discriminator(both)),
            self.discriminator,
            self.d_optimizer,
        )
        misleading = ops.zeros((rows, 1))
        g_loss = self.descend(
            lambda: self.entropy(misleading, self.discriminator(self.generator(noise))),
            self.generator,
            self.g_optimizer,
        )
        return self.told(d_loss, g_loss)


class Wgan(Gan):
    """With a gradient penalty, between real and generated rows by fixed shares."""

    def penalty(self, real: Any, fake: Any) -> Any:
        share = ops.sigmoid(real[:, :1])
        between = share * real + (1 - share) * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            found = self.discriminator(between, training=True)
        norm = tf.sqrt(tf.reduce_sum(tf.square(tape.gradient(found, between)), axis=1) + 1e-8)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, batch: Any) -> Logs:
        real = batch[0]
        noise = real[:, :3] * 2.0
        for _ in range(2):
            d_loss = self.descend(
                lambda: self.critic(real, self.generator(noise)),
                self.discriminator,
                self.d_optimizer,
            )
        g_loss = self.descend(
            lambda: -tf.reduce_mean(self.discriminator(self.generator(noise))),
            self.generator,
            self.g_optimizer,
        )
        return self.told(d_loss, g_loss)

    def critic(self, real: Any, fake: Any) -> Any:
        cost = tf.reduce_mean(self.discriminator(fake)) - tf.reduce_mean(self.discriminator(real))
        return cost + 10.0 * self.penalty(real, fake)


def _paired(strategy: Any, kind: Any) -> Outcome:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = kind(small(3, COLUMNS), small(COLUMNS, 1))
        model.compile(
            g_optimizer=keras.optimizers.Adam(0.01), d_optimizer=keras.optimizers.Adam(0.01)
        )
    history = model.fit(data(), epochs=2, verbose=0)
    return {"weights": numbers(model.get_weights()), "history": numbers(history.history)}


add("step_gan", partial(_paired, kind=Gan))
add("step_wgan_gp", partial(_paired, kind=Wgan))


class Vae(Networks):
    """Without its noise, or with it."""

    def __init__(self, seed: Optional[int]) -> None:
        networks = {"encoder": small(COLUMNS, 4), "decoder": small(2, COLUMNS)}
        super().__init__("loss", "kl_loss", **networks)
        self.seed = None if seed is None else keras.random.SeedGenerator(seed)

    def train_step(self, batch: Any) -> Logs:
        x = batch[0]
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(x), 2, axis=-1)
            noise = keras.random.normal(ops.shape(mean), seed=self.seed) if self.seed else 0.3
            decoded = self.decoder(mean + ops.exp(0.5 * log_var) * noise)
            reconstruction = ops.mean(ops.sum(ops.square(x - decoded), axis=-1))
            divergence = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            loss = reconstruction + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.own_optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        return self.told(loss, divergence)


class Triplet(Networks):
    """A siamese network that is trained by distances; the parts of a row are its three inputs."""

    def __init__(self) -> None:
        super().__init__("loss", embedding=small(2, 3))
        self.built = False  # Keras finds out that there is nothing to build, as in most examples

    def loss_of(self, x: Any) -> Any:
        anchor, like, unlike = (self.embedding(part) for part in ops.split(x, 3, axis=1))
        near, far = (ops.sum(ops.square(anchor - other), -1) for other in (like, unlike))
        return ops.maximum(near - far + 0.5, 0.0)  # one value for every row

    def train_step(self, batch: Any) -> Logs:
        loss = self.descend(lambda: self.loss_of(batch[0]), self.embedding, self.own_optimizer)
        return self.told(loss)

    def test_step(self, batch: Any) -> Logs:
        return self.told(self.loss_of(batch[0]))


def _alone(strategy: Any, kind: Any, test: bool = True) -> Outcome:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = kind()
        model.compile(own_optimizer=keras.optimizers.SGD(0.005))
    return fitted(model, data(), evaluate=test)


OTHERS: List[Tuple[str, Any, bool, Optional[str]]] = [
    ("triplet_per_row", Triplet, True, None),
    ("vae", lambda: Vae(None), False, None),
    ("vae_with_noise", lambda: Vae(5), False, "draws random numbers by row"),
]
for name, kind, test, differs in OTHERS:
    add(f"step_{name}", partial(_alone, kind=kind, test=test), differs)
