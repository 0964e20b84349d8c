"""Which versions of TensorFlow and Keras are installed, and whether this Keras trains correctly.

Measured with tests/helpers/keras_programs, two workers against one process: up to 3.9 the metrics
are wrong, up to 3.7 the weights as well.
"""

from __future__ import annotations

import sys
from importlib import metadata

from slurm_resolver.errors import KerasError

_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-rocm",
    "rocm_tensorflow",
    "tf-nightly",
    "intel-tensorflow",
    "tf-nightly-cpu",
    "tensorflow-aarch64",
)
_FIRST_RIGHT = "3.10"


def keras_problem(version: str) -> str:
    """Returns what is wrong with the `fit` of this Keras on several workers; '' if nothing is.

    `version` is '' where there is none.
    """
    if not version or not (3, 0) <= _minor(version) < _minor(_FIRST_RIGHT):
        return ""
    return (
        f"Keras {version} trains incorrectly on several workers: its metrics, and up to 3.7 its "
        f"weights, are not those of one process. Expected Keras {_FIRST_RIGHT} or later: "
        f"pip install 'keras>={_FIRST_RIGHT}'; or use tf_keras, or write the training loop."
    )


def check_keras() -> None:
    """Raises KerasError if this process's Keras would train incorrectly."""
    problem = keras_problem(_loaded_version("keras"))
    if problem:
        raise KerasError(problem)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def find_tensorflow_version() -> str:
    """Returns the version of the installed TensorFlow, without importing it; '' without one."""
    return _loaded_version("tensorflow") or next(
        filter(None, map(installed_version, _PACKAGES)), ""
    )


def _loaded_version(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__version__", ""))


def installed_version(package: str) -> str:
    """Returns the version of an installed package; '' without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
