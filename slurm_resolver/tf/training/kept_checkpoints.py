"""The checkpoints that a folder keeps: which of them is whole, and which one all ranks go on from.

A save that was cut off, a full disk or a broken file system may leave one that cannot be read. Such
a one is left where it is, and the newest before it is used. Every tensor is read for that, as only
its checksum tells whether it is whole; the restore after it finds the file in the node's memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.log import warn
from slurm_resolver.tf.training.checkpoint_owner import Owner, saved_by

PREFIX = "ckpt"
_COUNTER = "slurm_resolver/{}/.ATTRIBUTES/VARIABLE_VALUE"

# Takes what this rank has to tell, and returns what each told, by its name; the leader's is first.
Compare = Callable[[str], Dict[str, str]]


class Kept(NamedTuple):
    """A checkpoint that is whole.

    Attributes:
        path: its path, without the ends that its files' names have.
        epoch: the epoch that it was saved in, from 0.
        step: how many of its steps had been done.
        content: stands for all that it holds.
        owner: who has saved it; None where an older version of this package has.
        last: the highest number of a checkpoint in the folder, one that cannot be read included.
    """

    path: str
    epoch: int
    step: int
    content: int
    owner: Optional[Owner]
    last: int = 0

    def __str__(self) -> str:
        return f"{os.path.basename(self.path)} (epoch {self.epoch}, step {self.step})"


class DamagedError(Exception):
    """A checkpoint that cannot be read; the message tells which file, and what is wrong with it."""


def names(directory: str) -> List[str]:
    """Returns the names of a folder's checkpoints, the one to begin with first.

    The file `checkpoint` lists them. It may be damaged itself, or a save may have been cut off just
    before it was written: one with a higher number than those comes first, others come last.
    """
    state = tf.train.get_checkpoint_state(directory)
    listed = list(state.all_model_checkpoint_paths) if state is not None else []
    if state is not None and state.model_checkpoint_path:
        listed.append(state.model_checkpoint_path)
    recorded = list(dict.fromkeys(os.path.basename(path) for path in reversed(listed)))
    there = tf.io.gfile.listdir(directory) if tf.io.gfile.isdir(directory) else []
    ends = [re.fullmatch(rf"({PREFIX}-\d+)\.index", name) for name in there]
    others = sorted({end[1] for end in ends if end} - set(recorded), key=number, reverse=True)
    last = max(map(number, recorded), default=0)
    newer = [name for name in others if number(name) > last]
    return [*newer, *recorded, *others[len(newer) :]]


def number(name: str) -> int:
    """Returns the number at the end of a checkpoint's name; 0 where there is none."""
    end = name.rpartition("-")[2]
    return int(end) if end.isdigit() else 0


def read(directory: str, name: str) -> Kept:
    """Reads all of a checkpoint.

    Raises:
        DamagedError: where that is not possible.
        ResumeError: for one that this package has not saved.
    """
    path = os.path.join(directory, name)
    index = f"{path}.index"
    if not tf.io.gfile.exists(index):
        raise DamagedError(f"{index} is missing")
    # What TensorFlow raises depends on where the damage is; not all of it are its own errors.
    try:
        reader = tf.train.load_checkpoint(path)
        keys = reader.get_variable_to_shape_map()
        with tf.io.gfile.GFile(index, "rb") as file:  # it has each tensor's checksum
            content = zlib.crc32(file.read())
    except Exception as error:
        raise DamagedError(f"{index}: {_first_line(error)}") from error
    for key in keys:
        try:
            reader.get_tensor(key)
        except Exception as error:
            files = tf.io.gfile.glob(f"{path}.data-*")
            where = ", ".join(files) or f"{path}.data-00000-of-00001 is missing"
            raise DamagedError(f"{where}: {_first_line(error)}") from error
    counters = [_COUNTER.format(name) for name in ("epoch", "step")]
    if not set(counters) <= set(keys):
        raise ResumeError(
            f"{path} was saved by another program: expected a checkpoint of BackupAndResume or of "
            "ResumableLoop. Give this training a folder of its own."
        )
    epoch, step = (int(reader.get_tensor(counter)) for counter in counters)
    return Kept(path, epoch, step, content, saved_by(reader))


def latest(directory: str) -> Optional[Kept]:
    """Returns the checkpoint that a training would go on from; None where there is none.

    Raises:
        ResumeError: where there are some, and none of them can be read.
    """
    return choose(directory, lambda own: {"": own}, quiet=True)


def choose(directory: str, compare: Compare, quiet: bool = False) -> Optional[Kept]:
    """Returns the checkpoint that all ranks go on from; None where there is none.

    All ranks call it. One that any of them cannot read is used by none. What was left out is told
    in one message.

    Args:
        directory: the folder.
        compare: see there; it is called as often in each rank.
        quiet: whether to leave out that message.

    Raises:
        ResumeError: where the ranks find different checkpoints: they would hang, or train on to
            different weights without a word. And where none of those that are there can be read.
    """
    found = told(compare, names(directory))
    candidates = list(dict.fromkeys(name for listed in found.values() for name in listed))
    if candidates and not set.intersection(*map(set, found.values())):
        raise _different(directory, {rank: " and ".join(two[:2]) for rank, two in found.items()})
    damages = []
    for name in candidates:
        own: Dict[str, Any] = {"damage": None}
        kept = None
        try:
            kept = read(directory, name)
            own["found"], own["content"] = str(kept), kept.content
        except DamagedError as error:
            own["damage"] = str(error)
        except ResumeError as error:
            own["foreign"] = str(error)
        seen = told(compare, own)
        foreign = [one["foreign"] for one in seen.values() if "foreign" in one]
        if foreign:
            raise ResumeError(foreign[0])
        damaged = {rank: one["damage"] for rank, one in seen.items() if one["damage"]}
        if damaged:
            damages.append(f"{name}: {_by_rank(damaged, len(seen))}")
            continue
        if len({one["content"] for one in seen.values()}) > 1:
            raise _different(directory, {rank: one["found"] for rank, one in seen.items()})
        assert kept is not None
        if damages and not quiet:
            warn(
                "a checkpoint cannot be read (%s); it is left as it is, and %s is used instead",
                "; ".join(damages),
                kept,
            )
        return kept._replace(last=max(map(number, candidates)))
    if damages:
        raise ResumeError(
            f"none of the checkpoints in {directory!r} can be read: {'; '.join(damages)}. Expected "
            "one at least. Put one back from a copy, or remove the folder to begin anew."
        )
    return None


def record(directory: str, kept: Kept) -> None:
    """Writes the file `checkpoint`: which one is the latest, and which ones may be deleted in time.

    Those that cannot be read are not among them.
    """
    latest, sound = os.path.basename(kept.path), []
    for name in reversed(names(directory)):
        with contextlib.suppress(DamagedError, ResumeError):
            sound += [name] if name != latest and read(directory, name) else []
    lines = [f'model_checkpoint_path: "{latest}"']
    for name in [*sound, latest]:
        # Without a time TensorFlow takes it for one that is to be kept for ever.
        time = tf.io.gfile.stat(os.path.join(directory, f"{name}.index")).mtime_nsec / 1e9
        lines += [
            f'all_model_checkpoint_paths: "{name}"',
            f"all_model_checkpoint_timestamps: {time}",
        ]
    path = os.path.join(directory, "checkpoint")
    with tf.io.gfile.GFile(f"{path}.new", "w") as file:
        file.write("\n".join(lines) + "\n")
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)


def is_recorded(directory: str, kept: Kept) -> bool:
    """Whether the file `checkpoint` says that this one is the latest."""
    state = tf.train.get_checkpoint_state(directory)
    recorded = state.model_checkpoint_path if state is not None else ""
    return os.path.basename(recorded) == os.path.basename(kept.path)


def told(compare: Compare, own: Any) -> Dict[str, Any]:
    """Returns what each rank has told.

    Raises:
        ResumeError: where one of them has ended.
    """
    found = compare(json.dumps(own))
    for rank, text in found.items():
        if not text.startswith(("{", "[")):
            raise ResumeError(f"{rank} told {text}: it did not say which checkpoint it finds.")
    return {rank: json.loads(text) for rank, text in found.items()}


def _different(directory: str, found: Dict[str, str]) -> ResumeError:
    listed = "; ".join(f"{rank}: {what or 'none'}" for rank, what in sorted(found.items()))
    return ResumeError(
        f"the ranks find different checkpoints in {directory!r}: {listed}. Expected the same for "
        "all: the folder must be on a file system that all nodes of the job share."
    )


def _by_rank(damages: Dict[str, str], ranks: int) -> str:
    """Returns what is wrong, and who sees it where it is not all ranks."""
    text = next(iter(damages.values()))
    return text if len(damages) == ranks else f"{text}, as {', '.join(damages)} sees it"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]
