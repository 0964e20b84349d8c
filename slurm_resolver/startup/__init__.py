"""The folder that `slurm-resolver exec` puts on PYTHONPATH to replace TensorFlow's classes.

Python imports `sitecustomize` when it starts. The one in this folder does not import TensorFlow: it
replaces the classes after the program has imported TensorFlow.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not typing's: every Python program of the step imports this
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Callable

VARIABLE = "SLURM_RESOLVER_REPLACE"  # "strategy", "resolver" or both, separated by a comma
FOLDER = os.path.dirname(os.path.abspath(__file__))


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Calls `action` with a top-level module, at once or when it is imported.

    The import raises the exceptions of `action`.
    """
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Finds the module by the other finders, and makes its loader call the action."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._action = action
        self._asking = False  # whether it asks all finders, itself included

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._name or self._asking:
            return None
        from importlib.util import find_spec

        self._asking = True
        try:
            spec = find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._action(module)

        loader.exec_module = exec_module
