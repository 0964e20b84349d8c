"""The check of Keras: whether the `fit` that the program may use trains rightly.

Which Keras a program takes only a variable tells, TF_USE_LEGACY_KERAS; without it a program may
still import tf_keras. So an old Keras 3 beside tf_keras is no warning: whoever uses it gets an
error, as `slurm_resolver.preflight.keras_version` sees to.
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any, Dict, Optional, Sequence

from slurm_resolver.preflight.keras_version import keras_problem
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result


def keras_facts() -> Dict[str, Any]:
    """Returns what a task tells the others about its Keras."""
    return {
        "keras": _installed("keras"),
        "tf_keras": _installed("tf_keras"),
        "legacy_keras": os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"),
    }


def _installed(package: str) -> str:
    """Returns the version of a package; '' where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def keras_result(facts: Sequence[Dict[str, Any]], tensorflow: Optional[str]) -> Result:
    """Returns the result for the facts of all tasks.

    Args:
        facts: of each task, with what else it told.
        tensorflow: its version; None where it is missing.
    """
    if tensorflow is None:
        return Result("keras", SKIPPED, "there is no TensorFlow to use it with")
    if any(own["legacy_keras"] and not own["tf_keras"] for own in facts):
        release = ".".join(tensorflow.split(".")[:2])
        return Result(
            "keras",
            WARNING,
            "TF_USE_LEGACY_KERAS asks for tf_keras, which is not installed, so that tf.keras will "
            f"be an error: pip install 'tf_keras=={release}.*', or unset the variable for Keras 3",
        )
    legacy = sorted({own["tf_keras"] for own in facts if own["tf_keras"]})
    if all(own["legacy_keras"] for own in facts):
        return Result("keras", OK, f"fit() of tf_keras {', '.join(legacy)}")
    versions = sorted({own["keras"] for own in facts if own["keras"]})
    problem = next(filter(None, map(keras_problem, versions)), "")
    if problem and legacy:
        return Result("keras", OK, f"fit() of tf_keras {', '.join(legacy)}. {problem}")
    if problem:
        return Result("keras", WARNING, problem)
    if any(int(version.split(".")[0]) >= 3 for version in versions):
        where = (
            "slurm_resolver.MultiWorkerMirroredStrategy and slurm_resolver.ParameterServerStrategy"
        )
        return Result("keras", OK, f"Keras {', '.join(versions)}: fit() under {where}")
    return Result("keras", OK, "fit() can be used")
