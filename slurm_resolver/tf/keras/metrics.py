"""Metrics of Keras 3 in training loops of one's own, and on parameter servers.

In a step of Keras' own, which is traced as in one process, metrics are variables like any other.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras import metrics_in_run
from slurm_resolver.tf.keras.protocols import Metric
from slurm_resolver.tf.keras.replicas import is_in_replica
from slurm_resolver.tf.keras.strategy_registry import is_coordinated, sharing_of
from slurm_resolver.tf.private_names import Method


def _update_state(original: Method, metric: Metric, *args: object, **kwargs: object) -> None:
    """Updates a metric.

    In a loop of one's own, `strategy.run` adds what all replicas have added, as TensorFlow's class
    does. In a coordinator's steps, the parameter server adds the change; otherwise, what another
    worker adds between reading and writing would be lost.
    """
    replicas = is_in_replica() and sharing_of(tf.distribute.get_strategy())
    if replicas and replicas.replicas > 1:
        metrics_in_run.update_state(original, metric, *args, **kwargs)
    elif is_coordinated() and all(map(_is_stored, metric.variables)):
        _update_on_servers(original, metric, *args, **kwargs)
    else:
        original(metric, *args, **kwargs)


def _update_on_servers(original: Method, metric: Metric, *args: object, **kwargs: object) -> None:
    import keras

    variables = metric.variables
    before = [tf.convert_to_tensor(variable.value) for variable in variables]
    with keras.StatelessScope(state_mapping=list(zip(variables, before))) as scope:
        original(metric, *args, **kwargs)
    for variable, old in zip(variables, before):
        new = scope.get_current_value(variable)
        variable.value.assign_add(tf.cast(new, old.dtype) - old)


def add_on_servers(original: Method, variable: Any, value: object) -> object:
    """Lets the parameter server add to a variable, which Keras would read and assign."""
    if is_coordinated() and _is_stored(variable):
        return variable.value.assign_add(tf.cast(value, variable.dtype))
    return original(variable, value)


def _is_stored(variable: Any) -> bool:
    """Returns whether a Keras variable is one of TensorFlow, not a tensor without a value."""
    return isinstance(variable.value, tf.Variable)


_REPLACEMENTS: dict[str, Method] = {
    "update_state": _update_state,
    "reset_state": metrics_in_run.reset_state,
    "result": metrics_in_run.result,
}


def patch_metrics() -> None:
    """Changes the classes of metrics, including those defined since the last call."""
    import keras

    kinds = [keras.metrics.Metric]
    for kind in kinds:
        kinds += kind.__subclasses__()  # which come later in this loop
        for name, replacement in _REPLACEMENTS.items():
            if name in vars(kind):
                private_names.replace(kind, name, replacement)
