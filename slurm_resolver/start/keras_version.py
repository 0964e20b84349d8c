"""Which versions of TensorFlow and Keras are installed, and whether this Keras trains correctly.

Measured with tests/helpers/keras_programs, two workers against one process: up to 3.9 the metrics
are wrong, up to 3.7 the weights as well.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

from slurm_resolver.errors import KerasError


def keras_problem(version: str) -> str:
    """Returns what is wrong with the `fit` of this Keras on several workers; '' if nothing is.

    `version` is '' where there is none.
    """
    if not re.match(r"3\.\d(\.|$)", version):  # 3.0 to 3.9
        return ""
    return (
        f"Keras {version} trains incorrectly on several workers: its metrics, and up to 3.7 its "
        "weights, are not those of one process. Expected Keras 3.10 or later: "
        "pip install 'keras>=3.10'; or use tf_keras, or write the training loop."
    )


def check_keras() -> None:
    """Raises KerasError if this process's Keras would train incorrectly."""
    problem = keras_problem(_loaded_version("keras"))
    if problem:
        raise KerasError(problem)


def find_tensorflow_version() -> str:
    """Returns the version of the installed TensorFlow, without importing it; '' without one."""
    packages = (
        "tensorflow",
        "tensorflow-cpu",
        "tensorflow-rocm",
        "rocm_tensorflow",
        "tf-nightly",
        "intel-tensorflow",
        "tf-nightly-cpu",
        "tensorflow-aarch64",
    )
    return _loaded_version("tensorflow") or next(filter(None, map(installed_version, packages)), "")


def _loaded_version(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__version__", ""))


def installed_version(package: str) -> str:
    """Returns the version of an installed package; '' without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
