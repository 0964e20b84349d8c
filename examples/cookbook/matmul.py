"""Times a matrix product on the CPU, or on the task's GPU.

Every task of the step computes the same product on its own device, and prints the device.
"""

from __future__ import annotations

import argparse
import sys
import time

import tensorflow as tf

from slurm_resolver import SlurmClusterResolver

v1 = tf.compat.v1


def find_device(kind: str, name: str, resolver: SlurmClusterResolver) -> str:
    """Returns the device's name in TensorFlow; exits with a message without one."""
    # After the resolver, TensorFlow sees this task's own GPUs, numbered from 0.
    if kind == "gpu" and not tf.config.list_physical_devices("GPU"):
        given = ",".join(resolver.gpus or ())
        if not given:
            reason = "ask Slurm for one, as with srun --gpus-per-task=1, or say cpu"
        elif not tf.test.is_built_with_gpu_support():
            reason = f"it was given GPU {given}, but this TensorFlow is built for CPUs only"
        else:
            reason = f"it was given GPU {given}, but TensorFlow finds none: does nvidia-smi work?"
        sys.exit(f"{name} has no GPU: {reason}")
    return f"/device:{kind.upper()}:0"


def main() -> None:
    """Multiplies a random matrix by its transpose, again and again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=("cpu", "gpu"))
    parser.add_argument("shape", type=int, nargs="+", help="rows, or rows and columns")
    parser.add_argument("--repeat", type=int, default=10, help="products to time (10)")
    args = parser.parse_args()
    if len(args.shape) > 2 or min(args.shape) < 1 or args.repeat < 1:
        parser.error("expected one or two sizes of 1 or more, and a repeat of 1 or more")
    rows, columns = args.shape[0], args.shape[-1]

    v1.disable_eager_execution()
    resolver = SlurmClusterResolver()  # selects this task's GPUs, before TensorFlow looks for any
    task = resolver.cluster.task
    name = f"rank {task.rank} on {task.node}" if task else "this process"
    device = find_device(args.device, name, resolver)

    with tf.device(device):
        matrix = v1.get_variable(
            "matrix", [rows, columns], initializer=v1.random_uniform_initializer()
        )
        total = tf.reduce_sum(tf.matmul(matrix, matrix, transpose_b=True))
    # Without soft placement, another device is an error.
    with v1.Session(config=v1.ConfigProto(allow_soft_placement=False)) as session:
        session.run(matrix.initializer)
        session.run(total)  # the first is slow: it loads libraries and allocates memory
        start = time.perf_counter()
        for _ in range(args.repeat):
            result = session.run(total)
        seconds = (time.perf_counter() - start) / args.repeat
    gflops = 2 * rows * rows * columns / seconds / 1e9
    given = f" (GPU {','.join(resolver.gpus)} of the node)" if resolver.gpus else ""
    print(
        f"{name}: {device}{given if args.device == 'gpu' else ''}, {rows}x{columns} by its "
        f"transpose: {seconds * 1e3:.2f} ms, {gflops:.3g} GFLOP/s, sum {result:.6g}",
        flush=True,
    )


if __name__ == "__main__":
    main()
