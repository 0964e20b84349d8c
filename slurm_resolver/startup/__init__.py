"""The folder that `slurm-resolver exec` puts on PYTHONPATH to replace TensorFlow's classes.

Python imports the module `sitecustomize` at its start. The one in this folder does not import
TensorFlow; it acts after the program has imported it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not typing's: every Python program of the step imports this
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Callable, Dict, Mapping, Optional, Sequence

VARIABLE = "SLURM_RESOLVER_REPLACE"


def variables(names: Sequence[str], environ: Mapping[str, str]) -> Dict[str, str]:
    """Returns the variables with which Python replaces "strategy", "resolver" or both."""
    folder = os.path.dirname(os.path.abspath(__file__))
    before = environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join([folder, *filter(None, [before])]),
        VARIABLE: ",".join(names),
    }


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Calls `action` with a top-level module, at once or when it is imported.

    The import raises the exceptions of `action`.
    """
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder:
    """Finds the module with the other finders, and makes its loader call the action."""

    def __init__(self, name: str, action: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._action = action
        self._asking = False  # whether it asks all finders, itself included

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
            spec = next(filter(None, found), None)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        return spec

    def _act_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Removed only now: a program may find the module without importing it.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._action(module)

        loader.exec_module = exec_module
