"""Writes the checkpoints of a training: one rank does, and the others take part.

Under a strategy of several workers the parts of some variables lie in all of them, such as the
moving averages of a BatchNormalization: whoever saves such a one reads it by an exchange in which
every rank must take part. TensorFlow does that only as a part of a save. So where there are such
variables the other ranks save as well, to their node's own temporary folder, and delete it at once;
where there are none they write nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from typing import Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.training.kept_checkpoints import PREFIX, names

# A disk that is full, a folder that is not there or is not this user's, a limit on a file's size.
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
        """Takes over the checkpoints that the folder has, to delete them in time.

        What a save has left that was cut off is deleted at once: TensorFlow never does.

        Args:
            checkpoint: what is saved.
            directory: the folder that all ranks share.
            max_to_keep: how many checkpoints to keep.
            leads: whether this rank is the one that writes.
        """
        self._checkpoint = checkpoint
        self._directory = directory
        self._manager: Optional[tf.train.CheckpointManager] = None
        if leads:
            _remove(directory, f"{PREFIX}-*_temp", "checkpoint.tmp*")
            self._manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep)

    def save(self) -> str:
        """Saves; all ranks call it. Returns the new checkpoint's path in the rank that writes.

        Raises:
            ResumeError: where it cannot be written. Nothing of it is left then.
        """
        if self._manager is None:
            self._take_part()
            return ""
        try:
            return str(self._manager.save())
        except Exception as error:
            name = f"{PREFIX}-{int(self._checkpoint.save_counter)}"
            remove_unfinished(self._directory, name)
            if not isinstance(error, _CANNOT_WRITE):
                raise
            found = ", ".join(names(self._directory)) or "none"
            reason = re.sub(r"{{.*?}} | \[Op:\w+\]", "", str(error).partition("\n")[0][:400])
            raise ResumeError(
                f"{name} cannot be written to {self._directory!r}: {reason}. Expected a folder "
                f"with enough space. What was saved before is kept ({found}): make space, and "
                "start the program again to go on from there."
            ) from error

    def _take_part(self) -> None:
        """Reads what the rank that writes reads, where it needs this one for that."""
        self._checkpoint.save_counter.assign_add(1)
        if not read_together(self._checkpoint):
            return
        scratch = _make_scratch()
        try:
            self._checkpoint.write(os.path.join(scratch, "unused"))
        except _CANNOT_WRITE:
            pass  # by then all has been read
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _make_scratch() -> str:
    """Makes a folder on this node; a path under which nothing can be written where that fails."""
    for parent in (SlurmStep.read().temporary_folder, None):
        try:
            return tempfile.mkdtemp(prefix="slurm_resolver-", dir=parent)
        except OSError:
            continue
    return f"{os.devnull}/none"


def read_together(checkpoint: tf.train.Checkpoint) -> bool:
    """Whether a checkpoint holds variables that all ranks must read together."""
    for found in tf.train.TrackableView(checkpoint).descendants():
        held = getattr(found, "value", None)  # Keras 3's variables hold TensorFlow's
        variable = held if isinstance(held, tf.Variable) else found
        if getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ:
            return True
    return False


def remove_unfinished(directory: str, name: str) -> None:
    """Removes what a save that has failed has left of a checkpoint, unless it is in use already."""
    state = tf.train.get_checkpoint_state(directory)
    if state is not None and os.path.basename(state.model_checkpoint_path) == name:
        return
    _remove(directory, f"{name}.*", f"{name}_temp", "checkpoint.tmp*")


def _remove(directory: str, *patterns: str) -> None:
    """Removes the files and folders in a folder that have such names."""
    for pattern in patterns:
        for path in tf.io.gfile.glob(os.path.join(directory, pattern)):
            remove = tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove
            remove(path)
