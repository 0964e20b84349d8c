"""A training's folder of checkpoints: whose it is, which one to restore, and the next one.

A save that was cut off, a full disk or a broken file system may leave a checkpoint that cannot be
read. It is left as it is, and the next older one is used.

A file in the folder names the training that it belongs to. A new job with the same model continues
the training. Another task of a job array must not, and two jobs must not save at the same time.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
from typing import Dict, List, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.tf.training.saving_ranks import SavingRanks

OWNER = "slurm_resolver.owner"
_PREFIX = "ckpt"
_OURS = "slurm_resolver/step/.ATTRIBUTES/VARIABLE_VALUE"
# TensorFlow raises these if a checkpoint does not fit the variables of the program.
_OTHER_MODEL = (AssertionError, ValueError, tf.errors.InvalidArgumentError)
# A disk that is full, a folder that is missing or belongs to another user, a limit on file sizes.
_CANNOT_WRITE = (
    tf.errors.ResourceExhaustedError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.FailedPreconditionError,
    tf.errors.OutOfRangeError,
    OSError,
)


def names(directory: str) -> List[str]:
    """Returns the names of a folder's checkpoints, the newest first."""
    there = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    found = [re.fullmatch(rf"({_PREFIX}-\d+)\.index", name) for name in there]
    return sorted((match[1] for match in found if match), key=_number, reverse=True)


def restore_newest(
    checkpoint: tf.train.Checkpoint, directory: str, ranks: SavingRanks, complete: bool = False
) -> Optional[str]:
    """Restores the newest checkpoint that all ranks can read; returns its path, None without one.

    All ranks call it. `complete`: whether the program has all variables of the checkpoint already.

    Raises:
        ResumeError: if the ranks find different checkpoints, if none can be read, or if the newest
            is one of another program or of another model.
    """
    found = ranks.compare(names(directory))
    if any(found.values()) and not set.intersection(*map(set, found.values())):
        listed = "; ".join(
            f"{rank}: {' and '.join(two[:2]) or 'none'}" for rank, two in found.items()
        )
        raise ResumeError(
            f"the ranks find different checkpoints in {directory!r}: {listed}. Expected the same "
            "for all: the folder must be on a file system that all nodes of the job share."
        )
    candidates: List[str] = next(iter(found.values()))
    damages: List[str] = []
    for name in candidates:
        path = os.path.join(directory, name)
        seen = ranks.compare(_restore(checkpoint, path, complete))
        for result in seen.values():
            if "refused" in result:
                raise ResumeError(f"{path} {result['refused']}. Give each training its own folder.")
        damaged = {rank: result["damage"] for rank, result in seen.items() if "damage" in result}
        if not damaged:
            if damages and ranks.leads:
                warn(
                    "a checkpoint cannot be read (%s); it is left as it is, and %s is used instead",
                    "; ".join(damages),
                    name,
                )
            # The next save must not overwrite a checkpoint that could not be read.
            checkpoint.save_counter.assign(_number(candidates[0]))
            return path
        seen_by = "" if len(damaged) == len(seen) else f", as {', '.join(damaged)} sees it"
        damages.append(f"{path}: {next(iter(damaged.values()))}{seen_by}")
    if damages:
        raise ResumeError(
            f"none of the checkpoints in {directory!r} can be read: {'; '.join(damages)}. Expected "
            "at least one. Restore one from a copy, or remove the folder to start from the "
            "beginning."
        )
    return None


def _restore(checkpoint: tf.train.Checkpoint, path: str, complete: bool) -> Dict[str, str]:
    """Restores a checkpoint, and returns the reason if it cannot."""
    try:
        if not tf.train.load_checkpoint(path).has_tensor(_OURS):
            return {"refused": "was saved by another program than BackupAndResume or ResumableLoop"}
    except Exception as error:  # TensorFlow raises other errors than its own
        return {"damage": _first_line(error)}
    try:
        status = checkpoint.restore(path).expect_partial()
        status.assert_existing_objects_matched()
        if complete:
            status.assert_consumed()
    except _OTHER_MODEL as error:
        return {"refused": f"is that of another model: {_first_line(error)}"}
    except Exception as error:
        return {"damage": _first_line(error)}
    return {}


def save(checkpoint: tf.train.Checkpoint, manager: Optional[tf.train.CheckpointManager]) -> str:
    """Saves; all ranks call it. Returns the checkpoint's path in the rank that has the manager.

    Some variables have a part in each worker, such as the moving averages of a BatchNormalization
    in Keras 2. TensorFlow reads them only within a save that all ranks take part in. With such a
    model, the other ranks save to a temporary folder, and delete it at once.

    Raises:
        ResumeError: if the checkpoint cannot be written. Nothing of it is left then.
    """
    if manager is None:
        checkpoint.save_counter.assign_add(1)
        if read_together(checkpoint):
            with tempfile.TemporaryDirectory() as scratch, contextlib.suppress(*_CANNOT_WRITE):
                # All variables are read before the write can fail.
                checkpoint.write(os.path.join(scratch, "unused"))
        return ""
    try:
        return str(manager.save())
    except _CANNOT_WRITE as error:
        directory = manager.directory
        remove_unfinished(directory)
        name = f"{_PREFIX}-{int(checkpoint.save_counter)}"
        found = ", ".join(names(directory)) or "none"
        raise ResumeError(
            f"{name} cannot be written to {directory!r}: {_first_line(error)}. Expected a folder "
            f"with enough space. What was saved before is kept ({found}): make space, and start "
            "the program again to continue from there."
        ) from error


def read_together(checkpoint: tf.train.Checkpoint) -> bool:
    """Whether a checkpoint holds variables that all ranks must read together."""
    for found in tf.train.TrackableView(checkpoint).descendants():
        held = getattr(found, "value", None)  # Keras 3's variables hold TensorFlow's
        variable = held if isinstance(held, tf.Variable) else found
        if getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ:
            return True
    return False


def remove_unfinished(directory: str) -> None:
    """Removes what a save that was cut off has left."""
    for pattern in (f"{_PREFIX}-*_temp", "checkpoint.tmp*"):
        for path in tf.io.gfile.glob(os.path.join(directory, pattern)):
            remove = tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove
            remove(path)


def claim(directory: str, step: SlurmStep) -> str:
    """Writes this process into the folder's file, and returns what it wrote.

    Raises:
        ResumeError: if the folder belongs to another task of a job array, or cannot be written.
    """
    job = f"job {step.job_id}" if step.job_id else "a training without Slurm"
    if step.array_task_id:
        job = f"task {step.array_task_id} of job array {step.array_job_id}"
    owner = f"{job}, process {os.getpid()} on {socket.gethostname()}"
    if "://" in directory:  # no file can be created exclusively there
        return owner
    path = os.path.join(directory, OWNER)
    try:
        os.makedirs(directory, exist_ok=True)
        # Of two tasks of an array that start together, one creates the file.
        with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
            file.write(owner)
            return owner
        found = _read_owner(directory)
        task = re.match(r"task (\S+) of", found)
        if task and step.array_task_id not in (None, task[1]):
            raise ResumeError(
                f"the checkpoints in {directory!r} are those of {found}, and this is {owner}: one "
                "would end with the other's weights. Give each task its own folder, such as "
                f"{os.path.join(directory, '$SLURM_ARRAY_TASK_ID')}, or remove this one to start "
                "from the beginning."
            )
        with open(path, "w", encoding="utf-8") as file:
            file.write(owner)
    except OSError as error:
        expected = "expected a folder to write checkpoints to"
        raise ResumeError(f"{directory!r}: {error}; {expected}.") from error
    return owner


def check_still_owner(directory: str, owner: str) -> None:
    """Raises ResumeError if another process has claimed the folder since `claim`."""
    found = _read_owner(directory)
    if found not in ("", owner):
        raise ResumeError(
            f"{directory!r} has been taken over by {found}, while {owner} is still training. This "
            "one stops, so that the two do not mix. Give each training its own folder."
        )


def _read_owner(directory: str) -> str:
    path = os.path.join(directory, OWNER)
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def _first_line(error: Exception) -> str:
    """Returns an error of TensorFlow's, without the names of its own functions."""
    return re.sub(r"{{.*?}} | ?\[Op:\w+\]", "", str(error).partition("\n")[0])[:400]


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
