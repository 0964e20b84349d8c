"""Restores the newest checkpoint of a folder that all ranks can read.

A save that was cut off, a full disk or a broken file system may leave a checkpoint that cannot be
read. It is left as it is, and the next older one is used.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn

PREFIX = "ckpt"
_OURS = "slurm_resolver/step/.ATTRIBUTES/VARIABLE_VALUE"
# TensorFlow raises these if a checkpoint does not fit the variables of the program.
_OTHER_MODEL = (AssertionError, ValueError, tf.errors.InvalidArgumentError)

# Takes what this rank has to say, and returns what each rank said, by its name, the leader first.
Compare = Callable[[Any], Dict[str, Any]]


class Restored(NamedTuple):
    """The path of the checkpoint that was restored, and the highest number of one in the folder."""

    path: str
    last: int


def names(directory: str) -> List[str]:
    """Returns the names of a folder's checkpoints, the newest first."""
    there = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    found = [re.fullmatch(rf"({PREFIX}-\d+)\.index", name) for name in there]
    return sorted((match[1] for match in found if match), key=_number, reverse=True)


def restore_newest(
    checkpoint: tf.train.Checkpoint,
    directory: str,
    compare: Compare,
    leads: bool = True,
    complete: bool = False,
) -> Optional[Restored]:
    """Restores the newest checkpoint that all ranks can read; returns None if there is none.

    All ranks call it.

    Args:
        checkpoint: the objects to restore.
        directory: the folder.
        compare: exchanges what the ranks have found; each rank calls it equally often.
        leads: whether this rank logs damages.
        complete: whether the program has all variables of the checkpoint already.

    Raises:
        ResumeError: if the ranks find different checkpoints, if none can be read, or if the newest
            is one of another program or of another model.
    """
    found = compare(names(directory))
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
        seen = compare(_restore(checkpoint, path, complete))
        for refused in (told["refused"] for told in seen.values() if "refused" in told):
            raise ResumeError(f"{path} {refused}. Give each training a folder of its own.")
        damaged = {rank: told["damage"] for rank, told in seen.items() if "damage" in told}
        if not damaged:
            if damages and leads:
                warn(
                    "a checkpoint cannot be read (%s); it is left as it is, and %s is used instead",
                    "; ".join(damages),
                    name,
                )
            return Restored(path, _number(candidates[0]))
        seen_by = "" if len(damaged) == len(seen) else f", as {', '.join(damaged)} sees it"
        damages.append(f"{path}: {next(iter(damaged.values()))}{seen_by}")
    if damages:
        raise ResumeError(
            f"none of the checkpoints in {directory!r} can be read: {'; '.join(damages)}. Expected "
            "one at least. Put one back from a copy, or remove the folder to begin anew."
        )
    return None


def first_line(error: Exception) -> str:
    """Returns what an error of TensorFlow's says, without the names of its own functions."""
    return re.sub(r"{{.*?}} | ?\[Op:\w+\]", "", str(error).partition("\n")[0])[:400]


def _restore(checkpoint: tf.train.Checkpoint, path: str, complete: bool) -> Dict[str, str]:
    """Restores a checkpoint, and returns why not if it cannot."""
    try:
        if not tf.train.load_checkpoint(path).has_tensor(_OURS):
            return {"refused": "was saved by another program than BackupAndResume or ResumableLoop"}
    except Exception as error:  # not all that TensorFlow raises are errors of its own
        return {"damage": first_line(error)}
    try:
        status = checkpoint.restore(path).expect_partial()
        status.assert_existing_objects_matched()
        if complete:
            status.assert_consumed()
    except _OTHER_MODEL as error:
        return {"refused": f"is that of another model: {first_line(error)}"}
    except Exception as error:
        return {"damage": first_line(error)}
    return {}


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
