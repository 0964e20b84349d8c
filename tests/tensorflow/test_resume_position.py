"""Where a training goes on in its data when its batches have another size than before."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Tuple

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from slurm_resolver.errors import ResumeError  # noqa: E402
from slurm_resolver.tf.dealt_data import (  # noqa: E402
    INFINITE,
    UNKNOWN,
    Batches,
    batches_of,
    why_not_by_batch,
)
from slurm_resolver.tf.training.resume_position import (  # noqa: E402
    BatchSize,
    Noted,
    Position,
    Start,
    position_in,
)

pytestmark = pytest.mark.tensorflow

POLICY = tf.data.experimental.AutoShardPolicy

# samples of the data, (step, drawn, beyond) as saved, sizes of a batch before and now, and where it
# goes on: (step, drawn, beyond, twice)
POSITIONS: Dict[str, Tuple[int, Tuple[int, ...], int, int, Tuple[int, ...]]] = {
    "the same": (100, (3, 3), 8, 8, (3, 3)),
    "half of it": (100, (3, 3), 8, 4, (6, 6)),
    "twice as much": (100, (4, 4), 4, 8, (2, 2)),
    "within a batch": (100, (3, 3), 12, 8, (5, 5, -4)),  # 64 are left, in 8 of 13 steps
    "within a batch, with a full one at the end": (96, (3, 3), 12, 8, (4, 4, 4)),
    "within the first batch": (96, (1, 1), 4, 12, (0, 0, 4)),
    "from within a batch on": (96, (5, 5, 4), 8, 12, (3, 3, 8)),
    "from within a batch to the start of one": (96, (4, 4, 4), 8, 12, (3, 3)),
    "the end": (100, (9, 9), 12, 8, (13, 13)),
    "the end, at the start of a batch": (100, (9, 9), 12, 4, (25, 25)),
    "the end, and there would be more steps": (50, (9, 9), 6, 3, (17, 17)),
    "a stream": (INFINITE, (3, 13), 12, 8, (4, 19, 4)),
    "a stream, between two epochs": (INFINITE, (0, 10), 12, 8, (0, 15)),
    "a stream with an end": (300, (3, 13), 12, 8, (4, 20, -4)),
    "unknown": (UNKNOWN, (3, 3), 12, 6, (6, 6)),
    "unknown, within a batch": (UNKNOWN, (3, 3), 12, 8, (4, 4, 0, 4)),
}


@pytest.mark.parametrize("case", POSITIONS)
def test_position(case: str) -> None:
    samples, saved, before, now, expected = POSITIONS[case]
    batches = Batches(size=now, samples=samples, dealt=True, in_order=True)
    found = position_in(batches, Position(*saved), before, now)
    assert found == Position(*expected)
    if samples >= 0 and saved[0] == saved[1]:
        taken = min(samples, saved[1] * before + sum(saved[2:]))
        assert found.drawn + -(-(samples - taken) // now) == -(-samples // now), "all steps"


def test_position_where_the_last_batch_is_dropped() -> None:
    """What was to be dropped of 12 by 12 is not of 8 by 8: 4 more of 100."""
    batches = Batches(size=8, samples=100, drop_remainder=True, dealt=True, in_order=True)
    assert position_in(batches, Position(8, 8), 12, 8) == Position(12, 12)
    assert position_in(batches, Position(3, 3), 12, 8) == Position(4, 4, 4)


@pytest.mark.parametrize(("in_order", "can_cut"), [(False, True), (True, False), (False, False)])
def test_position_that_is_not_exact_is_before_it(in_order: bool, can_cut: bool) -> None:
    batches = Batches(size=8, samples=100, dealt=True, in_order=in_order)
    found = position_in(batches, Position(3, 3), 12, 8, can_cut)
    assert found == Position(4, 4, 0, 4)


def thousand(size: int) -> Batches:
    data = tf.data.Dataset.range(1000).batch(size)
    return Batches(data, size, samples=1000, dealt=True, in_order=True)


def begin(
    keep: Optional[str], noted: Noted, replicas: int, batches: Batches, step: int = 3, **how: Any
) -> Start:
    state = BatchSize(keep, SimpleNamespace(num_replicas_in_sync=replicas))
    state.deserialize(json.dumps(noted._asdict()).encode())
    return state.begin(step, step, batches, **how)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize(
    ("keep", "size", "expected"), [("global", 32, "64"), ("per_replica", 64, "32")]
)
def test_batches_of_another_size_than_is_to_be_kept(
    keep: str, size: int, expected: str, step: int
) -> None:
    """Between two epochs as well: the training would be another one."""
    batches = thousand(size)
    message = (
        rf"global batches of {size} samples on 1 replicas; .* with 64 on 2. "
        rf"Expected {expected}, by keep_batch_size='{keep}'"
    )
    with pytest.raises(ResumeError, match=message):
        begin(keep, Noted(2, 64), 1, batches, step)
    start = begin(None, Noted(2, 64), 1, batches, step)
    assert start.step == step * 64 // size


def test_another_size_on_as_many_replicas_goes_on_by_samples() -> None:
    batches = thousand(32)
    start = begin("global", Noted(2, 64), 2, batches)
    assert (start.step, start.drawn, start.recounted) == (6, 6, True)
    assert start.told == (
        "the global batch size is 32 instead of 64; the epoch goes on at step 6, and no sample is "
        "lost or seen twice"
    )


def test_data_that_begin_after_what_was_seen_are_counted_in_steps() -> None:
    batches = thousand(32)
    with pytest.raises(ResumeError, match=r"skip=False, and a batch has another size .*64 to 32"):
        begin("per_replica", Noted(2, 64), 1, batches, skip=False)
    same = begin("global", Noted(2, 32), 1, batches, skip=False)
    assert (same.step, same.recounted) == (3, False)


def test_of_batches_of_unknown_size_the_replicas_parts_are_counted() -> None:
    start = begin("per_replica", Noted(2, None), 1, Batches(dealt=True, dataset=dataset()))
    assert start.step == 6
    assert "a replica's batch size is taken for the same" in start.told
    assert "Samples may be lost or seen twice" in start.told


def test_an_older_checkpoint_goes_on_as_counted() -> None:
    batches = thousand(32)
    assert begin("global", Noted(), 1, batches) == Start(3, 3, within=True)


def test_an_option_that_is_none() -> None:
    with pytest.raises(ResumeError, match="keep_batch_size='local': expected one of 'global', "):
        BatchSize("local", SimpleNamespace(num_replicas_in_sync=1))


def dataset() -> Any:
    return tf.data.Dataset.range(50)


def with_policy(data: Any, policy: Any) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)


def generated() -> Any:
    return tf.data.Dataset.from_generator(
        lambda: iter(range(50)), output_signature=tf.TensorSpec([], tf.int64)
    )


def lines() -> Any:
    files = tf.data.Dataset.from_tensor_slices(["/nowhere"])
    return files.interleave(lambda name: tf.data.TextLineDataset(name))


Make = Callable[[], Any]
# what is known of it: size, samples, drop_remainder, in_order; and why it may be dealt otherwise
DATA: Dict[str, Tuple[Make, Tuple[Any, ...], str]] = {
    "plain": (lambda: dataset().batch(6), (6, 50, False, True), ""),
    "shuffled, mapped, prefetched": (
        lambda: dataset().shuffle(9).batch(6).map(lambda x: x + 1, 2).prefetch(1),
        (6, 50, False, True), "",
    ),
    "without a last one": (
        lambda: dataset().repeat(2).batch(6, drop_remainder=True), (6, 100, True, True), "",
    ),
    "in parallel": (lambda: dataset().batch(6, num_parallel_calls=2), (6, 50, False, True), ""),
    "endless": (lambda: dataset().repeat().batch(6), (6, INFINITE, False, True), ""),
    "filtered": (
        lambda: dataset().filter(lambda x: x > 1).batch(6), (6, UNKNOWN, False, True), "",
    ),
    "batches that are repeated": (
        lambda: dataset().batch(6).repeat(), (None, UNKNOWN, False, False), "",
    ),
    "batches that are shuffled": (
        lambda: dataset().batch(6).shuffle(9), (None, UNKNOWN, False, False), "",
    ),
    "by files": (
        lambda: with_policy(dataset().batch(6), POLICY.FILE), (6, 50, False, True),
        "whole files to the workers (AutoShardPolicy.FILE)",
    ),
    "of files": (
        lambda: lines().batch(6), (6, UNKNOWN, False, True),
        "may deal whole files to the workers (AutoShardPolicy.AUTO)",
    ),
    "of files, by batches": (
        lambda: with_policy(lines().batch(6), POLICY.DATA), (6, UNKNOWN, False, True), "",
    ),
    "a generator": (
        lambda: generated().batch(6), (6, UNKNOWN, False, True), "reads all of a generator",
    ),
    "of its own": (
        lambda: with_policy(dataset().batch(6), POLICY.OFF), (None, UNKNOWN, False, False),
        "each worker has data of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_what_is_known_of_a_dataset(case: str) -> None:
    make, known, why = DATA[case]
    # As a strategy of several workers, and of several devices, holds what it has distributed.
    found = batches_of(SimpleNamespace(_original_dataset=make()))
    assert (found.size, found.samples, found.drop_remainder, found.in_order) == known
    told = why_not_by_batch(found)
    assert (why in told) if why else (told == "")


def test_a_strategy_still_holds_the_dataset_that_it_distributes() -> None:
    """By a private name; where that is another one, nothing is known, and it is told."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    found = batches_of(strategy.experimental_distribute_dataset(dataset().batch(6)))
    assert (found.size, found.dealt) == (6, True)
    per_worker = strategy.distribute_datasets_from_function(lambda context: dataset().batch(6))
    assert not batches_of(per_worker).dealt
    assert not batches_of(dataset().batch(6)).dealt


def test_the_rest_of_a_dataset_is_that_of_its_shuffled_order() -> None:
    def shuffled() -> Any:
        return dataset().shuffle(50, seed=1).batch(6)

    def samples(data: Any) -> Any:
        return [int(sample) for batch in data for sample in batch]

    whole = samples(shuffled())
    assert samples(batches_of(shuffled()).without(20)) == whole[20:]
