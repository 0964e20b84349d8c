"""A checkpoint contains state of Keras' `fit` besides variables."""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from slurm_resolver.tf.training.callback_states import CallbackStates

HANDLE = object()


class callback:  # noqa: N801
    state: Any
    count: Any
    writer: Any

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ({"wait": 0, "patience": 3}, {"wait": 1}, {"wait": 1}),
        ({"best": None}, {"best": 0.5, "new": [1]}, {"best": 0.5, "new": [1]}),
        ({"handle": HANDLE, "count": 0}, {"count": 1}, {"count": 1}),
        ({"model": 1, "monitor_op": None}, {"model": 3, "monitor_op": open}, {}),  # set by Keras
        *(({"a": None, "count": 0}, {"a": a, "count": 1}, {}) for a in (b"a", Path("a"), [HANDLE])),
        ({"a": None, "count": 0}, {"a": np.array([HANDLE]), "count": 1}, {}),
        ({"wait": 1}, {"wait": 1}, {}),
        *(
            ({"value": None}, {"value": value}, {"value": value})
            for value in [
                True,
                math.inf,
                "ü",
                np.float32(0.1),
                np.arange(6, dtype="int16").reshape(2, 3),
                (1, [2.5, {"a": {1, 2}, 3: frozenset()}]),
                np.zeros([0, 4]),
                [np.ones(3)],
            ]
        ),
    ],
)
def test_what_has_changed_is_kept_if_all_of_it_is_plain(before: Any, after: Any, kept: Any) -> None:
    """The second of two callbacks of the same class gets its own state back."""
    first = callback(**before)
    second = callback(**before)
    states = CallbackStates([first, second])
    vars(second).update(after)
    again = [callback(), callback()]
    CallbackStates(again).apply(states.collect())
    np.testing.assert_equal(list(map(vars, again)), [{}, kept])


@dataclasses.dataclass
class Best:
    loss: float = 9.0
    steps: list[int] = dataclasses.field(default_factory=list)

    def improve(self) -> None:
        self.loss = 0.5
        self.steps.append(3)


def counter() -> Any:
    count = 0

    def increase() -> int:
        nonlocal count
        count += 1
        return count

    return increase


def with_lock() -> Any:
    return [threading.Lock(), {"seen": 0}]


@pytest.mark.parametrize(
    ("make", "change", "look"),
    [
        (lambda: deque([1], maxlen=2), lambda state: state.extend([2, 3]), list),
        (Counter, lambda state: state.update("aab"), dict),
        (lambda: random.Random(1), lambda state: state.random(), lambda state: state.random()),
        (lambda: np.random.default_rng(1), lambda state: state.normal(), lambda s: s.normal()),
        (lambda: np.random.RandomState(1), lambda state: state.normal(), lambda s: s.normal()),
        (Best, Best.improve, vars),
        (counter, lambda state: state(), lambda state: state()),
        (with_lock, lambda state: state[1].update(seen=4), lambda state: state[1]),
        (lambda: tf.Variable(0.0), lambda state: state.assign(3.0), float),
    ],
)
def test_an_object_that_was_changed_gets_its_content_back(
    make: Any, change: Any, look: Any
) -> None:
    first = callback(state=make())
    states = CallbackStates([first])
    change(first.state)
    assert not [*states.problems()]
    again = callback(state=make())
    same = again.state
    CallbackStates([again]).apply(states.collect())
    assert again.state is same
    assert look(again.state) == look(first.state)


@pytest.mark.parametrize(
    ("make", "change", "lost"),
    [
        (lambda: [], lambda state: state.append(Best()), "a list"),
        (lambda: (number for number in range(3)), lambda state: None, "a generator"),
        (lambda: [Path("a")], lambda state: state.__setitem__(0, Path("b")), "a PosixPath"),
    ],
)
def test_what_cannot_be_restored_is_told_and_nothing_is_restored_by_half(
    make: Any, change: Any, lost: str
) -> None:
    first = callback(state=make(), count=0)
    states = CallbackStates([first])
    change(first.state)
    first.count = 1
    (problem,) = states.problems()
    assert (
        f"callback.state{'.0' if lost == 'a PosixPath' else ''} has the state of {lost}" in problem
    )
    assert states.collect() == {}


def test_a_file_that_is_opened_later_is_not_told_and_one_that_begins_anew_is(
    tmp_path: Path,
) -> None:
    first = callback(writer=None, count=0)
    states = CallbackStates([first])
    with (tmp_path / "log").open("a") as file:
        first.writer = file
        first.count = 1
        assert not [*states.problems()]
        assert [*states.collect()["callback 1"]] == ["count"]
    with (tmp_path / "log").open("w") as file:
        first.writer = file
        (problem,) = states.problems()
    assert f"callback writes '{tmp_path}/log' from the beginning at each start" in problem
