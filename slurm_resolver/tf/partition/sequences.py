"""Random operations with a seed draw one sequence, wherever a step is written.

The kernel of such an operation keeps how far it has come in the sequence of its seed. A step is
written twice, for parts of batches and for whole ones, and each copy would begin the sequence
again. One process draws it once. So a variable keeps the position, and an operation without a state
draws from there on what TensorFlow's `GuardedPhiloxRandom` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.partition.collectives import OwnRows
from slurm_resolver.tf.partition.emission import Emission
from slurm_resolver.tf.partition.inlining import Node
from slurm_resolver.tf.partition.outside_graph import call_outside
from slurm_resolver.tf.partition.step import plan_whole

# The operations without a state that draw the same numbers.
_STATELESS = {
    "RandomStandardNormal": tf.raw_ops.StatelessRandomNormalV2,
    "RandomUniform": tf.raw_ops.StatelessRandomUniformV2,
    "RandomUniformInt": tf.raw_ops.StatelessRandomUniformIntV2,
    "TruncatedNormal": tf.raw_ops.StatelessTruncatedNormalV2,
}
_SHUFFLE = "RandomShuffle"
_PHILOX = 1  # the number of the generator's algorithm
# Such an operation reserves so many positions for each number.
_RESERVED = 256
_NUMBERS = 4  # 32-bit numbers at a position


def is_sequence(operation: Any) -> bool:
    """Whether an operation draws from the sequence of a seed, and keeps its position in it."""
    is_known = operation.type in _STATELESS or operation.type == _SHUFFLE
    return is_known and bool(operation.get_attr("seed") or operation.get_attr("seed2"))


class InSequence(Emission):
    """Writes a plan in which random operations keep their positions in variables."""

    def create(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        """Creates an operation as it was traced, but for those that draw from a sequence."""
        if not is_sequence(node.operation):
            return super().create(node, inputs)
        if node.position is None:
            node.position = call_outside(_new_position)
        with tf.device("/cpu:0"):
            if node.operation.type == _SHUFFLE:
                return [_shuffled(node, *inputs)]
            return [_drawn(node, *inputs)]


def in_sequence(traced: Any, spec: Any) -> tuple[Any, Sequence[tf.Variable]]:
    """Returns a step that is equal to a traced one, and all its variables, with the positions.

    Args:
        traced: the step of one process, a ConcreteFunction.
        spec: the types of its argument, in the argument's structure.

    Raises:
        PlanError: if it cannot be written again.
    """
    plan = plan_whole(traced)

    def step(data: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        for variable in traced.variables:
            graph.watch_variable(variable)
        arguments = filter(tf.is_tensor, tf.nest.flatten(data, expand_composites=True))
        none = tf.constant(0)
        written = InSequence(
            plan,
            OwnRows(total=none, places=tf.range(0), own=none, replica=0),
            [*arguments, *traced.captured_inputs],
            list,  # a single replica has the sums
        )
        outputs = traced.structured_outputs
        return tf.nest.pack_sequence_as(outputs, written.all(list), expand_composites=True)

    made = tf.function(step, autograph=False).get_concrete_function(spec)
    return made, made.variables  # TensorFlow does not keep them


def _new_position() -> tf.Variable:
    return tf.Variable(
        0,
        trainable=False,
        dtype=tf.int64,
        name="position",
    )


def _drawn(node: Node, shape: Any, *limits: Any) -> Any:
    """Returns a tensor of random numbers."""
    operation = node.operation
    arguments = dict(zip(("minval", "maxval"), limits))
    if not limits:
        arguments["dtype"] = operation.outputs[0].dtype
    count = tf.reduce_prod(tf.cast(shape, tf.int64))
    return _STATELESS[operation.type](
        shape=shape,
        **_place(node, count * _RESERVED),
        **arguments,
    )


def _shuffled(node: Node, values: Any) -> Any:
    """Returns values in a random order along their first axis.

    As TensorFlow's kernel does, it exchanges each place with one of those from there on.
    """
    size = tf.shape(values)[0]
    last = tf.maximum(size - 1, 0)
    numbers = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[last],
        **_place(node, tf.cast((last + _NUMBERS - 1) // _NUMBERS, tf.int64)),
        dtype=tf.uint32,
    )
    left = size - tf.range(last)
    others = tf.range(last) + tf.cast(
        tf.cast(numbers, tf.int64) % tf.cast(left, tf.int64), tf.int32
    )

    def exchange(place: Any, order: Any) -> Any:
        pair = tf.stack([place, others[place]])
        moved = tf.gather(order, pair[::-1])
        return place + 1, tf.tensor_scatter_nd_update(order, pair[:, tf.newaxis], moved)

    _, order = tf.while_loop(
        lambda place, _: place < last,
        exchange,
        (0, tf.range(size)),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
    )
    return tf.gather(values, order)


def _place(node: Node, drawn: Any) -> dict[str, Any]:
    """Returns where an operation draws now, and moves its position on.

    Args:
        drawn: how many positions it takes.
    """
    position = node.position.read_value()
    with tf.control_dependencies([position]):
        node.position.assign_add(drawn, read_value=False)
    seeds = [node.operation.get_attr(name) % 2**64 for name in ("seed", "seed2")]
    key, high = (tf.constant(seed, tf.uint64) for seed in seeds)
    return {
        "key": key[tf.newaxis],
        "counter": tf.stack([tf.cast(position, tf.uint64), high]),
        "alg": _PHILOX,
    }
