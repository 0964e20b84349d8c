"""A checkpoint contains what the callbacks of Keras' `fit` have changed, or its loss is told."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras_3 import keras
from kinds import Strings

from slurm_resolver.tf.training.callback_states import CallbackStates
from slurm_resolver.tf.training.fit_state import pack

HANDLE = object()


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ({"wait": 1, "patience": 3}, {"wait": 1}, {}),
        ({"best": None}, {"best": 0.5, "new": [1]}, {"best": 0.5, "new": [1]}),
        ({"handle": HANDLE, "count": 0}, {"count": 1}, {"count": 1}),
        ({"model": 1, "monitor_op": None}, {"model": 3, "monitor_op": open}, {}),  # set by Keras
        ({"value": None, "count": 0}, {"value": Path("a"), "count": 1}, {}),
    ],
)
def test_what_has_changed_is_kept_if_all_of_it_is_plain(before: Any, after: Any, kept: Any) -> None:
    """The second of two callbacks of the same class gets its own state back."""
    pair = [SimpleNamespace(**before) for _ in range(2)]
    states = CallbackStates(pair)
    vars(pair[1]).update(after)
    again = [SimpleNamespace(), SimpleNamespace()]
    CallbackStates(again).apply(states.collect())
    np.testing.assert_equal(list(map(vars, again)), [{}, kept])


@dataclasses.dataclass
class Best:
    loss: float = 9.0
    steps: list[int] = dataclasses.field(default_factory=list)

    def improve(self) -> None:
        self.loss = 0.5
        self.steps.append(3)


def critic() -> Any:
    """Returns a model that a callback trains."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def improve(model: Any) -> None:
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))


def values_of(model: Any) -> Strings:
    """Returns the values of the variables of a model and of its optimizer."""
    return [str(np.asarray(value)) for value in model.variables + model.optimizer.variables]


def counter() -> Any:
    count = 0

    def increase() -> int:
        nonlocal count
        count += 1
        return count

    return increase


# A state, how it changes, and how to look at it.
CHANGES: Any = [
    (lambda: deque([1], maxlen=2), lambda state: state.extend([2, 3]), list),
    (Counter, lambda state: state.update("aab"), dict),
    (lambda: random.Random(1), lambda state: state.random(), lambda state: state.random()),
    (lambda: np.random.default_rng(1), lambda state: state.normal(), lambda s: s.normal()),
    (lambda: np.random.RandomState(1), lambda state: state.normal(), lambda s: s.normal()),
    (Best, Best.improve, vars),
    (lambda: tf.Variable(0.0), lambda state: state.assign(3.0), float),
    (critic, improve, values_of),
]


@pytest.mark.parametrize(("make", "change", "look"), CHANGES)
def test_two_callbacks_get_the_content_of_their_object_back(
    make: Any, change: Any, look: Any
) -> None:
    def begin() -> tuple[Any, CallbackStates]:
        state = make()
        return state, CallbackStates([SimpleNamespace(state=state) for _ in range(2)])

    first, states = begin()
    change(first)
    assert not [*states.problems()]
    again, restored = begin()
    restored.apply(states.collect())
    assert look(again) == look(first)


def test_a_list_of_an_object_stays_the_list_that_others_have() -> None:
    first, again = (SimpleNamespace(best=Best()) for _ in range(2))
    states = CallbackStates([first])
    first.best.improve()
    steps = again.best.steps
    CallbackStates([again]).apply(states.collect())
    assert steps == [3]


def numbers() -> Any:
    return (number for number in range(3))


def locked_counter() -> Any:
    """Returns a function that holds a lock, and calls itself."""
    count = 0
    lock = threading.Lock()

    def increase(again: bool = True) -> int:
        nonlocal count
        if again:
            return increase(again=False)
        with lock:
            count += 1
        return count

    return increase


def with_lock() -> Any:
    return [threading.Lock(), Best()]


# A state, how it changes, and its class in the warning; "" for an object that holds a lock.
LOSSES: Any = [
    (list, lambda state: state.append(Best()), "list"),
    (numbers, lambda state: None, "generator"),
    (lambda: [Path("a")], lambda state: state.__setitem__(0, Path("b")), "list"),
    (counter, lambda state: state(), "function"),
    (counter, lambda state: None, ""),
    (locked_counter, lambda state: state(), "function"),
    (locked_counter, lambda state: None, ""),
    (with_lock, lambda state: state[1].improve(), ""),
]


@pytest.mark.parametrize(("make", "change", "kind"), LOSSES)
def test_what_cannot_be_restored_is_told_and_nothing_is_restored_by_half(
    make: Any, change: Any, kind: str
) -> None:
    first = SimpleNamespace(state=make(), count=0)
    states = CallbackStates([first])
    change(first.state)
    first.count = 1
    problems = [text.partition(", which cannot be saved")[0] for text in states.problems()]
    assert problems == ([f"'state' of SimpleNamespace 1 has the state of a {kind}"] if kind else [])
    assert states.collect() == ({} if kind else {("SimpleNamespace 1", "count"): ("", pack(1))})


def test_an_optimizer_with_other_variables_is_told(caplog: pytest.LogCaptureFixture) -> None:
    first, again = (SimpleNamespace(state=keras.optimizers.Adam()) for _ in range(2))
    states = CallbackStates([first])
    first.state.build([keras.Variable([1.0])])
    CallbackStates([again]).apply(states.collect())
    assert "'state' of SimpleNamespace 1 cannot be restored (" in caplog.text


@pytest.mark.parametrize("mode", ["a", "w", "x"])
def test_a_file_that_is_opened_later_is_told_only_if_it_begins_anew(
    mode: str, tmp_path: Path
) -> None:
    first = SimpleNamespace(writer=None, count=0)
    states = CallbackStates([first])
    with (tmp_path / "log").open(mode) as file:
        first.writer = file
        first.count = 1
        problems = " ".join(states.problems())
        assert [*states.collect()] == [("SimpleNamespace 1", "count")]
    anew = f"SimpleNamespace 1 writes '{tmp_path}/log' from the beginning at each start"
    assert problems[: len(anew)] == ("" if mode == "a" else anew)
