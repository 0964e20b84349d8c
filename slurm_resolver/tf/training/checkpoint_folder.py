"""The folder of a training's checkpoints: its owner, the checkpoint to restore, and the next save.

All ranks read the folder, and one of them, the leader, writes it::

    ckpt-3.index, ckpt-3.data-…    a checkpoint of TensorFlow; a greater number is newer
    ckpt-4_temp/                   a save that is under way, or was interrupted
    checkpoint                     TensorFlow's list of checkpoints, which need not be there
    slurm_resolver.owner           the job and the process that saves here

An interrupted save, a full disk or a broken file system may leave a checkpoint that cannot be read.
It stays in the folder, and the next older one is used.

A file in the folder names the training that it belongs to. A new job with the same model continues
the training. Another task of a job array must not, and two jobs must not save at the same time.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.io import gfile

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.tf.causes import cause_of
from slurm_resolver.tf.keras.files.callback_files import setting
from slurm_resolver.tf.training.termination import SavingRanks
from slurm_resolver.wording import shorten

_OWNER = "slurm_resolver.owner"
# The files of an interrupted save.
_UNFINISHED = r"ckpt-\d+_temp|checkpoint\.tmp.*"
# What TensorFlow raises where a model and a checkpoint do not fit each other.
_OF_OTHER_MODELS = (AssertionError, ValueError, tf.errors.InvalidArgumentError)


class CheckpointFolder:
    """The folder of one training; every rank makes the same calls."""

    def __init__(
        self,
        directory: str,
        checkpoint: tf.train.Checkpoint,
        ranks: SavingRanks,
        max_to_keep: int,
        is_complete: bool = False,
    ) -> None:
        """`is_complete`: whether the program has all variables of the checkpoint already."""
        self.directory = os.fspath(directory)
        self._checkpoint = checkpoint
        self._ranks = ranks
        self._is_complete = is_complete
        self._manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep)
        label = ranks.step.job_label
        job = f"job {label}" if label else "a training without Slurm"
        self._owner = f"{job}, process {os.getpid()} on {socket.gethostname()}"
        self._owner_file = self._path(_OWNER)

    def restore_newest(self) -> str | None:
        """Restores the newest checkpoint that all ranks can read, and claims the folder.

        Returns the checkpoint's path; None if there is none.

        Raises:
            ResumeError: if the folder belongs to another task of a job array, if no checkpoint can
                be read by all ranks, or if the newest is one of another program or of another
                model.
        """
        problem = self._find_problem() if self._ranks.leads else ""
        found = [int(name[5:-6]) for name in self._list(r"ckpt-\d+\.index")]
        seen = list(self._ranks.compare("the restore", [problem, found]).values())
        problem = seen[0][0]  # the leader's
        if problem:
            raise ResumeError(problem)
        numbers = sorted({number for _, found in seen for number in found}, reverse=True)
        path = self._restore_readable(numbers)
        counter = self._checkpoint.save_counter  # which this creates, in all ranks
        if numbers:  # the next save must not overwrite a checkpoint that could not be read
            counter.assign(numbers[0])
        if self._ranks.leads:
            with gfile.GFile(self._owner_file, "w") as file:
                file.write(self._owner)
            self._remove_unfinished()
        return path

    def _restore_readable(self, numbers: Sequence[int]) -> str | None:
        """Restores the first of these checkpoints that all ranks can read, and returns its path."""
        damages: list[str] = []
        for number in numbers:
            path = self._path(f"ckpt-{number}")
            seen = self._ranks.compare("the restore", self._restore(path))
            damage_of = {rank: damage for rank, damage in seen.items() if damage}
            if not damage_of:
                if damages and self._ranks.leads:
                    warn(
                        "a checkpoint cannot be read (%s); it is left as it is, and %s is used "
                        "instead",
                        "; ".join(damages),
                        path,
                    )
                return path
            damage = next(iter(damage_of.values()))
            damages.append(f"{path}: {damage}, as seen by {shorten([*damage_of])}")
        if damages:
            raise ResumeError(
                f"none of the checkpoints in {self.directory!r} can be read: {'; '.join(damages)}. "
                "Expected at least one that all ranks can read: all nodes must share the folder. "
                "Restore one from a copy, or remove the folder to start from the beginning."
            )
        return None

    def _find_problem(self) -> str:
        """Returns why this training cannot use the folder; "" if it can."""
        try:
            gfile.makedirs(self.directory)
            with gfile.GFile(self._owner_file, "a") as file:
                file.write("")
        except tf.errors.OpError as error:
            return (
                f"{self.directory!r}: {cause_of(error)}; expected a folder to write checkpoints to."
            )
        owner = self._read_owner()
        task = re.match(r"job \w+_(\d+),", owner)
        if not task or self._ranks.step.array_task_id in (None, task[1]):
            return ""
        return (
            f"the checkpoints in {self.directory!r} are those of {owner}, and this is "
            f"{self._owner}: one would end with the other's weights. Give each task its own "
            f"folder, such as {self._path('$SLURM_ARRAY_TASK_ID')}, or remove this one to start "
            "from the beginning."
        )

    def _restore(self, path: str) -> str:
        """Restores a checkpoint; returns what is wrong with it if it cannot be read.

        Raises:
            ResumeError: if it is one of another program or of another model.
        """
        try:
            tf.train.load_checkpoint(path)
        except Exception as error:  # TensorFlow raises other errors than its own
            return cause_of(error)
        try:
            status = self._checkpoint.restore(path).expect_partial()
            complete = "assert_consumed" if self._is_complete else "assert_existing_objects_matched"
            getattr(status, complete)()
        except _OF_OTHER_MODELS as error:
            raise ResumeError(
                f"{path} belongs to another model or program: {cause_of(error)}. Give each "
                "training its own folder."
            ) from error
        except Exception as error:
            return cause_of(error)
        return ""

    def save(self) -> str:
        """Saves; all ranks call it. Returns the checkpoint's path in the rank that writes.

        Some variables have a part in each worker, such as the moving averages of a
        BatchNormalization in Keras 2. TensorFlow reads them only within a save that all ranks take
        part in. With such a model, the other ranks save to a temporary folder, and delete it at
        once.

        Raises:
            ResumeError: if another process has claimed the folder since `restore_newest`.
        """
        if not self._ranks.leads:
            self._checkpoint.save_counter.assign_add(1)
            if self.is_read_together():  # all variables are read before the write can fail
                unwritten = contextlib.suppress(tf.errors.OpError, OSError)
                with tempfile.TemporaryDirectory() as scratch, unwritten:
                    self._checkpoint.write(os.path.join(scratch, "unused"))
            return ""
        owner = self._read_owner()
        if owner not in ("", self._owner):
            raise ResumeError(
                f"{self.directory!r} has been taken over by {owner}, while {self._owner} is still "
                "training. This one stops, so that the two do not mix. Give each training its own "
                "folder."
            )
        # In each save of several parameter servers' variables, TensorFlow traces a function, and
        # warns that this is slow.
        with setting(tf.get_logger(), "disabled", True):
            try:
                return str(self._manager.save())
            except Exception:
                self._remove_unfinished()
                raise

    def is_read_together(self) -> bool:
        """Whether the checkpoint holds variables that all ranks must read together."""
        return any(
            "ON_READ" in str(getattr(item, "synchronization", "")).upper()
            for item in tf.train.TrackableView(self._checkpoint).descendants()
        )

    def _remove_unfinished(self) -> None:
        """Removes what an interrupted save has left."""
        for path in map(self._path, self._list(_UNFINISHED)):
            try:
                gfile.remove(path)  # of a link, the link itself
            except tf.errors.OpError:
                gfile.rmtree(path)

    def _list(self, pattern: str) -> list[str]:
        names = gfile.listdir(self.directory) if gfile.isdir(self.directory) else []
        return [name for name in names if re.fullmatch(pattern, name.rstrip("/"))]

    def _read_owner(self) -> str:
        with contextlib.suppress(tf.errors.OpError):
            return str(gfile.GFile(self._owner_file, "rb").read(1000), errors="replace")
        return ""

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)
