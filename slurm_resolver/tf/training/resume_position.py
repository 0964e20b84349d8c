"""Where a training goes on in its data when the batches have another size than when it was saved.

A checkpoint notes its position as steps and batches, and how many samples a batch had. With as many
in a batch now, these counts are the position. Else the samples are: batches of the new size are
skipped as far as they fit, and where the position is within such a batch, the data begins there.
"""

from __future__ import annotations

import json
from typing import Any, List, Literal, NamedTuple, Optional

import tensorflow as tf

from slurm_resolver.errors import ResumeError
from slurm_resolver.tf.dealt_data import INFINITE, UNKNOWN, Batches, why_not_by_batch

KeptBatchSize = Literal["global", "per_replica"]
_KEEP = ("global", "per_replica", None)


class Noted(NamedTuple):
    """What a checkpoint notes of the batches that it was saved with.

    Attributes:
        replicas: how many shared a batch; None in a checkpoint of an older version.
        size: how many samples a global batch had; None where that was not known.
        beyond: how many samples were taken beyond the batches that are counted; may be negative.
    """

    replicas: Optional[int] = None
    size: Optional[int] = None
    beyond: int = 0


class Position(NamedTuple):
    """How far a training is in its data.

    Attributes:
        step: how many steps of the epoch are done.
        drawn: how many batches were taken from the iterator that is in use.
        beyond: see `Noted`.
        twice: how many samples come again, as the data cannot be begun within a batch.
    """

    step: int
    drawn: int
    beyond: int = 0
    twice: int = 0


class Start(NamedTuple):
    """Where a training goes on.

    Attributes:
        step, drawn: as in `Position`, in batches as they are now.
        rest: a dataset from the very sample on, where that is within a batch; else None. It is to
            be distributed and used in the place of the data, without skipping any of it.
        within: whether that is within an epoch.
        recounted: whether the counts are others than those that were saved.
        told: what there is to say of it.
    """

    step: int
    drawn: int
    rest: Any = None
    within: bool = False
    recounted: bool = False
    told: str = ""


class BatchSize(tf.train.experimental.PythonState):  # type: ignore[misc]
    """How many samples a batch has, and what of it is kept on another number of replicas.

    It is a part of the checkpoint.
    """

    def __init__(self, keep: Optional[str], strategy: tf.distribute.Strategy) -> None:
        """Raises ResumeError for a `keep` that is none."""
        if keep not in _KEEP:
            expected = ", ".join(map(repr, _KEEP))
            raise ResumeError(f"keep_batch_size={keep!r}: expected one of {expected}.")
        self._keep = keep
        # Workers of a parameter server strategy have a whole batch each, whoever is free.
        alone = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        self._replicas = 1 if alone else strategy.num_replicas_in_sync
        self._noted = Noted(self._replicas)
        self._before = Noted()  # as it was restored, or at the last `begin`

    def serialize(self) -> str:
        """Returns what is saved."""
        return json.dumps(self._noted._asdict())

    def deserialize(self, string_value: bytes) -> None:
        """Takes what was saved."""
        told = json.loads(string_value)
        self._noted = self._before = Noted(*(told[name] for name in Noted._fields))

    def at_first_batch(self) -> None:
        """Notes that the next batches are the first of the data."""
        self._noted = self._noted._replace(beyond=0)
        self._before = self._before._replace(beyond=0)

    def begin(
        self, step: int, drawn: int, batches: Batches, skip: bool = True, can_cut: bool = True
    ) -> Start:
        """Returns where to go on in these data; the position is as it was saved, or left off.

        Args:
            step: how many steps of the epoch are done.
            drawn: how many batches were taken from the iterator that goes on.
            batches: the data.
            skip: whether the batches that were drawn are skipped, rather than not there.
            can_cut: whether the data can be begun within a batch.

        Raises:
            ResumeError: for batches of another size than the user wants to keep.
        """
        before = self._before
        now = Noted(self._replicas, batches.size, self._noted.beyond)
        self._noted = self._before = now
        within = step > 0 or (drawn == 0 and before.beyond > 0)
        if before.replicas is None:  # nothing restored, or saved by an older version
            return Start(step, drawn, within=within)
        dealt_anew = before.replicas != now.replicas
        if dealt_anew:
            _check_size(self._keep, before, now)
        units = 1, 1  # batches
        if before.size and now.size:
            units = before.size, now.size
        elif self._keep == "per_replica":
            units = before.replicas, self._replicas  # a replica's part of a batch
        begun = drawn > 0 or before.beyond > 0
        at = Position(step, drawn, before.beyond)
        if begun and (units[0] != units[1] or at.beyond):
            if not skip:
                raise ResumeError(
                    f"skip=False, and a batch has another size than when it was saved: {units[0]} "
                    f"to {units[1]}. The position is counted in samples: leave out skip=False."
                )
            at = position_in(batches, at, *units, can_cut)
        recounted = units[0] != units[1]
        self._noted = self._before = now._replace(beyond=at.beyond)
        rest = batches.without(at.drawn * units[1] + at.beyond) if at.beyond else None
        told = ""
        if dealt_anew or (begun and recounted):
            told = _what_is_kept(self._keep, before, now)
            if begun:
                told += f"; the epoch goes on at step {at.step}"
                told += _what_is_lost(batches, at, dealt_anew, recounted)
        return Start(at.step, at.drawn, rest, within, recounted, told)


def position_in(
    batches: Batches, position: Position, before: int, now: int, can_cut: bool = True
) -> Position:
    """Returns the position in these batches.

    Where the very sample cannot be reached, it is the last whole batch before it.

    Args:
        batches: the data.
        position: as it was saved.
        before: how many samples a global batch had then.
        now: how many it has now. Both may also count another unit.
        can_cut: whether the data can be begun within a batch.
    """
    taken = position.drawn * before + position.beyond
    if batches.in_order and batches.samples >= 0:  # the last batch has fewer
        taken = min(taken, batches.samples)
    drawn, beyond, twice = taken // now, 0, taken % now
    if twice and can_cut and batches.in_order and batches.samples != UNKNOWN:
        beyond, twice = twice, 0
        if batches.samples != INFINITE:
            # The steps that are left are those of the rest, from the very sample on.
            left = batches.steps(batches.samples - taken)
            drawn = batches.steps(batches.samples) - left
            beyond = taken - drawn * now if left else 0
    whole = position.step == position.drawn  # the iterator began with the epoch
    step = drawn if whole else position.step * before // now
    return Position(step, drawn, beyond, twice)


def _check_size(keep: Optional[str], before: Noted, now: Noted) -> None:
    """Raises ResumeError where the data's batches are not those that the user wants to keep."""
    if keep is None or not (before.size and now.size and before.replicas and now.replicas):
        return
    expected = before.size if keep == "global" else before.size * now.replicas / before.replicas
    if now.size == expected:
        return
    other = {"global": "per_replica", "per_replica": "global"}[keep]
    raise ResumeError(
        f"the data has global batches of {now.size} samples on {now.replicas} replicas; the "
        f"checkpoint was saved with {before.size} on {before.replicas}. Expected {expected:g}, by "
        f"keep_batch_size={keep!r}. Batch the data so, or pass keep_batch_size={other!r}, or None "
        "for whatever the data has."
    )


def _what_is_kept(keep: Optional[str], before: Noted, now: Noted) -> str:
    """Says what the batches are now."""
    assert before.replicas
    assert now.replicas
    on = f"on {now.replicas} replica{'s'[: now.replicas > 1]} instead of {before.replicas} "
    if before.replicas == now.replicas:
        return f"the global batch size is {now.size} instead of {before.size}"
    by = f"(keep_batch_size={keep!r})"
    if before.size is None or now.size is None:
        what = {"global": "the global batch size", "per_replica": "a replica's batch size"}
        return f"{on}{what.get(str(keep), 'the global batch size')} is taken for the same {by}"
    each = [
        size / count for size, count in ((before.size, before.replicas), (now.size, now.replicas))
    ]
    if before.size == now.size:
        kept = f"the global batch size stays {now.size}, a replica's is {each[1]:.4g} instead of "
        return f"{on}{kept}{each[0]:.4g} {by}"
    other = f"the global batch size is {now.size} instead of {before.size}"
    stays = (
        f"a replica's stays {each[1]:.4g}" if each[0] == each[1] else f"a replica's {each[1]:.4g}"
    )
    return f"{on}{other}, {stays} {by}"


def _what_is_lost(batches: Batches, at: Position, dealt_anew: bool, recounted: bool) -> str:
    """Says whether the samples that are left are those that were not yet seen."""
    why: List[str] = []
    if dealt_anew:
        why += filter(None, [why_not_by_batch(batches)])
    if recounted and not batches.in_order:
        why.append("batches of another size may not have the same samples in the same order")
    if batches.size is None and not why:
        why.append("the size of its batches is not known")
    if at.twice:
        why.append(f"it cannot be begun within a batch, so that {at.twice} come twice")
    if why:
        return f". Samples may be lost or seen twice in it: {'; '.join(why)}"
    return ", and no sample is lost or seen twice"
