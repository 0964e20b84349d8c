"""Measures this process's GPUs, and prints the result as JSON.

It is a program of its own (``python -m slurm_resolver.tf.device_speed``), so that the memory of the
GPUs is free when it has ended.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, List, Tuple

import tensorflow as tf

_TRIES = 5
_TRY_SECONDS = 0.1


def measure(device: str, size: int = 4096, floats: int = 2**26) -> Tuple[float, float]:
    """Returns how fast a device multiplies and copies.

    Args:
        device: TensorFlow's name of it.
        size: of the square matrices, float32, whose product is computed.
        floats: how many of them to read and write.

    Returns:
        Operations a second, and bytes a second, reading and writing both counted.
    """
    with tf.device(device):
        matrix = tf.random.uniform((size, size))
        numbers = tf.zeros((floats,))
        computed = _best_rate(lambda: tf.matmul(matrix, matrix), 2 * size**3)
        copied = _best_rate(lambda: numbers + 1.0, 8 * floats)
    return computed, copied


def _best_rate(work: Callable[[], Any], number: int) -> float:
    """Returns how much is done a second, in the best of some tries."""
    _finish(work())  # the first one looks for the fastest kernel
    rate, repeats = 0.0, 1
    for _ in range(_TRIES):
        while True:
            began = time.perf_counter()
            for _ in range(repeats):
                result = work()
            _finish(result)
            seconds = time.perf_counter() - began
            rate = max(rate, number * repeats / seconds)
            if seconds >= _TRY_SECONDS:
                break
            repeats *= 2
    return rate


def _finish(result: Any) -> None:
    """Waits for the device: TensorFlow hands out results before they are computed."""
    float(tf.reshape(result, (-1,))[0])


def main() -> None:
    """Measures one GPU after the other, and prints JSON."""
    gpus: List[Tuple[float, float]] = []
    for device in tf.config.list_logical_devices("GPU"):
        gpus.append(measure(device.name))
    print(json.dumps({"gpus": gpus}))


if __name__ == "__main__":
    main()
