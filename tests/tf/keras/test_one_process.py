"""What Keras asks a strategy for while a step is traced as in one process, and otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from slurm_resolver.tf.keras.one_process import as_one_process, place_slot, update_once

VARIABLE: Any = SimpleNamespace(values=("of replica 0", "of replica 1"))
STRATEGY: Any = SimpleNamespace(scope=lambda: "its scope")


def test_an_optimizer_updates_one_copy_of_a_variable() -> None:
    def update(variable: Any, function: Any, args: Any, *_: Any) -> Any:
        return "by the strategy", variable, function, *args

    with as_one_process():
        assert update_once(update, VARIABLE, list, args=()) == list("of replica 0")
    assert update_once(update, VARIABLE, list, args=("by",)) == (
        "by the strategy",
        VARIABLE,
        list,
        "by",
    )


def test_slots_are_made_in_the_scope_outside_of_a_step() -> None:
    """In a step, the step makes them there."""
    assert place_slot(STRATEGY, print, VARIABLE) == "its scope"
    with as_one_process():
        assert place_slot(STRATEGY, print, VARIABLE) != "its scope"
