"""`exec --replace-strategy` replaces a class in a program, with a stand-in for TensorFlow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from local_run import captured

from slurm_resolver import pythonpath

# The strategy is in slurm_resolver.tf, which a stand-in also replaces.
TENSORFLOW = "print('tensorflow is imported')\n"
REPLACE = """
import os, sys, types
module = types.ModuleType("slurm_resolver.tf.replace")
module.replace = lambda tensorflow: print(
    "replaced", os.environ["SLURM_RESOLVER_REPLACE"], "of", "tensorflow" in sys.modules
)
sys.modules["slurm_resolver.tf"] = types.ModuleType("slurm_resolver.tf")
sys.modules["slurm_resolver.tf.replace"] = module
"""
# as exec sets them
VARIABLES = {
    "PATH": os.environ["PATH"],
    pythonpath.VARIABLE: "strategy",
    "PYTHONPATH": pythonpath.FOLDER,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    return tmp_path


def run(folder: Path, program: str) -> str:
    """Returns the output of Python with the variables of exec."""
    done = captured(
        [sys.executable, "-c", REPLACE + program],
        env={**VARIABLES, "PYTHONPATH": f"{pythonpath.FOLDER}:{folder}"},
    )
    assert not done.stderr
    return done.stdout


def test_the_class_is_replaced_when_tensorflow_has_been_imported(folder: Path) -> None:
    look = "import importlib.util; print(importlib.util.find_spec('tensorflow').name); "
    assert (
        run(folder, look + "import tensorflow, tensorflow; print('on')")
        == "tensorflow\ntensorflow is imported\nreplaced strategy of True\non\n"
    )


def test_the_sites_own_sitecustomize_runs_as_ever(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("print('of the site', __name__, __file__)\n")
    file = folder / "sitecustomize.py"
    assert (
        run(
            folder,
            "import sitecustomize, sys; print([name for name in sys.path if 'pythonpath' in name])",
        )
        == f"of the site sitecustomize {file}\n[]\n"
    )


def test_a_python_without_this_package_finds_it(tmp_path: Path) -> None:
    """For example, slurm-resolver is installed in a separate environment."""
    done = captured(
        [
            sys.executable,
            "-S",  # without site-packages
            "-c",
            "import sitecustomize, slurm_resolver.errors as found; print(found.__name__)",
        ],
        env=VARIABLES,
        cwd=tmp_path,
    )
    assert done.stdout == "slurm_resolver.errors\n", done.stderr
