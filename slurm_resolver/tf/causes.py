"""Says in one line why a computation of TensorFlow or Keras has failed."""

from __future__ import annotations

import re

import tensorflow as tf

# What surrounds the reason: colours, headings, a frame and its line of code, a function's or
# operation's name, a dataset's transformation.
_AROUND = re.compile(
    r"\x1b\[\d*m"
    r"|Graph execution error:"
    r"|Detected at node .* defined at \(most recent call last\):"
    r"|<stack traces unavailable>"
    r"|in user code:"
    r'|^ *File ".*(\n.*)?'
    r"|\{\{\w+ [^}]*\}\}"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
    r"|\[Op:\w*\]( name:)?",
    re.MULTILINE,
)
# What follows the reason: the nodes of a graph, or the arguments of a layer.
_AFTER = re.compile(r"^\s*(?:\[\[|Arguments received by )", re.MULTILINE)
# What TensorFlow raises when another task is silent or has ended.
OF_PEERS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def cause_of(error: BaseException) -> str:
    """Returns an error's type and reason, without stack traces.

    If Python code that TensorFlow calls has failed, such as a `tf.py_function` or the generator of
    a dataset, that is the type and text of its exception: TensorFlow's own error has another type.
    """
    text = str(error)
    head, _, trace = text.partition("Traceback (most recent call last)")
    of_python = trace and isinstance(error, tf.errors.OpError)
    text = _AROUND.sub("", head if of_python else text)
    reason = " ".join(_AFTER.split(text, maxsplit=1)[0].split())
    kind = f"{type(error).__name__}: "
    if not of_python and not reason.startswith(kind):  # AutoGraph's text begins with the type
        reason = kind + reason
    return reason[:500].rstrip(" :")
