"""At its end a training says where its time went, and what the largest loss was."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_resolver.coordination.progress import Report
from slurm_resolver.coordination.usage import (
    BETWEEN,
    COMPUTING,
    DATA,
    LINE,
    SAVING,
    START,
    STEPS,
    VALIDATION,
    WAITING,
    advise,
    describe,
    slowest,
    summarize,
)

NAMES = [f"worker {rank} (rank {rank} on n{rank // 2})" for rank in range(4)]
GOOD: dict[str, float] = {COMPUTING: 88, WAITING: 6, DATA: 4, BETWEEN: 2}


def four(*accounts: Mapping[str, float], **fields: object) -> dict[str, Report]:
    """Returns four workers; the last one has the last account, and the others the first one."""
    given = [accounts[0]] * 3 + [accounts[-1]]
    return {
        name: Report(epochs=2, steps=500, ms=200.0, seconds=seconds, **fields)  # type: ignore[arg-type]
        for name, seconds in zip(NAMES, given)
    }


def test_the_line_at_the_end() -> None:
    workers = four({**GOOD, COMPUTING: 86, SAVING: 2, START: 0})
    line = "2 epochs, 500 steps in 100 s with 4 workers on 2 nodes, 200.0 ms a step (median): "
    shares = "computing 86%, waiting for other workers and sending 6%, waiting for data 4%"
    assert describe(workers, 2).startswith(line + shares)
    assert "start" not in describe(workers)
    assert describe(workers).count("2%") == 2
    assert " 500 steps in 8 s with " in describe(four({COMPUTING: 7.98}))
    assert summarize("fit", workers, 2) == [f"usage of fit: {describe(workers, 2)}"]
    assert LINE.findall(f"3: slurm_resolver: {summarize('fit', workers, 2)[0]}\n")


def test_gpus_are_in_the_line_if_there_are_any() -> None:
    workers = four(GOOD, gpu_memory=3 * 2**30, gpu_busy=0.83)
    assert describe(workers).endswith("GPU memory at most 3.0 GiB, GPUs busy 83% of the time")
    assert "GPU" not in describe(four(GOOD))


def test_nothing_is_said_of_a_training_without_a_step() -> None:
    assert summarize("fit", {}, 2) == []
    assert summarize("fit", {NAMES[0]: Report(seconds={START: 100})}, 2) == []


SLOW: dict[str, tuple[Mapping[str, float], Mapping[str, float], str]] = {
    "slow data": (
        {COMPUTING: 40, WAITING: 60},
        {COMPUTING: 40, DATA: 60},
        "waiting for data takes 60% of its time, and 0% of theirs: its node reads",
    ),
    "a slow callback": (
        {COMPUTING: 40, WAITING: 58, BETWEEN: 2},
        {COMPUTING: 40, BETWEEN: 60},
        "between steps takes 60% of its time, and 2% of theirs: callbacks",
    ),
    "saves": (
        {COMPUTING: 40, WAITING: 60},
        {COMPUTING: 40, SAVING: 60},
        "saving takes 60% of its time",
    ),
    "a slow node": (
        {COMPUTING: 40, WAITING: 60},
        {COMPUTING: 98, WAITING: 2},
        "computing takes 98% of its time, and 40% of theirs: look for other processes on its",
    ),
    "a node that is a little slower": (
        {COMPUTING: 72, WAITING: 28},
        {COMPUTING: 91, WAITING: 9},
        "computing takes 91% of its time, and 72% of theirs",
    ),
    "steps of a loop": ({STEPS: 98, DATA: 2}, {STEPS: 40, DATA: 60}, "waiting for data takes 60%"),
}


@pytest.mark.parametrize("name", SLOW)
def test_one_worker_for_which_the_others_wait_is_named(name: str) -> None:
    others, slow, why = SLOW[name]
    workers = four(others, slow)
    assert slowest(workers) == NAMES[3]
    assert describe(workers).endswith(f"slowest: {NAMES[3]}")
    (line,) = advise(workers)
    assert line.startswith(f"the others wait for {NAMES[3]}: {why}")


ALL: dict[str, tuple[Mapping[str, float], Mapping[str, float], str]] = {
    "a good run": (GOOD, GOOD, ""),
    "a short run": ({COMPUTING: 2, DATA: 6}, {COMPUTING: 2, DATA: 6}, ""),
    "the start of a short run": ({START: 90, COMPUTING: 10}, {START: 90, COMPUTING: 10}, ""),
    "data": (
        {COMPUTING: 69, DATA: 31},
        {COMPUTING: 60, DATA: 40},
        "waiting for data takes 33% of the time: end the dataset with prefetch",
    ),
    "data, of which one has still less": (
        {COMPUTING: 30, DATA: 45, WAITING: 25},
        {COMPUTING: 30, DATA: 70},
        "waiting for data takes 51% of the time: end the dataset with prefetch",
    ),
    "the network": (
        {COMPUTING: 40, WAITING: 60},
        {COMPUTING: 52, WAITING: 48},
        "waiting for other workers and sending takes 57% of the time: a step is short",
    ),
    "validation": (
        {COMPUTING: 40, VALIDATION: 60},
        {COMPUTING: 40, VALIDATION: 60},
        "validation takes 60% of the time: validate less often",
    ),
}


@pytest.mark.parametrize("name", ALL)
def test_the_largest_loss_of_all_workers_is_told(name: str) -> None:
    first, last, line = ALL[name]
    lines = advise(four(first, last))
    assert [text[: len(line)] for text in lines] == ([line] if line else [])


def test_what_is_not_divided_is_always_told() -> None:
    lines = advise(four({COMPUTING: 60, DATA: 40}, whole_data="it caches", whole_steps=True))
    assert [line.partition(",")[0] for line in lines] == [
        "each worker produced all rows of the data",
        "every worker computed whole batches",
    ]
