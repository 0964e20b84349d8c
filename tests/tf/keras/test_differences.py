"""Which difference between workers is an error, and what the error says."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from slurm_resolver import log
from slurm_resolver.errors import FitError
from slurm_resolver.tf.exchange import Workers
from slurm_resolver.tf.keras.differences import Entry, compare

GIVEN: list[Any] = [None, None]
# Both threads pass it when both have given their values, and when both have read them.
MEETING = threading.Barrier(2, timeout=30)


class Worker:
    """One of two workers in threads."""

    names = ("worker 0", "worker 1")
    holders = Workers.holders

    def __init__(self, index: int) -> None:
        self.index = index

    def exchange(self, does: str, value: Any) -> list[Any]:
        GIVEN[self.index] = value
        MEETING.wait()
        values = list(GIVEN)
        MEETING.wait()
        return values


def error(index: int, entries: list[Entry]) -> str:
    """Returns the error of a worker, or "" without one."""
    try:
        compare(Worker(index), "after epoch 2", entries)  # type: ignore[arg-type]
    except FitError as error:
        return str(error)
    return ""


class Case(NamedTuple):
    one: list[Entry]
    other: list[Entry]
    said: str  # "" if this is no error


SGD = Entry("optimizer", "SGD")
ADAM = Entry("optimizer", "Adam")
CASES = {
    "nothing": Case([SGD], [SGD], ""),
    "a text": Case([SGD], [ADAM], "optimizer: SGD in worker 0, Adam in worker 1"),
    "the order of a set": Case(
        [Entry("words", "['a', 'b']")],
        [Entry("words", "['b', 'a']")],
        "words: ['a', 'b'] in worker 0, ['b', 'a'] in worker 1",
    ),
    "an entry that one lacks": Case([SGD], [], "optimizer: SGD in worker 0, nothing in worker 1"),
    "an entry of a later message": Case(
        [Entry("layer", str(number)) for number in range(60)],
        [Entry("layer", str(min(number, 50))) for number in range(60)],
        "layer: 51 in worker 0, 50 in worker 1",
    ),
    "rounding": Case(
        [Entry("kernel", "float32", 3.0, 4.0)],
        [Entry("kernel", "float32", 3.003, 4.0)],
        "",
    ),
    "weights": Case(
        [Entry("kernel", "float32", 3.0, 4.0)],
        [Entry("kernel", "float32", 3.005, 4.0)],
        "kernel: norm 4, projection 3 in worker 0, norm 4, projection 3.005 in worker 1",
    ),
    "a count, which is not rounded": Case(
        [Entry("steps", "int64", 20000.0, 20000.0)],
        [Entry("steps", "int64", 20001.0, 20001.0)],
        "steps: 20000 in worker 0, 20001 in worker 1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_difference_is_the_error_of_every_worker(name: str) -> None:
    case = CASES[name]
    with ThreadPoolExecutor(2) as pool:
        errors = [*pool.map(error, range(2), (case.one, case.other))]
    for told in errors:
        begins = "Their order alone differs" if "order" in name else "Do the same in all workers: "
        expected = f"the workers differ after epoch 2, in {case.said}. {begins}"
        assert told.startswith(expected) if case.said else not told
    assert any("differ by rounding" in line for line in log.warned) == (name == "rounding")
