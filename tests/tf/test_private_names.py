"""A private name that Keras or TensorFlow lacks is an error of `fit`, and nothing is changed."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest
import tensorflow as tf
from captured import Patch
from keras_3 import keras

import slurm_resolver
from slurm_resolver.errors import KerasError, ResumeError
from slurm_resolver.tf import gpus, private_names, server
from slurm_resolver.tf.hooks import HOOKS
from slurm_resolver.tf.keras import patches
from slurm_resolver.tf.training import checkpoint, exactness

CALLS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
)
OF_DATASETS = (private_names.ORIGINAL_DATASET, private_names.BATCH_SIZE)


def in_turn(wanted: Callable[[Any], bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name",
        [*filter(wanted, private_names.table)],
        ids=lambda name: name.place,
    )


@pytest.fixture
def remove(monkeypatch: Patch) -> Any:
    """Lets the table look for a name that does not exist, as if it had another one now."""
    return lambda name: monkeypatch.setattr(name, "name", f"{name.name}_of_another_version")


@pytest.fixture
def unchanged(monkeypatch: Patch) -> Iterator[None]:
    """Lets a test prepare Keras as if it were the first, and asserts that it replaces nothing.

    Only the calls of a model are replaced; they are restored.
    """
    for module, function in ((patches, "_patch"), (private_names, "fit_problem")):
        monkeypatch.setattr(
            module, function, functools.cache(getattr(module, function).__wrapped__)
        )
    for call in CALLS:
        monkeypatch.setattr(keras.Model, call, getattr(keras.Model, call))
    before = [name.find() for name in private_names.table]
    yield
    monkeypatch.undo()
    assert [name.find() for name in private_names.table] == before


@pytest.mark.usefixtures("unchanged")
@in_turn(lambda name: type(name) is private_names.Name and not name.of_instances)
def test_a_name_that_is_missing_is_an_error_of_fit(name: Any, remove: Any) -> None:
    remove(name)
    missing = re.escape(name.place).replace(":", ".")
    for _ in range(2):  # a second strategy does not change more than the first
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        strategy.of_several = True
        patches.prepare(strategy)
        with strategy.scope():
            model = keras.Sequential()
        for call in CALLS:
            with pytest.raises(
                KerasError, match=f"{missing}, which fit .* '(keras|tensorflow)<[0-9.]+'"
            ):
                getattr(model, call)(None)
    assert not hasattr(keras.Model.fit.__wrapped__, private_names.REPLACED)  # replaced once


@in_turn(lambda name: isinstance(name, private_names.ResumeName) and name not in OF_DATASETS)
def test_a_name_that_is_missing_is_an_error_of_a_callback(
    name: Any, remove: Any, tmp_path: Path
) -> None:
    callback = slurm_resolver.BackupAndResume(str(tmp_path))
    data = tf.ones([1, 1])
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    remove(name)
    missing = re.escape(name.place).replace(":", ".")
    with pytest.raises(ResumeError, match=f"has no {missing}, which .* pip install '"):
        model.fit(data, data, callbacks=[callback])


@in_turn(lambda name: not isinstance(name, private_names.OptionalName) and name.of_instances)
def test_an_attribute_that_is_missing_is_an_error_where_it_is_used(name: Any, remove: Any) -> None:
    remove(name)
    with pytest.raises((KerasError, ResumeError), match=r" has no .* pip install "):
        name.set(SimpleNamespace(), 1)


@in_turn(lambda name: isinstance(name, private_names.OptionalName))
def test_nobody_misses_an_optional_name(name: Any, remove: Any) -> None:
    remove(name)
    gpus._known_gpus()
    name.replace(server._stop)
    name.replace(checkpoint._watch_quietly, owner=checkpoint._QuietHandler)
    before = exactness.function_names()
    tf.function(tf.ones)([])
    assert not exactness.problem_of_step(before, tf.train.Checkpoint())


def test_all_names_are_there() -> None:
    assert [name.place for name in private_names.table if name.is_missing()] == []


def test_a_method_with_other_parameters_is_missing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(private_names, "table", [])
    assert private_names.Name("keras:Model.quantize(self, other)").is_missing()


OWN = re.compile(r"(?m)def (_\w+)|self\.(_\w+)(?=[^(=\n]* = )|^ +(_\w+): ")
USED = re.compile(
    r"(super\(\)\._[a-z]\w*|keras\.(?:src|_[a-z])\w*|tensorflow\.(?:python|core|_[a-z])\w*)|[.'](_[a-z]\w*)\b"
)
ALLOWED = {
    "_getframe",  # of Python
    "_exit",
    "_core",  # of NumPy's pickled arrays
    "_reconstruct",
    "_replace",
    *HOOKS,  # which are refused
}


def uses(source: str) -> set[str]:
    """Returns the private names of others that a module uses."""
    text = ast.unparse(ast.parse(source))  # without comments
    allowed = ALLOWED.union(*OWN.findall(text))
    return {whole or name for whole, name in USED.findall(text) if whole or name not in allowed}


MODULES = Path(slurm_resolver.__file__).parent.glob("tf/**/*.py")
SOURCES = {
    "/".join(path.parts[-2:]): path.read_text() for path in MODULES if path.stem != "private_names"
}


@pytest.mark.parametrize("module", SOURCES)
def test_the_table_has_every_private_name(module: str) -> None:
    assert uses(SOURCES[module]) == set(), "use these through slurm_resolver/tf/private_names.py"


def test_every_name_of_the_table_is_used() -> None:
    text = "".join(SOURCES.values())
    used = [
        getattr(private_names, key) for key in re.findall(r"private_names\.([A-Z_0-9]+)\b", text)
    ]
    assert [name.place for name in private_names.table if name not in used] == []
