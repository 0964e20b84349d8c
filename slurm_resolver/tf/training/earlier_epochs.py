"""Reads the data of the epochs that were trained before, as Keras' `fit` has read them.

Keras' own loop over the epochs runs again, without the steps: it makes the same iterators, and
calls the hooks of a PyDataset. What each iterator has yielded is drawn again where that matters.
"""

from __future__ import annotations

import warnings
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from slurm_resolver.coordination.progress import PREPARING
from slurm_resolver.log import warn
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.sharing import NO_SEED, is_one_of
from slurm_resolver.tf.progress import reporter
from slurm_resolver.tf.training.dataset_graph import Findings, look_through

_ROWS = 1000  # how many of an array tell it from another one
_SOURCES = (private_names.GENERATOR, private_names.PY_DATASET)


def findings_of(data: Any, fit: Any) -> Findings:
    """Returns what the data of an epoch iterator need.

    `data` makes Keras' iterators, and `fit` has the variables of Keras' `fit`.
    """
    adapter = private_names.DATA_ADAPTER.of(data)
    if is_one_of(adapter, _SOURCES):
        return Findings(again=True)
    if isinstance(adapter, private_names.ARRAYS.get()):
        return _findings_of_arrays(fit)
    dataset = private_names.DISTRIBUTED_DATASET.of(data)
    if isinstance(dataset, tf.data.Dataset):
        return look_through(dataset)
    whole = private_names.ORIGINAL_DATASET.of(dataset, None)
    return look_through(whole)._replace(again=True) if whole is not None else Findings(again=False)


def _findings_of_arrays(fit: Any) -> Findings:
    """Returns what arrays need. Their graph would contain them."""
    content = 0
    for array in tf.nest.flatten((fit.x, fit.y)):
        if array is not None:
            rows = np.asarray(array[:: len(array) // _ROWS + 1])
            content = zlib.crc32(f"{len(array)}".encode(), content)
            if rows.dtype.kind in "biuf":
                content = zlib.crc32(np.ascontiguousarray(rows).tobytes(), content)
    seeded = not fit.shuffle or tf.compat.v1.get_seed(1)[0] != NO_SEED
    other = (
        "" if seeded else "fit shuffles without a seed: call keras.utils.set_random_seed(n) first"
    )
    return Findings(again=False, other=other, content=content)


def draw(iterator: Any, batches: int) -> None:
    """Draws the batches of a step; raises StopIteration if there is none."""
    reporter.enter(PREPARING)  # a training that reads for hours is not stuck
    next(iterator)
    for _ in range(batches - 1):  # the last step may have fewer
        next(iterator, None)


class EarlierEpochs:
    """Reads the data of earlier epochs again."""

    def __init__(self, model: Any, fit: Any, data: Any, findings: Findings) -> None:
        """`fit` has the variables of Keras' `fit`."""
        self._model = model
        self._fit = fit
        self._data = data
        self._findings = findings

    def read(self, last: int, steps: int | None, says: bool, resumes: bool = True) -> None:
        """Reads the epochs before this one.

        Args:
            last: the epoch.
            steps: how many steps Keras began in each epoch, if it had to count them.
            says: whether to log how many batches are read.
            resumes: whether this fit goes on, and not a later one.
        """
        data = self._data
        epochs = range(self._fit.initial_epoch, last)
        again = self._findings.again or private_names.STEPS_PER_EPOCH.of(data) is not None
        ends = None
        if private_names.NUM_BATCHES.of(data) is None:
            ends = steps
            again |= steps is None
        batches = len(epochs) * (data.num_batches or (steps or 1) - 1)
        if again and batches and says:
            warn("reads %s batches of the data again, which depend on those before", batches)
        validation = self._validation()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras has said that the data ran out
            for epoch in epochs:
                self._read_epoch(data, again, ends)
                if validation and private_names.VALIDATES.of(self._model)(
                    epoch, self._fit.validation_freq
                ):
                    validation.reset()
                    self._read_epoch(validation, True, None)
        if validation and resumes:
            private_names.VALIDATION_DATA.set(self._model, validation)

    def _read_epoch(self, data: Any, again: bool, ends: int | None) -> None:
        count = self._model.steps_per_execution
        with private_names.STOPS_AT_THE_END.of(data)():
            for step in data:
                if again:
                    draw(step[-1], count)
                elif ends is not None and step[0] + count >= ends:
                    raise StopIteration

    def _validation(self) -> Any:
        """Returns what makes the iterators of the validation, if earlier ones matter; else None."""
        fit = self._fit
        if fit.validation_data is None:
            return None
        x, y, weight = keras.utils.unpack_x_y_sample_weight(fit.validation_data)
        if isinstance(x, tf.data.Dataset):
            if not look_through(x).shuffles:
                return None
        elif not isinstance(x, keras.utils.PyDataset):
            return None
        return type(self._data)(
            x=x,
            y=y,
            sample_weight=weight,
            batch_size=fit.validation_batch_size or fit.batch_size,
            distribute_strategy=self._model.distribute_strategy,
            steps_per_execution=self._model.steps_per_execution,
            steps_per_epoch=fit.validation_steps,
            shuffle=False,
        )
