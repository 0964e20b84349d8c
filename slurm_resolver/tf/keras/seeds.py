"""One seed for all workers, so that all of them shuffle and generate the same data."""

from __future__ import annotations

import random
import zlib
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from slurm_resolver.slurm.step import SlurmStep

# What TensorFlow takes for the global seed where an operation has a seed and the program set none.
_NO_SEED = 87654321
_MODULO = 2**31 - 1  # TensorFlow tells seeds modulo this


def global_seed() -> Optional[int]:
    """Returns the seed that the program has set by now; None where it has set none.

    `tf.random.set_seed` sets it, and so does `keras.utils.set_random_seed`. TensorFlow tells it
    modulo 2**31 - 1. Nothing is drawn.
    """
    seed = int(tf.compat.v1.get_seed(1)[0])  # with another argument than None it draws nothing
    return None if seed == _NO_SEED else seed


def agree_on_seeds(workers: Any) -> None:
    """Gives all workers the same random numbers, unless the program has seeded them alike.

    Python's, NumPy's and TensorFlow's generators are each seeded only where the workers differ, or
    where TensorFlow has no seed. Keras draws its seeds from Python's. The seed is the job's, and
    stays the same when the job is requeued. TensorFlow's is the one that keeps what operations with
    a seed of their own draw, such as ``shuffle(n, seed=1)``.
    """
    seed = zlib.crc32((SlurmStep.read().job_id or "").encode()) % _MODULO
    own = [_digest(random.getstate()), _digest(np.random.get_state()), global_seed()]
    states = list(zip(*workers.exchange("makes the strategy", own)))
    if len(set(states[0])) > 1:
        random.seed(seed)
    if len(set(states[1])) > 1:
        np.random.seed(seed)
    if set(states[2]) == {None}:
        tf.random.set_seed(_NO_SEED)


def draw_by_replica(replica: int) -> None:
    """Lets the graph that is being traced draw other random numbers than replica 0.

    Its rows are other ones.
    """
    graph = tf.compat.v1.get_default_graph()
    if replica and not tf.executing_eagerly() and graph.seed is not None:
        graph.seed = (graph.seed + 1_000_003 * replica) % _MODULO


def _digest(state: Any) -> int:
    parts = [part.tobytes() if isinstance(part, np.ndarray) else part for part in state]
    return zlib.crc32(repr(parts).encode())
