"""Trains on images that are expensive to prepare, without and with a tf.data service.

Every image is turned, moved and compressed each time it is used. First each worker prepares its
images on the CPUs that it trains on; then data workers, which are separate tasks, prepare them on
their own. Otherwise both trainings are the same. The script prints the speed of each.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Optional, Tuple

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from slurm_resolver import MultiWorkerMirroredStrategy, SlurmClusterResolver

SIZE = 160  # pixels of an image's side


def prepare(image: Any, label: Any) -> Tuple[Any, Any]:
    """Returns an image of 8x8 pixels enlarged, turned, moved, and with JPEG artefacts."""
    side = SIZE + 16
    image = tf.image.resize(image, (side, side), method="bicubic")
    angle = tf.random.uniform([], -0.3, 0.3)
    sine, cosine, middle = tf.sin(angle), tf.cos(angle), side / 2
    turn = [cosine, -sine, middle * (1 - cosine + sine), sine, cosine, middle * (1 - sine - cosine)]
    image = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=[[*turn, 0.0, 0.0]],
        output_shape=(side, side),
        interpolation="BILINEAR",
        fill_value=0.0,
    )[0]
    image = tf.image.random_crop(image, (SIZE, SIZE, 1))
    image = tf.cast(tf.clip_by_value(image, 0, 1) * 255, tf.uint8)
    image = tf.image.decode_jpeg(tf.io.encode_jpeg(image, quality=60), channels=1)
    return tf.image.resize(image, (16, 16)) / 255, label


def batches(images: Any, labels: Any, batch_size: int, service: Optional[str]) -> tf.data.Dataset:
    """Returns the batches of all workers together, prepared here or by the data service."""
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat()
    data = data.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size)
    if service is not None:
        distribute = tf.data.experimental.service.distribute
        # Everything above runs in the data workers: each reads all images, in its own order. All
        # workers with this job name share the batches, first come, first served.
        off = tf.data.experimental.service.ShardingPolicy.OFF
        data = data.apply(distribute(off, service, job_name="training"))
    return data.prefetch(tf.data.AUTOTUNE)


def build_model() -> Any:
    """Returns a small net, ready to train."""
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return model


class Speed(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures from the second epoch on: the first one builds graphs."""

    def __init__(self, images_per_epoch: int, workers: int) -> None:
        super().__init__()
        self.images_per_epoch, self.workers = images_per_epoch, workers
        self.text = "too few epochs to measure"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Records the speed until now, and the CPU time of this process."""
        now = (time.perf_counter(), time.process_time())
        if epoch == 0:
            self.start = now
            return
        seconds, cpu_seconds = (end - start for start, end in zip(self.start, now))
        images = epoch * self.images_per_epoch
        own = cpu_seconds * 1000 / (images / self.workers)
        self.text = f"{images / seconds:.0f} images/s, {own:.2f} ms of CPU time each in a worker"


def main() -> None:
    """Serves data, or trains twice and compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data-workers", type=int, default=2, help="0: prepare in the workers only"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32, help="of each replica (32)")
    args = parser.parse_args()

    jobs = None
    if args.data_workers:
        jobs = {"worker": -1, "dispatcher": 1, "data_worker": args.data_workers}
    resolver = SlurmClusterResolver(jobs)
    resolver.wait_until_ready(timeout=120)
    if resolver.task_type in ("dispatcher", "data_worker"):
        sys.exit(resolver.serve())  # until the workers have ended
    strategy = MultiWorkerMirroredStrategy(resolver)

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8, 1) / 16).astype("float32")
    images, test_images, labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=0
    )
    test = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).map(prepare).cache()
    batch_size = args.batch_size * strategy.num_replicas_in_sync
    steps = max(1, len(images) // batch_size)
    workers = len(resolver.cluster_spec().as_dict().get("worker", "1"))
    tells = not resolver.task_id  # the first worker, or the only process
    for service in (None, resolver.data_service) if args.data_workers else (None,):
        with strategy.scope():
            model = build_model()
        speed = Speed(steps * batch_size, workers)
        model.fit(
            batches(images, labels, batch_size, service),
            epochs=args.epochs,
            steps_per_epoch=steps,
            callbacks=[speed],
            shuffle=False,  # the dataset shuffles
            verbose=0,
        )
        _, accuracy = model.evaluate(test.batch(batch_size), verbose=0)
        if tells:
            others = f"{args.data_workers} data worker" + "s" * (args.data_workers > 1)
            where = f"prepared by {others}" if service else "prepared by the workers themselves"
            print(f"{where}: {speed.text}, test accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
