"""Which versions of Keras train rightly on several workers."""

from __future__ import annotations

import sys
from typing import Tuple

from slurm_resolver.errors import KerasError

# Measured: tests/tensorflow/test_keras_fit.py on every minor version of Keras 3.
_FIRST_RIGHT = (3, 10)


def check_keras() -> None:
    """Raises KerasError where the Keras of this process would train wrongly.

    Raises:
        KerasError: naming the version, what is wrong with it, and what to install.
    """
    keras = sys.modules.get("keras")
    version = getattr(keras, "__version__", None)
    if version is None or _minor(version) >= _FIRST_RIGHT or _minor(version) < (3, 0):
        return
    needed = ".".join(map(str, _FIRST_RIGHT))
    raise KerasError(
        f"Keras {version} trains wrongly on several workers: its metrics, and in the oldest "
        f"versions its weights, are not those of one process. Expected Keras {needed} or later: "
        f"pip install 'keras>={needed}'; or use tf_keras, or a training loop of your own."
    )


def _minor(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
