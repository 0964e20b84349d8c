"""Notes which line of a program starts TensorFlow, which a strategy of several workers must do.

A tensor, a dataset or a model starts it.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from typing import Callable

from slurm_resolver.errors import StartError
from slurm_resolver.tf import private_names

_TOO_LATE = "must be configured at program startup"  # TensorFlow's words
# The packages that start it for a program, and others between.
_OTHERS = (
    "tensorflow",
    "keras",
    "slurm_resolver",
    "contextlib",
    "functools",
    "importlib",
)
_line = ""  # of the program


def watch() -> None:
    """Notes from now on which line starts TensorFlow."""
    context = private_names.CONTEXT.find()
    if context and not private_names.HAS_STARTED.of(context(), True):
        private_names.START.replace(_note, owner=context())


def _note(start: Callable[[], object]) -> None:
    """Notes the line that calls this, which is done once."""
    global _line
    vars(private_names.CONTEXT.get()()).pop(private_names.START.name, None)
    for frame, number in traceback.walk_stack(sys._getframe()):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _OTHERS:
            path = frame.f_code.co_filename
            _line = f" by {path}, line {number}: {linecache.getline(path, number).strip()}"
            break
    start()


def error_of(error: RuntimeError) -> Exception:
    """Returns the error that says what started TensorFlow, for TensorFlow's own; others as are."""
    if _TOO_LATE not in str(error):
        return error
    return StartError(
        f"TensorFlow has been started before the strategy{_line or ' by a tensor or a dataset'}. "
        "Create the strategy before everything else that uses TensorFlow"
    )
