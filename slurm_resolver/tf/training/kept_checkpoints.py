"""Restores the newest checkpoint of a folder that all ranks can read.

A save that was cut off, a full disk or a broken file system may leave a checkpoint that cannot be
read. It is left as it is, and the next older one is used.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn

PREFIX = "ckpt"
_COUNTER = "slurm_resolver/{}/.ATTRIBUTES/VARIABLE_VALUE"
# TensorFlow raises these where a checkpoint does not fit the variables of the program.
_OTHER_MODEL = (AssertionError, ValueError, tf.errors.InvalidArgumentError)

# Takes what this rank has to say, and returns what each rank said, by its name, the leader first.
Compare = Callable[[Any], Dict[str, Any]]


class Restored(NamedTuple):
    """The checkpoint that was restored.

    Attributes:
        path: its path, without the suffixes of its files.
        last: the highest number of a checkpoint in the folder, including those that are damaged.
    """

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
    *,
    complete: bool,
    quiet: bool,
) -> Optional[Restored]:
    """Restores the newest checkpoint that all ranks can read; returns None if there is none.

    All ranks call it.

    Args:
        checkpoint: the objects to restore.
        directory: the folder.
        compare: exchanges what the ranks have found; each rank calls it equally often.
        complete: whether the program has all variables of the checkpoint already.
        quiet: whether to log nothing.

    Raises:
        ResumeError: if the ranks find different checkpoints, if none can be read, or if the newest
            is one of another program or of another model.
    """
    found = compare(names(directory))
    candidates: List[str] = next(iter(found.values()))
    if any(found.values()) and not set.intersection(*map(set, found.values())):
        raise _different(directory, {rank: " and ".join(two[:2]) for rank, two in found.items()})
    damages: List[str] = []
    for name in candidates:
        seen = compare(_restore(checkpoint, os.path.join(directory, name), complete))
        for told in seen.values():
            if "refused" in told:
                raise ResumeError(told["refused"])
        damaged = {rank: told["damage"] for rank, told in seen.items() if "damage" in told}
        if damaged:
            seen_by = "" if len(damaged) == len(seen) else f", as {', '.join(damaged)} sees it"
            damages.append(f"{name}: {next(iter(damaged.values()))}{seen_by}")
            continue
        used = {rank: f"{name} ({told['at']})" for rank, told in seen.items()}
        if len({told["content"] for told in seen.values()}) > 1:
            raise _different(directory, used)
        if damages and not quiet:
            warn(
                "a checkpoint cannot be read (%s); it is left as it is, and %s is used instead",
                "; ".join(damages),
                next(iter(used.values())),
            )
        return Restored(os.path.join(directory, name), _number(candidates[0]))
    if damages:
        raise ResumeError(
            f"none of the checkpoints in {directory!r} can be read: {'; '.join(damages)}. Expected "
            "one at least. Put one back from a copy, or remove the folder to begin anew."
        )
    return None


def first_line(error: Exception) -> str:
    """Returns what an error of TensorFlow's says, without the names of its own functions."""
    text = re.sub(r"{{.*?}} | ?\[Op:\w+\]", "", str(error).partition("\n")[0])
    return text[:400]


def _restore(checkpoint: tf.train.Checkpoint, path: str, complete: bool) -> Dict[str, Any]:
    """Restores a checkpoint, and returns what was found, or why it was not restored."""
    try:
        counts = _read(path)
        with tf.io.gfile.GFile(f"{path}.index", "rb") as file:  # it has all tensors' checksums
            content = zlib.crc32(file.read())
    except ResumeError as error:
        return {"refused": str(error)}
    except Exception as error:  # not all that TensorFlow raises are errors of its own
        return {"damage": f"{path}.index: {first_line(error)}"}
    try:
        status = checkpoint.restore(path).expect_partial()
        status.assert_existing_objects_matched()
        if complete:
            status.assert_consumed()
    except _OTHER_MODEL as error:
        return {
            "refused": f"{path} is that of another model: {first_line(error)}. Give each training "
            "a folder of its own, or remove this one to begin anew."
        }
    except Exception as error:
        return {"damage": f"{path}: {first_line(error)}"}
    return {"at": f"epoch {counts['epoch']}, step {counts['step']}", "content": content}


def _read(path: str) -> Dict[str, int]:
    """Returns epoch and step of a checkpoint; raises ResumeError if another program saved it."""
    reader = tf.train.load_checkpoint(path)
    keys = {name: _COUNTER.format(name) for name in ("epoch", "step")}
    if not all(map(reader.has_tensor, keys.values())):
        raise ResumeError(
            f"{path} was saved by another program: expected a checkpoint of BackupAndResume or of "
            "ResumableLoop. Give this training a folder of its own."
        )
    return {name: int(reader.get_tensor(key)) for name, key in keys.items()}


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _different(directory: str, found: Dict[str, str]) -> ResumeError:
    listed = "; ".join(f"{rank}: {what or 'none'}" for rank, what in sorted(found.items()))
    return ResumeError(
        f"the ranks find different checkpoints in {directory!r}: {listed}. Expected the same for "
        "all: the folder must be on a file system that all nodes of the job share."
    )
