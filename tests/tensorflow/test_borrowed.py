"""A private name that Keras or TensorFlow lacks is an error of `fit`, and nothing is changed."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Set

import pytest

import slurm_resolver
from slurm_resolver.errors import KerasError, ResumeError

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from slurm_resolver.tf import gpus, server  # noqa: E402
from slurm_resolver.tf.keras import borrowed, patches  # noqa: E402
from slurm_resolver.tf.training import checkpoint  # noqa: E402

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(keras.__version__.startswith("2."), reason="this TensorFlow has Keras 2"),
]

FOLDER = Path(slurm_resolver.__file__).parent / "tf"
CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def needed_by(*purposes: str) -> List[Any]:
    """Returns the names that this version has; `test_all_names_are_there` tells of the others."""
    found = [name for name in borrowed.table if name.of_instances or name.find() is not None]
    return [name for name in found if name.needed_by in purposes]


def remove(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the table look for a name that does not exist, as if it had another one now."""
    monkeypatch.setattr(name, "name", f"{name.name}_of_another_version")


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets a test prepare Keras as if it were the first; the calls of a model are restored."""
    for module, function in ((patches, "_patch"), (borrowed, "fit_problem")):
        uncached = getattr(module, function).__wrapped__
        monkeypatch.setattr(module, function, functools.cache(uncached))
    for call in CALLS:
        monkeypatch.setattr(keras.Model, call, getattr(keras.Model, call))
    before = [name.find() for name in borrowed.table]
    yield
    monkeypatch.undo()
    assert [name.find() for name in borrowed.table] == before


def new_strategy() -> Any:
    """Returns a strategy for which models are prepared like for one of several workers."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    strategy.of_several = True
    patches.prepare(strategy)
    return strategy


def new_model() -> Any:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "name", [name for name in needed_by(borrowed.FIT) if not name.of_instances], ids=str
)
def test_a_name_that_is_missing_is_an_error_of_fit(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [other for other in borrowed.table if other is not name]
    before = [other.find() for other in others]
    remove(name, monkeypatch)
    for _ in range(2):  # a second strategy does not change more than the first
        strategy = new_strategy()
        with strategy.scope():
            model = new_model()
        for call in CALLS:
            with pytest.raises(KerasError) as caught:
                getattr(model, call)(tf.ones((4, 1)))
            told = str(caught.value)
            assert f" has no {name.place.replace(':', '.')}, which fit on several" in told
            assert re.search("pip install '(keras|tensorflow)<[0-9.]+', or a newer", told)
        assert [other.find() for other in others] == before
    assert not hasattr(keras.Model.fit.__wrapped__, borrowed.REPLACED)  # replaced once


# What has the attributes that only instances have, by class.
INSTANCES: Dict[str, Callable[[], Any]] = {
    "TFEpochIterator": lambda: borrowed.READ_DATA.owner()(
        tf.distribute.get_strategy(), x=tf.ones((4, 1))
    ),
    "LossFunctionWrapper": keras.losses.MeanSquaredError,
    "MeanMetricWrapper": keras.metrics.MeanSquaredError,
    "Optimizer": keras.optimizers.SGD,
    "Function": lambda: tf.function(lambda: 1),
    "OwnedIterator": lambda: iter(tf.data.Dataset.range(1)),
    "DistributedDataset": lambda: tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"]
    ).experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)),
    "_BatchDataset": lambda: tf.data.Dataset.range(4).batch(2),
}


@pytest.mark.parametrize(
    "name",
    [name for name in needed_by(borrowed.FIT, borrowed.RESUME) if name.of_instances],
    ids=str,
)
def test_an_attribute_that_instances_lack_is_an_error_where_it_is_used(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing = INSTANCES[name.place.split(":")[1].split("(")[0].split(".")[-1]]()
    name.of(thing, None)
    remove(name, monkeypatch)
    with pytest.raises((KerasError, ResumeError), match=r"has no .* pip install "):
        name.of(thing, None)


@pytest.mark.parametrize("name", needed_by(borrowed.BACKUP), ids=str)
def test_a_name_that_is_missing_is_an_error_of_a_callback(
    name: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    callback = slurm_resolver.BackupAndResume(str(tmp_path / "checkpoints"))
    model = new_model()
    remove(name, monkeypatch)
    with pytest.raises(
        KerasError, match=f"has no {re.escape(name.place.replace(':', '.'))}, which"
    ):
        model.fit(tf.ones((4, 1)), tf.ones((4, 1)), verbose=0, callbacks=[callback])


@pytest.mark.parametrize(
    "name", [name for name in needed_by(borrowed.RESUME) if not name.of_instances], ids=str
)
def test_a_name_that_is_missing_is_an_error_where_it_is_used(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(name, monkeypatch)
    with pytest.raises(ResumeError, match=r"TensorFlow .* has no .* pip install 'tensorflow<"):
        name.get()


@pytest.mark.parametrize("name", needed_by(borrowed.OPTIONAL), ids=str)
def test_nobody_misses_an_optional_name(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = borrowed.STOP_PREEMPTION
    monkeypatch.setattr(stop.owner(), stop.name, stop.get())  # restores it
    remove(name, monkeypatch)
    gpus._known_gpus()
    server._let_coordinators_end()
    checkpoint._let_others_end()
    assert name.of(object(), None) is None


def test_all_names_are_there() -> None:
    assert [name.place for name in borrowed.table if name.is_missing()] == []


class Thing:
    def method(self, first: int, second: int = 2, *others: int) -> None:
        local = first + second
        del local


@pytest.mark.parametrize(
    ("place", "missing"),
    [
        ("things:Thing", False),
        ("things:Other", True),
        ("others:Thing", True),
        ("things:Thing.method", False),
        ("things:Thing.other", True),
        ("things:Thing.__call__", True),  # a class itself can be called
        ("things:Thing.method(self, first)", False),
        ("things:Thing.method(self)", True),  # it needs another one
        ("things:Thing.method(self, one)", True),
        ("things:Thing().attribute", False),  # an instance tells
        ("things:Other().attribute", True),
        ("things:Thing.method().local", False),
        ("things:Thing.method().other", True),
    ],
)
def test_where_a_name_is(place: str, missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "things", SimpleNamespace(Thing=Thing))
    assert borrowed.Name(borrowed.FIT, place).is_missing() is missing


def test_an_attribute_is_only_set_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "things", SimpleNamespace(Thing=Thing))
    thing = Thing()
    name = borrowed.Name(borrowed.FIT, "things:Thing().attribute")
    assert name.of(object(), 5) == 5
    with pytest.raises(KerasError):
        name.of(thing, 5)
    with pytest.raises(KerasError):
        name.set(thing, 1)
    thing.attribute = 0  # type: ignore[attr-defined]
    name.set(thing, 1)
    assert name.of(thing) == 1


PRIVATE = re.compile("_[a-z][a-z0-9_]*")
PRIVATE_MODULES = re.compile(r"keras\.(src|_)|tensorflow\.\w")
OF_PYTHON = {"sys._getframe", "os._exit"}
OF_THE_PACKAGE = {
    "_replace",  # of a named tuple
    "_layout_by_hooks",  # of a base class in another module
}


def uses(source: str) -> Set[str]:
    """Returns the private names of others that a module uses."""
    tree = ast.parse(source)
    own = set(OF_THE_PACKAGE)
    texts: Set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("self."):
            own.update([node.attr] if isinstance(node.ctx, ast.Store) else [])
        elif isinstance(node, ast.JoinedStr):
            texts.update(node.values)
    return {use for node in ast.walk(tree) if node not in texts for use in used_by(node, own)}


def used_by(node: ast.AST, own: Set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
        yield from filter(PRIVATE_MODULES.match, modules)
    elif isinstance(node, ast.ImportFrom) and PRIVATE_MODULES.match(node.module or ""):
        yield str(node.module)
    elif isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
        inherited = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
        if (inherited or node.attr not in own) and ast.unparse(node) not in OF_PYTHON:
            yield ast.unparse(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        private = PRIVATE.fullmatch(node.value) and node.value not in own
        if private or re.fullmatch(rf"({PRIVATE_MODULES.pattern})[\w.]*", node.value):
            yield node.value


MODULES = sorted(path for path in FOLDER.rglob("*.py") if path.name != "borrowed.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_the_table_has_every_private_name(path: Path) -> None:
    assert uses(path.read_text()) == set(), "use these through slurm_resolver/tf/keras/borrowed.py"


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("import tensorflow as tf\ntf.data.Dataset", set()),
        ("from keras import layers", set()),
        ("from keras.src import backend", {"keras.src"}),
        ("import tensorflow.python.eager.context", {"tensorflow.python.eager.context"}),
        ("from tensorflow.core.framework import types_pb2", {"tensorflow.core.framework"}),
        ("sys.modules.get('keras._tf_keras.keras')", {"keras._tf_keras.keras"}),
        ("model._flatten_layers()", {"model._flatten_layers"}),
        ("model._initial_epoch = 1", {"model._initial_epoch"}),
        ("getattr(thing, '_fn', None)", {"_fn"}),
        ("class A(B):\n def _c(self):\n  super()._c()", {"super()._c"}),
        ("class A:\n def __init__(self):\n  self._b = 1\n def c(self, a):\n  return a._b", set()),
        ("sys._getframe(1)", set()),
    ],
)
def test_what_counts_as_a_use(source: str, used: Set[str]) -> None:
    assert uses(source) == used


def test_every_name_of_the_table_is_used() -> None:
    text = "".join(path.read_text() for path in MODULES)
    constants = {key: value for key, value in vars(borrowed).items() if key.isupper()}
    names = {key for key, value in constants.items() if isinstance(value, borrowed.Name)}
    assert len(names) == len(borrowed.table)
    assert {key for key in names if f"borrowed.{key}" not in text} == set()
