"""BatchNormalization in a step: each replica normalizes its own rows.

This is the one layer whose results are not those of the whole batch, as without this package. Its
moving averages, the statistics, become the mean of all replicas'.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.replica_step import Step
from slurm_resolver.tf.private_names import Method


def batch_normalization(
    step: Step, original: Method, layer: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """Declares that BatchNormalization treats each row by itself: each replica has its own rows."""
    outputs = original(layer, inputs, *args, **kwargs)
    if not step.whole and tf.is_symbolic_tensor(outputs):
        step.declare(outputs, step.analysis.value_of(inputs))
    return outputs


def statistics_of(model: Any) -> list[Any]:
    """Returns the moving averages of BatchNormalization, which each replica takes of its rows."""
    import keras

    return [
        variable
        for layer in private_names.FLATTEN_LAYERS.of(model)()
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in layer.non_trainable_variables
        if not variable.value.trainable
    ]
