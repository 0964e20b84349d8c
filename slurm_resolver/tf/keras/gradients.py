"""Gradients in a step: those of the whole batch, in every replica.

A replica computes the gradient of its share of the target from its own rows. By a variable, which
all replicas have, the gradients are then added up. By an input, each replica has the rows of its
part. So whatever a step does to gradients, such as clipping, it does to those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from slurm_resolver.errors import FitError
from slurm_resolver.tf.keras.program_lines import line_of_program
from slurm_resolver.tf.keras.replica_step import Step
from slurm_resolver.tf.keras.split_or_whole import check_may_assume, refuse, value_of
from slurm_resolver.tf.private_names import Method
from slurm_resolver.tf.rows.values import COUNT, SAME, Value, rows


def gradient_in_step(
    step: Step,
    original: Method,
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Returns the gradients of the whole batch by variables, and of this replica's rows by inputs.

    In a split step, backpropagation begins with this replica's weight if the target is a mean over
    rows. A sum, or a value for each row, has no weight.
    """
    flat = tf.nest.flatten(sources)
    if any(getattr(source, "overwrite_with_gradient", False) for source in flat):
        raise FitError(
            f"the model {step.model.name!r} trains in float8, whose scales are not gradients that "
            "can be averaged over the workers. Use mixed_bfloat16, or one process"
        )
    values = [_value_of_source(step, source) for source in flat]
    targets = tf.nest.flatten(target)
    if not step.whole:
        given = [None] * len(targets)
        if output_gradients is not None:
            given = tf.nest.flatten(output_gradients)
        output_gradients = [_output_gradient(step, *each) for each in zip(targets, given)]
    graph = tf.compat.v1.get_default_graph()
    begin = len(graph.get_operations())
    found = original(tape, targets, flat, output_gradients, *args, **kwargs)
    if not step.whole:
        _check_custom_gradients(step, graph.get_operations(), begin)
    # By variables; a gradient is None if the target does not depend on the variable.
    shared = {
        place: gradient
        for place, (gradient, value) in enumerate(zip(found, values))
        if value.is_plain and gradient is not None
    }
    totals = _totals(step, list(shared.values()))
    for place, total in zip(shared, totals):
        found[place] = total
    for gradient, value in zip(found, values):
        step.declare(gradient, value)
    return tf.nest.pack_sequence_as(sources, found)


def _check_custom_gradients(step: Step, operations: Sequence[Any], begin: int) -> None:
    """Raises ComputeWholeError if a `tf.custom_gradient` of the program may compare rows.

    Args:
        operations: of the step's graph.
        begin: the number of operations before backpropagation.
    """
    if not any(one.type == "IdentityN" for one in operations):  # the results of such a function
        return
    for operation in operations[begin:]:
        if line_of_program(operation, of="gradient_in_step"):
            for value in map(step.analysis.value_of, operation.outputs):
                if value.reason:
                    check_may_assume(step, "a custom gradient", value, operation)


def _totals(step: Step, gradients: Sequence[Any]) -> list[Any]:
    """Returns the sums of all replicas' gradients.

    The slices of all replicas are those of one process if their indices are by row. If the indices
    do not depend on the batch, the values are added. Other slices, such as those of sparse inputs,
    are not those of one process.
    """
    same = [_has_same_indices(step, one) for one in gradients]
    parts = [one.values if is_same else one for one, is_same in zip(gradients, same)]
    parts = [step.zero_unless_counted(part) for part in parts]
    if step.replica == 0:
        parts = [_with_slice(part) for part in parts]
    return [
        tf.IndexedSlices(total, one.indices, one.dense_shape) if is_same else total
        for one, total, is_same in zip(gradients, step.add(parts), same)
    ]


def _with_slice(gradient: Any) -> Any:
    """Adds zeros as the slice with the index 0 to a gradient with no slice.

    TensorFlow crashes if no replica has one, such as for a batch with empty rows.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    # No slice is added, and nothing is copied, if there is one.
    missing = tf.cast(tf.equal(tf.size(gradient.indices), 0), tf.int32)
    padding = [[0, missing], *[[0, 0]] * (gradient.values.shape.rank - 1)]
    return tf.IndexedSlices(
        tf.pad(gradient.values, padding),
        tf.pad(gradient.indices, padding[:1]),
        gradient.dense_shape,
    )


def _has_same_indices(step: Step, gradient: Any) -> bool:
    """Whether a gradient has slices for the same indices in all replicas of a split step."""
    if step.whole or not isinstance(gradient, tf.IndexedSlices):
        return False
    what = "the indices of a sparse gradient"
    return value_of(step, gradient.indices, what, certain=not step.vouched).is_plain


def _value_of_source(step: Step, source: Any) -> Value:
    """Returns SAME for what all replicas have, such as a variable, and ROWS for their own rows."""
    import keras

    if isinstance(source, (tf.Variable, keras.Variable)):
        return SAME
    if step.whole:
        return rows()  # the gradient is the whole batch's already
    value = value_of(step, tf.convert_to_tensor(source), "the source of a gradient")
    if value.is_plain or value.layout:
        return value
    raise refuse("the source of a gradient")


def _output_gradient(step: Step, target: Any, given: Any) -> Any:
    """Returns where backpropagation from a target begins: the gradient by the target itself."""
    tensor = tf.convert_to_tensor(target)
    value = value_of(step, tensor, "the target of a gradient")
    output = tf.ones_like(tensor)
    if given is not None:
        what = "the output gradient"
        output = tf.convert_to_tensor(given, tensor.dtype)
        of_given = value_of(step, output, what)
        # Each row has its own; a mean or a sum has one that is the same in all workers.
        if of_given != value if value.layout else not of_given.is_plain:
            raise refuse(what)
    if value.is_mean or value.is_plain:
        # Divided by the replica's rows, it is the same in all workers.
        return output * step.declare(tf.cast(step.weight, tensor.dtype), COUNT)
    if value.is_sum or value.layout:
        return output
    raise refuse("the target of a gradient")
