"""Python runs this when it starts: it replaces TensorFlow's classes once TensorFlow is imported."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder

FOLDER = os.path.dirname(os.path.abspath(__file__))


def load(spec: ModuleSpec | None) -> None:
    """Imports a module from where it was found, if it was."""
    if spec and spec.loader:
        sys.modules[spec.name] = module = util.module_from_spec(spec)
        spec.loader.exec_module(module)


package = os.path.dirname(FOLDER)
if not util.find_spec("slurm_resolver"):  # the program's Python does not have it
    load(
        util.spec_from_file_location(
            "slurm_resolver",
            os.path.join(package, "__init__.py"),
            submodule_search_locations=[package],
        )
    )

from slurm_resolver.pythonpath import HOOK, VARIABLE  # noqa: E402 (see above)

if os.environ.get(VARIABLE):
    with suppress(ImportError):  # TensorFlow requires wrapt: without it, there is no TensorFlow
        import wrapt

        wrapt.register_post_import_hook(HOOK, "tensorflow")
# The sitecustomize that Python would have run without this folder.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != FOLDER]
load(PathFinder.find_spec("sitecustomize"))
