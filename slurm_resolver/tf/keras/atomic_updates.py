"""Updates of Keras 3's variables that lose nothing when several workers make them at once.

Keras counts by `assign(variable + value)`. Between the reading and the writing another worker may
write, which is then lost: an accuracy above 1 has been seen. TensorFlow's `assign_add` is done on
the parameter server as one.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras.calls import strategies


def let_additions_be_atomic(variable_type: Any) -> None:
    """Lets the `assign_add` of Keras' variables be TensorFlow's, in a coordinator's steps."""
    original = variable_type.assign_add

    def assign_add(self: Any, value: Any) -> Any:
        target = self.value
        strategy = tf.distribute.get_strategy()
        if strategy in strategies and hasattr(strategy, "coordinator") and _is_shared(target):
            return target.assign_add(tf.cast(value, target.dtype))
        return original(self, value)

    variable_type.assign_add = assign_add


def let_updates_be_atomic(metric: Any) -> None:
    """Lets a metric's updates be added to its variables."""
    import keras

    if "update_state" in vars(metric):
        return
    original = metric.update_state

    def update_state(*args: Any, **kwargs: Any) -> None:
        variables = metric.variables
        if not all(_is_shared(variable.value) for variable in variables):
            original(*args, **kwargs)
            return
        before = [tf.convert_to_tensor(variable.value) for variable in variables]
        with keras.StatelessScope(state_mapping=list(zip(variables, before))) as scope:
            original(*args, **kwargs)
        for variable, old in zip(variables, before):
            new = scope.get_current_value(variable)
            if new is not None and new is not old:
                variable.value.assign_add(tf.cast(new, old.dtype) - old)

    metric.update_state = update_state


def _is_shared(value: Any) -> bool:
    """Whether this is a variable, not the tensor that Keras has in its place to learn shapes."""
    return isinstance(value, tf.Variable)
