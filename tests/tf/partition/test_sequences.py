"""Random operations with a seed draw in a step what they draw in one process, in each place."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import tensorflow as tf

from slurm_resolver.tf.partition.sequences import in_sequence

ROWS = tf.TensorSpec([None, 3], tf.float32)
DRAWN: dict[str, Callable[..., Any]] = {
    "normal": lambda x, **seed: tf.random.normal(tf.shape(x), **seed),
    "float64": lambda x, **seed: tf.random.normal(
        tf.shape(x),
        dtype=tf.float64,
        **seed,
    ),
    "float16": lambda x, **seed: tf.random.uniform(
        tf.shape(x),
        dtype=tf.float16,
        **seed,
    ),
    "uniform": lambda x, **seed: tf.random.uniform(
        tf.shape(x),
        -1,
        2,
        **seed,
    ),
    "scalar": lambda x, **seed: tf.random.uniform([], **seed),
    "integers": lambda x, **seed: tf.random.uniform(
        [5],
        3,
        1_000,
        tf.int32,
        **seed,
    ),
    "truncated": lambda x, **seed: tf.random.truncated_normal(tf.shape(x), **seed),
    "shuffled": lambda x, **seed: tf.random.shuffle(x, **seed),
}


def with_a_copy(draw: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """Returns a step, and one that keeps its only position in a variable, and the variable."""

    def traced() -> Any:
        tf.random.set_seed(5)
        return tf.function(draw, autograph=False).get_concrete_function(ROWS)

    step, variables = in_sequence(traced(), ROWS)
    assert len(variables) == 1
    return traced(), step, variables


@pytest.mark.parametrize("seed", [None, 7, -3, 2**31])
@pytest.mark.parametrize("name", DRAWN)
def test_a_step_goes_on_in_the_sequence_of_one_process(name: str, seed: int | None) -> None:
    """The step is written twice, and each copy takes up where the other one has ended."""

    def draw(x: Any) -> Any:
        return DRAWN[name](x, seed=seed)

    alone, step, _variables = with_a_copy(draw)

    @tf.function(autograph=False, input_signature=[ROWS, tf.TensorSpec([], tf.bool)])  # type: ignore[untyped-decorator]
    def copies(x: Any, is_first: Any) -> Any:
        return tf.cond(
            is_first,
            lambda: step(x),
            lambda: step(x),
        )

    for rows in (4, 1, 0, 6, 17):
        x = tf.reshape(tf.range(3.0 * rows), [rows, 3])
        assert tf.reduce_all(copies(x, rows % 2 == 0) == alone(x))


def test_a_loop_draws_in_each_round() -> None:
    def draw(x: Any) -> Any:
        def add(count: Any, total: Any) -> Any:
            return count + 1, total + tf.random.normal(tf.shape(x))

        return tf.while_loop(
            lambda count, _: count < 3,
            add,
            (0, x),
        )[1]

    alone, step, _variables = with_a_copy(draw)
    for rows in (2, 5):
        x = tf.zeros([rows, 3])
        assert tf.reduce_all(step(x) == alone(x))
