"""Which versions of Keras train rightly on several workers.

Measured with tests/helpers/keras_programs, two workers against one process: up to 3.9 the metrics
are wrong, up to 3.7 the weights as well.
"""

from __future__ import annotations

import sys
from typing import Tuple

from slurm_resolver.errors import KerasError
from slurm_resolver.log import warn_once

_FIRST_RIGHT = (3, 10)
_NEWEST_TRIED = (3, 16)


def keras_problem(version: str) -> str:
    """Returns what is wrong with the `fit` of this Keras on several workers; '' for nothing."""
    if not (3, 0) <= _minor(version) < _FIRST_RIGHT:
        return ""
    needed = ".".join(map(str, _FIRST_RIGHT))
    return (
        f"Keras {version} trains wrongly on several workers: its metrics, and up to 3.7 its "
        f"weights, are not those of one process. Expected Keras {needed} or later: "
        f"pip install 'keras>={needed}'; or use tf_keras, or write the training loop."
    )


def check_keras() -> None:
    """Raises KerasError where the Keras of this process would train wrongly.

    It warns, once, of one that is newer than those that were tried.

    Raises:
        KerasError: naming the version, what is wrong with it, and what to install.
    """
    version = getattr(sys.modules.get("keras"), "__version__", None)
    problem = "" if version is None else keras_problem(version)
    if problem:
        raise KerasError(problem)
    if version is not None and _minor(version) > _NEWEST_TRIED:
        major, minor = _NEWEST_TRIED
        warn_once(
            f"Keras {version} is newer than {major}.{minor}, the newest that was tried on several "
            "workers. If its results differ from those of one process: "
            f"pip install 'keras<{major}.{minor + 1}'"
        )


def _minor(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
