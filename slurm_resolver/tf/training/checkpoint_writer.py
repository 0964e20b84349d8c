"""Writes the checkpoints of a training: one rank writes, and the others take part.

Under a strategy of several workers each of them holds a part of some variables, such as the moving
averages of a BatchNormalization. All ranks must take part in reading such a variable, which
TensorFlow does only within a save. So if there are such variables the other ranks save as well, to
a temporary folder, and delete it at once. If there are none they write nothing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.tf.training.kept_checkpoints import PREFIX, first_line, names

# A disk that is full, a folder that is missing or belongs to another user, a limit on file sizes.
_CANNOT_WRITE = (
    tf.errors.ResourceExhaustedError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.FailedPreconditionError,
    tf.errors.OutOfRangeError,
    OSError,
)


class CheckpointWriter:
    """Saves in all ranks, and writes in the first."""

    def __init__(
        self, checkpoint: tf.train.Checkpoint, directory: str, max_to_keep: int, leads: bool
    ) -> None:
        """Takes over the folder's checkpoints, and deletes the leftovers of an unfinished save."""
        self._checkpoint = checkpoint
        self._directory = directory
        self._manager: Optional[tf.train.CheckpointManager] = None
        if leads:
            self._remove_unfinished()
            self._manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep)

    def save(self) -> str:
        """Saves; all ranks call it. Returns the new checkpoint's path in the rank that writes.

        Raises:
            ResumeError: if it cannot be written. Nothing is left of it then.
        """
        if self._manager is None:
            self._take_part()
            return ""
        try:
            return str(self._manager.save())
        except _CANNOT_WRITE as error:
            name = f"{PREFIX}-{int(self._checkpoint.save_counter)}"
            self._remove_unfinished()
            found = ", ".join(names(self._directory)) or "none"
            raise ResumeError(
                f"{name} cannot be written to {self._directory!r}: {first_line(error)}. Expected a "
                f"folder with enough space. What was saved before is kept ({found}): make space, "
                "and start the program again to continue from there."
            ) from error

    def _take_part(self) -> None:
        """Reads the variables that the rank that writes cannot read alone."""
        self._checkpoint.save_counter.assign_add(1)
        if not read_together(self._checkpoint):
            return
        with tempfile.TemporaryDirectory() as scratch, contextlib.suppress(*_CANNOT_WRITE):
            self._checkpoint.write(os.path.join(scratch, "unused"))  # all is read before that fails

    def _remove_unfinished(self) -> None:
        for pattern in (f"{PREFIX}-*_temp", "checkpoint.tmp*"):
            for path in tf.io.gfile.glob(os.path.join(self._directory, pattern)):
                remove = tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove
                remove(path)


def read_together(checkpoint: tf.train.Checkpoint) -> bool:
    """Whether a checkpoint holds variables that all ranks must read together."""
    for found in tf.train.TrackableView(checkpoint).descendants():
        held = getattr(found, "value", None)  # Keras 3's variables hold TensorFlow's
        variable = held if isinstance(held, tf.Variable) else found
        if getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ:
            return True
    return False
