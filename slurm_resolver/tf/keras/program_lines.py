"""Finds the line of the program that has made an operation of a step, for messages."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any


def line_of_program(operation: Any, of: str = "call_step") -> str | None:
    """Returns the line of the program in a step that made an operation: "train.py:12".

    None if Keras made it in a step of its own.

    Args:
        of: the function of this package below which the program's line is. Below
            "gradient_in_step", there is none if TensorFlow made the operation in backpropagation.
    """
    found = None
    for frame in operation.traceback:
        if not _is_of_library(frame.filename):
            found = frame
        elif frame.name == of:
            found = None
    return found and f"{os.path.basename(found.filename)}:{found.lineno}"


@functools.cache
def _is_of_library(file: str) -> bool:
    """Whether a file belongs to Python, Keras, TensorFlow or this package."""
    folders = tuple(
        os.path.dirname(str(sys.modules[name].__file__)) + os.sep
        for name in ("keras", "tensorflow", "slurm_resolver")
    )
    of_python = file.startswith(os.path.dirname(os.__file__) + os.sep)
    return file.startswith(folders) or (of_python and "-packages" not in file)
