"""Python runs this at its start: it replaces TensorFlow's classes once TensorFlow is imported."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

FOLDER = os.path.dirname(os.path.abspath(__file__))


def load_package() -> None:
    """Loads slurm_resolver from the folder above if the program's Python does not have it."""
    if importlib.util.find_spec("slurm_resolver") is None:
        package = os.path.dirname(FOLDER)
        spec = importlib.util.spec_from_file_location(
            "slurm_resolver",
            os.path.join(package, "__init__.py"),
            submodule_search_locations=[package],
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["slurm_resolver"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def replace(tensorflow: object) -> None:
    """Replaces the classes that the variable names."""
    importlib.import_module("slurm_resolver.tf.replace").replace(os.environ[VARIABLE].split(","))


def run_next() -> None:
    """Runs the sitecustomize that Python would have run without this folder."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != FOLDER]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


load_package()

from slurm_resolver.startup import VARIABLE, when_imported  # noqa: E402 (see load_package)

if os.environ.get(VARIABLE):
    when_imported("tensorflow", replace)
run_next()
