"""Splits a 4x3 matrix over two GPUs of one task, or two CPU devices, and multiplies it there.

One process, one graph: each device multiplies its rows, and the CPU joins the products.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tensorflow as tf

from slurm_resolver import SlurmClusterResolver

v1 = tf.compat.v1

MATRIX = np.arange(1, 13, dtype="float32").reshape(4, 3)
FACTOR = np.arange(1, 7, dtype="float32").reshape(3, 2)


def find_devices(kind: str, resolver: SlurmClusterResolver) -> list[str]:
    """Returns two devices; exits with a message if there are fewer."""
    if kind == "gpu":
        # After the resolver, TensorFlow sees this task's own GPUs, numbered from 0.
        seen = len(tf.config.list_physical_devices("GPU"))
        if seen < 2:
            given = ",".join(resolver.gpus or ()) or "none"
            sys.exit(
                f"expected two GPUs, but TensorFlow sees {seen}, and the task was given {given}. "
                "Ask Slurm for two, as with srun --ntasks=1 --gpus=2, or say cpu"
            )
    return [f"/device:{kind.upper()}:{number}" for number in range(2)]


def main() -> None:
    """Multiplies, shows what ran where, and compares with numpy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=("cpu", "gpu"))
    args = parser.parse_args()

    v1.disable_eager_execution()
    resolver = SlurmClusterResolver()  # selects this task's GPUs, before TensorFlow looks for any
    devices = find_devices(args.device, resolver)

    matrix = v1.placeholder(tf.float32, MATRIX.shape)
    factor = v1.placeholder(tf.float32, FACTOR.shape)
    with tf.device("/device:CPU:0"):
        parts = tf.split(matrix, len(devices))
    products = []
    for number, (device, rows) in enumerate(zip(devices, parts)):
        with tf.device(device):
            products.append(tf.matmul(rows, factor, name=f"product_{number}"))
    with tf.device("/device:CPU:0"):
        result = tf.concat(products, axis=0, name="result")

    # Two logical devices on the CPU.
    config = v1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=False)
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    trace = v1.RunMetadata()
    with v1.Session(config=config) as session:
        product = session.run(result, {matrix: MATRIX, factor: FACTOR}, options, trace)
    for device in sorted(trace.step_stats.dev_stats, key=lambda one: one.device):
        for node in device.node_stats:
            if node.node_name.startswith(("product_", "result")):
                print(f"{node.node_name} ran on {device.device}")
    print(product)
    np.testing.assert_allclose(product, MATRIX @ FACTOR, rtol=1e-6)
    print("equal to numpy's", flush=True)


if __name__ == "__main__":
    main()
