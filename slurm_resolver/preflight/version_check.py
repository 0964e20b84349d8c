"""Whether TensorFlow is there and uses the GPUs, and whether its Keras trains correctly."""

from __future__ import annotations

from importlib import util

from slurm_resolver.preflight.result import FAILED, OK, WARNING, Result, result_of
from slurm_resolver.start.keras_version import (
    find_tensorflow_version,
    installed_version,
    keras_problem,
)
from slurm_resolver.start.transport import CUDA_REMEDY


def check_tensorflow(uses_gpus: bool) -> Result:
    """Returns the result of the check `tensorflow` for this task."""
    version = find_tensorflow_version()
    if not version and not util.find_spec("tensorflow"):
        return Result(
            "tensorflow",
            FAILED,
            "not installed: load your site's module, or pip install 'tensorflow[and-cuda]>=2.15' "
            "for NVIDIA GPUs, or tensorflow-cpu",
        )
    if uses_gpus and installed_version("tensorflow-cpu") and not installed_version("tensorflow"):
        return Result(
            "tensorflow",
            WARNING,
            f"this task has GPUs, but tensorflow-cpu uses none: {CUDA_REMEDY}",
        )
    return Result("tensorflow", OK, version or "of another build")


def check_keras_version() -> Result:
    """Returns the result of the check `keras` for this task.

    An old Keras 3 beside tf_keras is no warning: the program may import tf_keras.
    """
    keras = installed_version("keras") or installed_version("keras-nightly")
    tf_keras = installed_version("tf_keras")
    return result_of(
        "keras",
        ["" if tf_keras else keras_problem(keras)],
        f"Keras {keras or 'none'}, tf_keras {tf_keras or 'none'}",
        WARNING,
    )
