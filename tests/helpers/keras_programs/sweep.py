"""A program for each class of keras.losses, keras.optimizers and keras.metrics.

Their names begin with "each_". Without a word for a new class here, its program fails in one
process, unless the class takes numbers and needs no arguments.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers
from keras import losses as kl
from keras import metrics as km
from keras import optimizers as ko
from keras_programs import losses as of_losses
from keras_programs.common import (
    BINARY,
    COLUMNS,
    TOKENS,
    Outcome,
    X,
    Y,
    add_each,
    crossentropy,
    data,
    fitted,
    perceptron,
    ready,
)
from kinds import Action, Fields


def writer() -> Any:
    """Returns a model that predicts some letters of a sequence."""
    tokens = keras.Input((COLUMNS,), dtype="int32")
    hidden = layers.LSTM(4, return_sequences=True)(layers.Embedding(9, 4)(tokens))
    return keras.Model(tokens, layers.Dense(3)(hidden))


# For each kind of a class: the model, its inputs and its targets.
KINDS: dict[str, tuple[Action, Any, Any]] = {
    "number": of_losses.KINDS["number"],
    "binary": (lambda: perceptron(outputs=1, activation="sigmoid"), X, BINARY),
    "sign": (lambda: perceptron(outputs=1, activation="tanh"), X, 2 * BINARY - 1),
    "label": (lambda: perceptron(activation="softmax"), X, Y),
    "class": (lambda: perceptron(activation="softmax"), X, np.eye(3, dtype="float32")[Y]),
    "picture": of_losses.KINDS["picture"],
    "embedding": (lambda: perceptron(layers.UnitNormalization), X, Y),
    "letters": (writer, TOKENS, 1 + TOKENS[:, :2] % 2),
}
# The others take numbers, and need no arguments.
TAKES: dict[str, str] = {
    "BinaryCrossentropy": "binary",
    "BinaryFocalCrossentropy": "binary",
    "CTC": "letters",
    "CategoricalCrossentropy": "class",
    "CategoricalFocalCrossentropy": "class",
    "CategoricalGeneralizedCrossEntropy": "label",
    "CategoricalHinge": "class",
    "Circle": "embedding",
    "CosineSimilarity": "class",
    "Dice": "picture",
    "Hinge": "sign",
    "KLDivergence": "class",
    "SparseCategoricalCrossentropy": "label",
    "SquaredHinge": "sign",
    "Tversky": "picture",
    "AUC": "binary",
    "BinaryAccuracy": "binary",
    "BinaryIoU": "binary",
    "CategoricalAccuracy": "class",
    "F1Score": "class",
    "FBetaScore": "class",
    "FalseNegatives": "binary",
    "FalsePositives": "binary",
    "IoU": "label",
    "MeanIoU": "label",
    "OneHotIoU": "class",
    "OneHotMeanIoU": "class",
    "Precision": "binary",
    "PrecisionAtRecall": "binary",
    "Recall": "binary",
    "RecallAtPrecision": "binary",
    "SensitivityAtSpecificity": "binary",
    "SparseCategoricalAccuracy": "label",
    "SparseTopKCategoricalAccuracy": "label",
    "SpecificityAtSensitivity": "binary",
    "TopKCategoricalAccuracy": "class",
    "TrueNegatives": "binary",
    "TruePositives": "binary",
}
OF_CLASSES = {"num_classes": 3, "sparse_y_pred": False}
ARGUMENTS: dict[str, Fields] = {
    "IoU": {**OF_CLASSES, "target_class_ids": [0, 2]},
    "MeanIoU": OF_CLASSES,
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
    "MeanMetricWrapper": {"fn": lambda y, predicted: abs(y - predicted)},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "TopKCategoricalAccuracy": {"k": 2},
    "MultiOptimizer": {"optimizer_map": lambda variable: ko.SGD(0.1 + 0.1 * len(variable.shape))},
}
# Other programs have these: metrics that take no targets, and an optimizer around another one.
LEFT_OUT = ("Mean", "Sum", "LossScaleOptimizer")


def classes(module: Any, base: type) -> Fields:
    """Returns the classes of a module below a base, by their names, with their aliases once."""
    found = {
        value.__name__: value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }
    return {name: value for name, value in found.items() if name not in LEFT_OUT}


def _made(kind: Any) -> Any:
    return kind(**ARGUMENTS.get(kind.__name__, {}))


def _loss(strategy: Any, entry: Any) -> Outcome:
    make, x, y = KINDS[TAKES.get(entry.__name__, "number")]
    return fitted(ready(strategy, make, loss=partial(_made, entry)), data(x, y))


def _metric(strategy: Any, entry: Any) -> Outcome:
    kind = TAKES.get(entry.__name__, "number")
    make, x, y = KINDS[kind]
    loss = "mse"
    if kind == "label":
        loss = "sparse_categorical_crossentropy"
    return fitted(ready(strategy, make, loss=loss, metrics=[partial(_made, entry)]), data(x, y))


def _optimizer(strategy: Any, entry: Any) -> Outcome:
    make = partial(_made, entry)
    return fitted(ready(strategy, perceptron, loss=crossentropy, optimizer=make), data())


add_each("each_loss", _loss, classes(kl, kl.Loss))
add_each("each_metric", _metric, classes(km, km.Metric))
add_each("each_optimizer", _optimizer, classes(ko, ko.Optimizer))
