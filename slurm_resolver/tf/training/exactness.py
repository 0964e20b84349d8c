"""Says at the first start why a training cannot resume exactly, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from slurm_resolver.log import warn
from slurm_resolver.tf import private_names
from slurm_resolver.tf.training.dataset_graph import is_random


class Exactness:
    """What has been said of one training; one rank says it."""

    _functions: set[str] | None = None  # those that were there before the first step

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._said: set[str] = set()

    def tell(self, *problems: str) -> None:
        """Logs these problems, each once; "" is none."""
        for problem in problems:
            if problem and self._speaks and problem not in self._said:
                self._said.add(problem)
                warn("if this training is interrupted, it will not resume exactly: %s", problem)

    def before_step(self) -> None:
        """Notes which functions there are."""
        if self._functions is None:
            self._functions = _function_names()

    def after_step(self, state: Mapping[str, Any]) -> None:
        """Looks through the functions of the first step; `state` is what is saved."""
        if self._functions:
            new = _function_names() - self._functions
            self.tell(_problem_of_step(map(_function, sorted(new)), state))
        self._functions = set()


def _problem_of_step(functions: Iterable[Any], state: Mapping[str, Any]) -> str:
    nodes = [node for function in functions for node in function.node_def]
    for node in filter(is_random, nodes):
        return (
            f"the step calls {node.op}, whose position TensorFlow cannot save: draw with "
            "keras.random and seed=keras.random.SeedGenerator(n), an attribute of the layer or "
            "model"
        )
    saved = [
        each
        for one in state.values()
        if not isinstance(one, list)
        for each in tf.train.TrackableView(one).descendants()
    ]
    if any(node.op == "RngReadAndSkip" for node in nodes) and not any(
        isinstance(one, tf.random.Generator) for one in saved
    ):
        return (
            "the step draws from a tf.random.Generator that is not saved: pass it, "
            "BackupAndResume(folder, generator=generator)"
        )
    return ""


def _function_names() -> set[str]:
    find = private_names.FUNCTION_NAMES.find()
    return set(map(str, find(private_names.CONTEXT.get()()))) if find else set()


def _function(name: str) -> Any:
    return private_names.FUNCTION.get()(private_names.CONTEXT.get()(), name)
