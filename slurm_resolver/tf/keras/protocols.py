"""What this package uses of its strategy and of Keras' objects, by which mypy checks it.

TensorFlow and Keras have no types: to mypy, each of their classes is `Any`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Protocol

import tensorflow as tf

from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras.sharing import Sharing
from slurm_resolver.tf.private_names import Method

Logs = Optional[Mapping[str, float]]  # of a step or an epoch, as callbacks get them


class Strategy(Protocol):
    """A `MultiWorkerMirroredStrategy` of this package, whose module imports all others."""

    comparisons: weakref.WeakSet[Any]  # `Comparison`s
    extended: tf.distribute.StrategyExtended
    of_several: bool
    sharing: Sharing
    verified_steps: int
    waited: tf.Variable | None
    workers: Workers
    experimental_local_results: Method
    run: Method
    scope: Method


class Metric(Protocol):
    """A metric of Keras."""

    name: str
    variables: list[Any]  # Keras' variables


class Model(Protocol):
    """A model of Keras."""

    compiled: bool
    distribute_strategy: Any  # of any class
    jit_compile: bool
    name: str
    run_eagerly: bool
    steps_per_execution: int
    variables: list[Any]
    weights: list[Any]


class EpochIterator(Protocol):
    """What makes Keras' iterators over the data."""

    num_batches: int | None
    steps_per_execution: int

    def __iter__(self) -> Iterator[Any]: ...
