"""Reads the data of the epochs that were trained before, as Keras' `fit` has read them.

Keras' own loop over the epochs runs again, without the steps: it makes the same iterators, and
calls the hooks of a PyDataset. What each iterator has yielded is drawn again where that matters.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from slurm_resolver.coordination.progress import PREPARING
from slurm_resolver.log import warn
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.protocols import EpochIterator, Model
from slurm_resolver.tf.keras.sharing import NO_SEED, is_one_of
from slurm_resolver.tf.reporter import reporter
from slurm_resolver.tf.training.dataset_graph import SEED, Findings, look_through

_ROWS = 1000  # of an array, which its checksum covers at most
_SOURCES = (private_names.GENERATOR, private_names.PY_DATASET)


def findings_of(data: EpochIterator, fit: SimpleNamespace) -> Findings:
    """Returns what is needed to resume reading the data of an epoch iterator.

    `data` makes Keras' iterators, and `fit` has the variables of Keras' `fit`.
    """
    # One iterator for all epochs continues where the epoch before has ended.
    again = private_names.STEPS_PER_EPOCH.of(data) is not None
    adapter = private_names.DATA_ADAPTER.of(data)
    if is_one_of(adapter, _SOURCES):
        return Findings(again=True)
    if isinstance(adapter, private_names.ARRAYS.get()):  # which their graph would contain
        seeded = not fit.shuffle or tf.compat.v1.get_seed(1)[0] != NO_SEED
        other = "" if seeded else f"fit shuffles without a seed: {SEED}"
        return Findings(again, other, _checksum(fit.x, fit.y))
    dataset = private_names.DISTRIBUTED_DATASET.of(data)
    dataset = getattr(dataset, "shares", dataset)  # of a `WorkerData`
    whole = private_names.ORIGINAL_DATASET.of(dataset, dataset)
    if not isinstance(whole, tf.data.Dataset):
        return Findings(again)
    findings = look_through(whole)
    # How TensorFlow distributes a dataset is not looked at.
    return findings._replace(again=again or findings.again or whole is not dataset)


def _checksum(*structures: object) -> int:
    """Returns a checksum of the numbers in arrays."""
    content = 0
    for array in tf.nest.flatten(structures):
        with contextlib.suppress(TypeError):  # None, or a sparse one, which has no length
            rows = np.asarray(array[:: len(array) // _ROWS + 1])
            if rows.dtype.kind in "biuf":
                content = zlib.crc32(rows.tobytes(), content)
    return content


def draw(iterator: Iterator[object], batches: int) -> None:
    """Draws the batches of a step; raises StopIteration if there is none."""
    reporter.enter(PREPARING)  # a training that reads for hours is not stuck
    next(iterator)
    for _ in range(batches - 1):  # the last step may have fewer
        next(iterator, None)


def read_earlier(
    model: Model,
    fit: SimpleNamespace,
    data: EpochIterator,
    again: bool,
    read: tuple[int, int],
    steps: int | None,
    says: bool,
) -> None:
    """Reads the data of earlier epochs again.

    Args:
        model: the model.
        fit: has the variables of Keras' `fit`.
        data: makes Keras' iterators.
        again: whether all batches must be drawn; else only iterators are made.
        read: how many epochs were read, and how many steps of the next one if the training ended
            there.
        steps: how many steps Keras began in each epoch, if it had to count them.
        says: whether to log how many epochs are read.
    """
    last, stop = read
    epochs = range(fit.initial_epoch, last + bool(stop))
    if not epochs:
        return
    if again and says:
        warn("reads the data of earlier epochs again, on which later ones depend: %s", len(epochs))
    validation = _validation_of(model, fit, data)
    validation_again = bool(validation) and findings_of(validation, fit).again
    for epoch in epochs:
        _read_epoch(data, again, steps, stop if epoch == last else 0)
        if validation and private_names.VALIDATES.of(model)(epoch, fit.validation_freq):
            validation.reset()
            _read_epoch(validation, validation_again)
    private_names.VALIDATION_DATA.set(model, validation)


def _read_epoch(data: EpochIterator, again: bool, steps: int | None = None, stop: int = 0) -> None:
    """Goes through an epoch: draws its batches if that matters, or if their number is not known.

    It ends after `stop` steps, if they are given, as a training that a callback has ended.
    """
    count = data.steps_per_execution
    ends = math.inf if private_names.DATA_ADAPTER.of(data).num_batches else steps
    with private_names.CATCH_STOP_ITERATION.of(data)():
        for step in data:
            if again or ends is None:
                draw(step[-1], count)
            elif step[0] + count >= ends:
                raise StopIteration
            if step[0] + count == stop:
                break


def _validation_of(model: Model, fit: SimpleNamespace, data: Any) -> Any:
    """Returns what makes the iterators of the validation, as Keras does; None without one."""
    if fit.validation_data is None:
        return None
    x, y, weight = keras.utils.unpack_x_y_sample_weight(fit.validation_data)
    return type(data)(
        x=x,
        y=y,
        sample_weight=weight,
        batch_size=fit.validation_batch_size or fit.batch_size,
        distribute_strategy=model.distribute_strategy,
        steps_per_execution=model.steps_per_execution,
        steps_per_epoch=fit.validation_steps,
        shuffle=False,
    )
