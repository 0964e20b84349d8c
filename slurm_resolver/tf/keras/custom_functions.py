"""Refuses a model whose steps the strategy does not take.

Keras lets a model replace the functions that take its steps: by a `make_train_function` of its own,
or by an assignment to `train_function`. Such a function gets this package's shares of a batch, and
each worker would train alone. `train_step` is the place for code of one's own.
"""

from __future__ import annotations

import weakref

from slurm_resolver.errors import FitError
from slurm_resolver.tf import private_names
from slurm_resolver.tf.keras.protocols import Model
from slurm_resolver.tf.keras.strategy_registry import is_ours
from slurm_resolver.tf.private_names import Method

# The kind of steps that each method of a model takes.
KIND = {
    "fit": "train",
    "evaluate": "test",
    "predict": "predict",
    "train_on_batch": "train",
    "test_on_batch": "test",
    "predict_on_batch": "predict",
}
# The kinds of steps for which a strategy of this package has made a model's function.
_made: weakref.WeakKeyDictionary[Model, set[str]] = weakref.WeakKeyDictionary()


def make_function(original: Method, model: Model, force: bool = False) -> object:
    """Makes a model's function for a kind of steps, which a strategy of this package takes."""
    strategy = model.distribute_strategy
    if not is_ours(strategy):
        return original(model, force)
    _, kind, _ = original.__name__.split("_")
    name = f"{kind}_function"
    if force or getattr(model, name) is None:
        setattr(model, name, strategy.make_function(model, kind))
        _made.setdefault(model, set()).add(kind)
    _check_made(kind, model)
    function = getattr(model, name)
    if strategy.unread and hasattr(function, "choose_data"):
        function.choose_data(strategy.unread)
    strategy.unread = None
    return function


def _check_made(kind: str, model: Model) -> None:
    """Raises FitError if a model would take steps by a function of its own."""
    name = f"make_{kind}_function"
    if kind not in _made.get(model, ()):
        raise FitError(
            f"the model {model.name!r}: with its own {name}() or {kind}_function, each worker "
            f"would run its steps alone. Override {kind}_step() instead, which Keras calls for "
            f"each batch, or let {name}() call super().{name}() and then wrap "
            f"self.{kind}_function."
        )


def check_functions(method: str, model: Model) -> None:
    """Lets a method of a model raise FitError if the model makes the function of its steps."""
    kind = KIND[method]

    def make_and_check(make: Method, *args: object, **kwargs: object) -> object:
        function = make(*args, **kwargs)
        _check_made(kind, model)
        return function

    # One that is not the model's own is replaced already.
    private_names.replace(model, f"make_{kind}_function", make_and_check)
