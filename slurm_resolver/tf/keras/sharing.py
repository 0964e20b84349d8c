"""Each worker's share of a global batch.

The batches of the program are *global*: each of them is a step of all workers together. Every
worker reads the same batches and keeps its own rows; row i belongs to replica i mod R of R. (A
replica is a model on one device, of which a worker has one or several.) A `Share` is what a worker
reads of a batch, with fingerprints of its tensors, by which a step compares what the workers read.

TensorFlow splits a dataset by elements: only some workers get a shorter last batch, and the data of
a generator is not split at all.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, TypeVar, cast

import tensorflow as tf
from tensorflow.data import Dataset

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.origins import Origin, find_origins

# Tensors, or their types, in tuples, lists and dicts, as `tf.nest` takes them.
Structure = Any
# TensorFlow's global seed for operations with a seed, if the program sets no global seed.
NO_SEED = 87654321
Traced = TypeVar("Traced", bound=Callable[..., Any])
_DIGESTS = 2**24 - 3  # exact as float32
_SMALL = 16  # numbers in a row, up to which all rows are compared
FINGERPRINT = 3  # numbers in the fingerprint of a tensor
TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
BYTES_PER_BUCKET = 25 * 2**20
# For a map that reads no element ahead: the next reader of a generator would not get it.
# TensorFlow 2.16 has no such argument.
_HAS_SYNCHRONOUS = "synchronous" in inspect.signature(Dataset.map).parameters
AT_ONCE = {"synchronous": True} if _HAS_SYNCHRONOUS else {}
_OPTIONAL = (tf.experimental.Optional, tf.OptionalSpec)


class Share(NamedTuple):
    """A global batch as a worker reads it.

    Attributes:
        digest: fingerprints, float32 of shape (tensors with rows, FINGERPRINT): of the batch's
            tensors, or of those that its rows are made of.
        batch: all rows, or those of this worker's replicas.
        marks: tensors without entries: "rows", see `rows`; "drawn", if each worker draws parts of
            the batch, such as augmented images; "own", if the worker reads data of its own: that
            of all workers is the batch. (With a None for what is missing, TensorFlow would take
            twice as long to return a batch.)
    """

    digest: tf.Tensor
    batch: Structure
    marks: Mapping[str, tf.Tensor] = {}

    @property
    def rows(self) -> tf.Tensor | None:
        """A tensor of shape (rows, 0), if the batch has only the rows of this worker.

        TensorFlow knows all rows of the batch as it does in one process: as a constant or not.
        """
        return self.marks.get("rows")


class Sharing(NamedTuple):
    """How batches are split, and gradients are sent.

    Attributes:
        first_replica: the number of this worker's first replica.
        local_replicas: how many this worker has.
        replicas: how many all workers have.
        bytes_per_bucket: after which a bucket of gradients is sent.
    """

    first_replica: int
    local_replicas: int
    replicas: int
    bytes_per_bucket: int = BYTES_PER_BUCKET


def without_conversion(function: Traced) -> Traced:
    """Returns a function that AutoGraph does not convert, which saves time with each dataset.

    It must have no conditions or loops in Python that depend on tensors.
    """
    return cast(Traced, tf.autograph.experimental.do_not_convert(function))


def share(batch: Structure, origins: Sequence[Origin] | None = None) -> Share:
    """Returns a batch with the fingerprints of its tensors, by default of equal ones."""
    pairs = zip(tf.nest.flatten(batch), origins or itertools.repeat(Origin.EQUAL))
    fingerprints = [fingerprint(value, origin) for value, origin in pairs if has_rows(value)]
    return Share(tf.reshape(fingerprints, [-1, FINGERPRINT]), batch)


def own_share(data: Structure) -> Share:
    """Returns what a worker has read for itself, which no other one has."""
    return Share(tf.zeros([0, FINGERPRINT]), data, {"own": tf.zeros([0])})


def fingerprint(value: tf.Tensor, origin: Origin) -> tf.Tensor:
    """Returns a digest of a tensor, whether it tells rows apart, and its origin, as float32.

    The digest is of the first and the last row, or of all rows if they are small.
    """
    texts = []
    for part in tf.nest.flatten(value, expand_composites=True):
        texts += [tf.io.serialize_tensor(part[:1]), tf.io.serialize_tensor(part[-1:])]
        size = part.shape[1:].num_elements()
        if size is not None and size <= _SMALL:
            texts.append(tf.io.serialize_tensor(part))
    digest = tf.strings.to_hash_bucket_fast(tf.strings.join(texts), _DIGESTS)
    tells = tf.not_equal(texts[0], texts[1])
    return tf.stack([tf.cast(digest, tf.float32), tf.cast(tells, tf.float32), float(origin)])


def names_of_tensors(share: Share) -> list[str]:
    """Returns the part of each tensor that has rows, such as "x", in the fingerprints' order."""
    if share.rows is not None:
        return ["data"] * int(share.digest.shape[0])
    batch = share.batch
    parts = batch if isinstance(batch, tuple) else (batch,)
    return [
        name
        for part, name in zip(parts, ("x", "y", "sample_weight"))
        for value in tf.nest.flatten(part)
        if has_rows(value)
    ]


def undivided_shares(dataset: Dataset) -> Dataset:
    """Returns the dataset of shares that have all rows of each batch of a dataset."""
    origins = find_origins(dataset)

    @without_conversion
    def shared(batch: Structure) -> Share:
        marks = {"drawn": tf.zeros([0])} if Origin.RANDOM in origins else {}
        return share(batch, origins)._replace(marks=marks)

    return Dataset.zip((dataset,)).map(shared, **AT_ONCE)


def is_one_of(thing: object, kinds: Iterable[private_names.Name]) -> bool:
    """Whether a dataset, or what Keras makes of it, is of one of these classes."""
    return isinstance(thing, tuple(kind.get() for kind in kinds))


def without(dataset: Dataset, kinds: Collection[private_names.Name]) -> Dataset:
    """Returns what a dataset is made of, without these kinds at its end."""
    while is_one_of(dataset, kinds):
        (dataset,) = private_names.INPUTS.of(dataset)()
    return dataset


def count_rows(batch: Structure) -> int | tf.Tensor:
    """Returns the number of a batch's rows: an int where it is known, else an int32 tensor."""
    for value in filter(has_rows, tf.nest.flatten(batch)):
        static = value.shape[0]
        return tf.cast(tf.shape(value)[0], tf.int32) if static is None else int(static)
    return 1


def without_optionals(batch: Structure) -> Structure:
    """Returns a batch, or its types, with None for what Keras has left out: sample weights."""
    return tf.nest.map_structure(
        lambda value: None if isinstance(value, _OPTIONAL) else value, batch
    )


def type_of(value: Any) -> tf.TypeSpec | None:
    """Returns the type of a part of a batch, given as a tensor, its type or None."""
    if value is None or isinstance(value, tf.TypeSpec):
        return value
    return tf.type_spec_from_value(value)


def has_rows(value: object) -> bool:
    """Whether a part of a batch is a tensor with a first dimension."""
    return isinstance(value, TENSORS) and value.shape.rank != 0
