"""What a step draws random numbers from, and whether a checkpoint has it."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import tensorflow as tf

from slurm_resolver.tf.training.exactness import function_names, problem_of_step

GENERATOR = tf.random.Generator.from_seed(1)
SAVED = tf.train.Checkpoint(generator=GENERATOR)
WITHOUT = tf.train.Checkpoint()

CASES: dict[str, tuple[Callable[[], Any], tf.train.Checkpoint, str]] = {
    "no random numbers": (lambda: tf.ones([]), WITHOUT, ""),
    "a seed in each call": (lambda: tf.random.stateless_uniform([], [1, 2]), WITHOUT, ""),
    "tf.random": (lambda: tf.random.uniform([]), SAVED, "the step calls RandomUniform, whose"),
    "a generator": (lambda: GENERATOR.uniform([]), WITHOUT, "the step calls RngReadAndSkip, whose"),
    "a saved generator": (lambda: GENERATOR.uniform([]), SAVED, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_draws_from_what_is_not_saved_is_told(name: str) -> None:
    draw, checkpoint, said = CASES[name]
    before = function_names()
    step = tf.function(draw)
    step()
    problem = problem_of_step(before, checkpoint)
    assert problem.startswith(said) if said else not problem
