"""What the workers compare of their weights."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from keras_3 import keras

from slurm_resolver.tf.keras.weight_comparison import digest_of, measures


def test_a_digest_is_of_all_variables_of_a_model_and_its_optimizers() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    model.compile("adam", "mse")
    model.other_optimizers = {"own": keras.optimizers.SGD()}
    model.optimizer.build(model.trainable_variables)
    of_others = model.other_optimizers["own"].variables
    digest = digest_of(model)
    for variable in [*model.weights, *model.optimizer.variables, *of_others]:
        value = variable.numpy()
        variable.assign(value + 1)
        assert digest_of(model) != digest, variable.path
        variable.assign(value)
        assert digest_of(model) == digest


def test_a_measure_tells_a_change_from_rounding() -> None:
    values = np.linspace(
        1.0,
        2.0,
        8,
    )
    states = (values, values * (1 + 1e-7), values + np.eye(8)[7])
    begin, rounded, changed = measures(("kernel", tf.Variable(state)) for state in states)
    tolerance = 1e-3 * begin.norm
    assert abs(rounded.number - begin.number) < tolerance
    assert abs(changed.number - begin.number) > tolerance
