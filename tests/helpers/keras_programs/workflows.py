"""Whole programs: Keras' guides, callbacks, transfer, saving and loading, checkpoints."""

# mypy: allow-subclassing-any

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import keras
from keras import callbacks as kc
from keras import layers
from keras_programs.common import (
    Outcome,
    X,
    add,
    build,
    crossentropy,
    data,
    fitted,
    numbers,
    perceptron,
    program,
    ready,
    seen,
)

Make = Callable[[], Any]


class Reading(kc.Callback):
    """Reads the metrics, the variables and the learning rate after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.read: List[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        results = [metric.result() for metric in self.model.metrics]
        iterations = self.model.optimizer.iterations
        self.read += [numbers([results, iterations, self.model.trainable_variables[0]])]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.read += [numbers(self.model.get_metrics_result())]
        self.read += [numbers(self.model.predict(X[:3], verbose=0))]


@program("callback")
def early_stopping_restores(strategy: Any) -> Outcome:
    stop = kc.EarlyStopping("val_loss", patience=1, restore_best_weights=True, mode="max")
    model = build(strategy, optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True))
    return fitted(model, data(), epochs=5, validation_data=data(), callbacks=[stop])


@program("callback")
def reading_metrics(strategy: Any) -> Outcome:
    reading = Reading()
    return {**fitted(build(strategy), data(), callbacks=[reading]), "read": reading.read}


def folder() -> Path:
    """One for every process: who writes what into a common one is not asked here."""
    return Path(tempfile.mkdtemp(dir=os.environ.get("TASK_OUTPUT"), prefix=f"saved{os.getpid()}_"))


@program("callback")
def backup_and_restore(strategy: Any) -> Outcome:
    model = build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01))
    backup = kc.BackupAndRestore(str(folder() / "backup"))
    return fitted(model, data(), epochs=3, callbacks=[backup])


GUIDES: Dict[str, Make] = {
    "unbuilt_sequential": lambda: keras.Sequential([layers.Dense(4, "relu"), layers.Dense(3)]),
    "synchronized_batch_normalization": lambda: perceptron(
        lambda: layers.BatchNormalization(momentum=0.9, synchronized=True)
    ),
}


def _of(make: Make) -> Callable[[Any], Outcome]:
    return lambda strategy: fitted(ready(strategy, make), data(), predict=True)


for name, make in GUIDES.items():
    add(f"guide_{name}", _of(make))


def _with(strategy: Any, layer: Make) -> Outcome:
    return fitted(build(strategy, layer), data())


RANDOM = "draws random numbers by row"
LAYERS: Dict[str, Tuple[Make, str]] = {
    "batch_normalization": (
        layers.BatchNormalization,
        "normalizes the rows of a batch by one another, of which a worker sees its part",
    ),
    "dropout": (lambda: layers.Dropout(0.3), RANDOM),
}
for name, (layer, reason) in LAYERS.items():
    add(f"guide_{name}", partial(_with, layer=layer), differs=reason)


@program("guide")
def lora(strategy: Any) -> Outcome:
    model = build(strategy)
    with strategy.scope():
        model.layers[1].enable_lora(2)
        model.compile("sgd", crossentropy())
    return fitted(model, data(), predict=True)


@program("guide", within=1e-2)
def quantized(strategy: Any) -> Outcome:
    model = build(strategy)
    model.fit(data(), verbose=0)
    model.quantize("int8")
    return {"predict": numbers(model.predict(X[:33], batch_size=8, verbose=0))}


def _saved(strategy: Any, scope: Callable[[Any], Any]) -> Outcome:
    model = build(strategy, optimizer=lambda: keras.optimizers.Adam(0.01))
    model.fit(data(), verbose=0)
    file = str(folder() / "model.keras")
    model.save(file)
    with scope(strategy):
        model = keras.models.load_model(file)
    return fitted(model, data(), predict=True)


add("guide_saved_and_loaded_inside", lambda strategy: _saved(strategy, lambda s: s.scope()))
add("guide_saved_and_loaded_outside", lambda strategy: _saved(strategy, lambda s: nullcontext()))


@program("guide")
def distributed_training(strategy: Any) -> Outcome:
    """As Keras' guide to distributed training: make or restore, with checkpoints, twice."""
    place = folder()

    def restored() -> Any:
        saved = sorted(str(file) for file in Path(place).glob("*.keras"))
        return keras.models.load_model(saved[-1]) if saved else started()

    def started() -> Any:
        model = perceptron()
        model.compile(keras.optimizers.Adam(0.01), crossentropy(), metrics=["accuracy"])
        return model

    keras.utils.set_random_seed(3)
    found: List[Outcome] = []
    save = keras.callbacks.ModelCheckpoint(str(place / "ckpt-{epoch}.keras"), save_freq="epoch")
    for _ in range(2):
        with strategy.scope():
            model = restored()
        model.fit(data(), epochs=1, callbacks=[save], verbose=0)
        with strategy.scope():
            found.append(seen(model, test=data()))
    return {"fits": found, "files": len(list(place.iterdir()))}
