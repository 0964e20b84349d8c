"""A worker of benchmarks/scaling.py: trains each part twice, and prints times of the second fit.

The arguments are how it runs ("alone" or "workers"), the library (keras or tf_keras), the folder of
the images, and the parts, each as DATA:STEP:POLICY. The policy is that of tf.data's automatic
sharding.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

RUNS, LIBRARY, FOLDER, *PARTS = sys.argv[1:]
if LIBRARY == "tf_keras":
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np  # noqa: E402 (after TF_USE_LEGACY_KERAS)
import tensorflow as tf  # noqa: E402

import slurm_resolver as sr  # noqa: E402

IMAGES = Path(FOLDER)
CLASSES = 4
SIZE = 64  # of the images that the model gets
SLEEP = 0.05  # seconds for each row
PARALLEL_ROWS = 2  # that sleep at the same time


class Data(NamedTuple):
    """Where the rows of a part come from."""

    make: Callable[[Any, int], Any]  # of a library and a number of batches
    batch: int
    batches: int  # in the fit that is measured
    model: str


def files(batches: int) -> Path:
    """Returns the folder with the JPEG files of so many batches."""
    return IMAGES / ("few" if batches == WARM_UP else "all")


def decode(contents: Any) -> Any:
    """Returns an image as the model gets it."""
    return tf.image.resize(tf.io.decode_jpeg(contents, channels=3), (SIZE, SIZE))


def jpeg_files(keras: Any, batches: int) -> Any:
    """Returns a dataset that reads and decodes each JPEG file in a map."""

    def load(path: Any, label: Any) -> Any:
        return decode(tf.io.read_file(path)), label

    paths = sorted(map(str, files(batches).glob("*/*.jpg")))
    labels = np.arange(len(paths)) % CLASSES
    dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths))
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(DATA["jpeg"].batch).prefetch(tf.data.AUTOTUNE)


def image_folder(keras: Any, batches: int) -> Any:
    """Returns the dataset that Keras makes of a folder of JPEG files."""
    return keras.utils.image_dataset_from_directory(
        files(batches),
        image_size=(SIZE, SIZE),
        batch_size=DATA["folder"].batch,
        seed=1,
    )


def tfrecords(keras: Any, batches: int) -> Any:
    """Returns a dataset that decodes JPEG images from TFRecord files."""

    def load(record: Any) -> Any:
        features = {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        }
        example = tf.io.parse_single_example(record, features)
        return decode(example["image"]), example["label"]

    paths = sorted(map(str, files(batches).glob("*.tfrecord")))
    dataset = tf.data.TFRecordDataset(paths)
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(DATA["tfrecord"].batch).prefetch(tf.data.AUTOTUNE)


def sleeping(keras: Any, batches: int) -> Any:
    """Returns a dataset whose rows take time, but no CPU."""

    def wait(number: Any) -> Any:
        time.sleep(SLEEP)
        return number

    def load(number: Any) -> Any:
        found = tf.ensure_shape(tf.numpy_function(wait, [number], tf.int64), [])
        return tf.fill([SIZE], tf.cast(found, tf.float32)), found % CLASSES

    batch = DATA["sleep"].batch
    dataset = tf.data.Dataset.range(batches * batch).map(load, num_parallel_calls=PARALLEL_ROWS)
    return dataset.batch(batch).prefetch(1)


def arrays(keras: Any, batches: int) -> Any:
    """Returns images and labels as arrays."""
    rows = batches * DATA["arrays"].batch
    generator = np.random.default_rng(1)
    images = generator.random((rows, 16, 16, 3), dtype=np.float32)
    return images, np.arange(rows) % CLASSES


def little(keras: Any, batches: int) -> Any:
    """Returns a dataset of rows that need nearly no time, which are divided as others are."""
    rows = tf.zeros([batches * DATA["step"].batch, SIZE])
    labels = tf.zeros([rows.shape[0]], tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices((rows, labels))
    dataset = dataset.map(lambda row, label: (row + 1, label))
    return dataset.batch(DATA["step"].batch).prefetch(tf.data.AUTOTUNE)


WARM_UP = 1  # batch of the first fit, which traces the graphs
DATA = {
    "jpeg": Data(jpeg_files, batch=64, batches=48, model="small"),
    "folder": Data(image_folder, batch=64, batches=48, model="small"),
    "tfrecord": Data(tfrecords, batch=64, batches=48, model="small"),
    "sleep": Data(sleeping, batch=64, batches=24, model="dense"),
    "arrays": Data(arrays, batch=512, batches=20, model="slow"),
    "step": Data(little, batch=16, batches=1, model="dense"),
    "steps": Data(little, batch=16, batches=201, model="dense"),
}


def layers_of(keras: Any, model: str) -> Any:
    """Returns the layers of a model up to its last one, and the shape of a row."""
    layers = keras.layers
    if model == "dense":
        return (SIZE,), [layers.Dense(16, activation="relu")]
    if model == "small":
        return (SIZE, SIZE, 3), [
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, strides=4, activation="relu"),
            layers.GlobalAveragePooling2D(),
        ]
    convolutions = [layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]
    return (16, 16, 3), [*convolutions, layers.GlobalAveragePooling2D()]


def classes_of(keras: Any) -> dict[str, Any]:
    """Returns the classes of models by the kind of their step."""

    class Mean(keras.Model):  # type: ignore[misc]
        """Its loss is a mean over the rows."""

        def loss_of_batch(self, labels: Any, predicted: Any) -> Any:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, predicted)
            return tf.reduce_mean(losses)

        def train_step(self, data: Any) -> Any:
            rows, labels = data
            with tf.GradientTape() as tape:
                loss = self.loss_of_batch(labels, self(rows, training=True))
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables))
            return {"loss": loss}

    class Comparing(Mean):
        """Its loss compares each row with all others."""

        def loss_of_batch(self, labels: Any, predicted: Any) -> Any:
            similar = tf.matmul(predicted, predicted, transpose_b=True)
            same = tf.cast(tf.equal(labels[:, tf.newaxis], labels[tf.newaxis]), tf.float32)
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(same, similar))

    return {"keras": keras.Model, "mean": Mean, "comparing": Comparing}


def build(keras: Any, data: Data, step: str) -> Any:
    """Returns a compiled model."""
    shape, layers = layers_of(keras, data.model)
    given = keras.Input(shape)
    made = given
    for layer in [*layers, keras.layers.Dense(CLASSES)]:
        made = layer(made)
    model = classes_of(keras)[step](given, made)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model


def make_strategy() -> Any:
    """Returns this package's strategy for Keras 3, and TensorFlow's class for tf_keras."""
    if RUNS == "alone":
        return tf.distribute.get_strategy()
    if LIBRARY == "keras":
        return sr.MultiWorkerMirroredStrategy()
    return tf.distribute.MultiWorkerMirroredStrategy(sr.SlurmClusterResolver())


def fit(keras: Any, model: Any, data: Data, batches: int, policy: str) -> None:
    """Trains one epoch with so many batches."""
    made = data.make(keras, batches)
    if isinstance(made, tuple):
        model.fit(*made, batch_size=data.batch, verbose=0)
        return
    options = tf.data.Options()
    policies = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policies[policy]
    model.fit(made.with_options(options), verbose=0)


def cpu_seconds() -> float:
    """Returns the CPU time of this process, of the user and of the system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Trains each part, and prints the CPU time and the time of its second fit in seconds."""
    strategy = make_strategy()
    keras = importlib.import_module(LIBRARY)
    for part in PARTS:
        kind, step, policy = part.split(":")
        data = DATA[kind]
        with strategy.scope():
            model = build(keras, data, step)
        fit(keras, model, data, WARM_UP, policy)
        cpu = cpu_seconds()
        start = time.perf_counter()
        fit(keras, model, data, data.batches, policy)
        print("seconds:", part, cpu_seconds() - cpu, time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
