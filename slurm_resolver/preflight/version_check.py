"""Whether TensorFlow is there and uses the GPUs, and whether its Keras trains correctly."""

from __future__ import annotations

from importlib import util

from slurm_resolver.start.keras_version import (
    find_tensorflow_version,
    installed_version,
    keras_problem,
)
from slurm_resolver.start.transport import CUDA_REMEDY


def tensorflow_problem() -> str:
    """Returns what to do if there is no TensorFlow; else ''."""
    if find_tensorflow_version() or util.find_spec("tensorflow"):
        return ""
    return (
        "not installed: load your site's module, or pip install 'tensorflow[and-cuda]>=2.15' "
        "for NVIDIA GPUs, or tensorflow-cpu"
    )


def cuda_problem() -> str:
    """Returns what to do if TensorFlow was built for CPUs only; else ''."""
    if not installed_version("tensorflow-cpu") or installed_version("tensorflow"):
        return ""
    return f"this task has GPUs, but tensorflow-cpu uses none: {CUDA_REMEDY}"


def find_keras() -> tuple[str, str]:
    """Returns what is wrong with the installed Keras, or '', and the versions.

    An old Keras 3 beside tf_keras is right: the program may import tf_keras.
    """
    keras = installed_version("keras") or installed_version("keras-nightly")
    tf_keras = installed_version("tf_keras")
    problem = "" if tf_keras else keras_problem(keras)
    return problem, f"Keras {keras or 'none'}, tf_keras {tf_keras or 'none'}"
