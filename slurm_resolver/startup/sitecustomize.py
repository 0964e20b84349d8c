"""Python runs this when it starts: it replaces TensorFlow's classes once TensorFlow is imported."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

FOLDER = os.path.dirname(os.path.abspath(__file__))


def load(spec: ModuleSpec | None) -> None:
    """Imports a module from where it was found, if it was."""
    if spec is not None and spec.loader is not None:
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def replace(tensorflow: object) -> None:
    """Replaces the classes that the variable names."""
    importlib.import_module("slurm_resolver.tf.replace").replace(os.environ[VARIABLE].split(","))


package = os.path.dirname(FOLDER)
name = "slurm_resolver"
file = os.path.join(package, "__init__.py")
if importlib.util.find_spec(name) is None:  # the program's Python does not have the package
    folders = [package]
    load(importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders))

from slurm_resolver.startup import VARIABLE, when_imported  # noqa: E402 (see above)

if os.environ.get(VARIABLE):
    when_imported("tensorflow", replace)
# The sitecustomize that Python would have run without this folder.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != FOLDER]
load(PathFinder.find_spec("sitecustomize"))
