"""Fixtures of the tests with TensorFlow."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from captured import set_all
from folders import HELPERS

NODES = "t02n13,t02n41,t02n43"


class WithoutTensorFlow(pytest.Module):
    """A file of this folder where TensorFlow, which it imports, is not installed."""

    def collect(self) -> Any:
        pytest.skip("TensorFlow is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Any:
    """Skips each file as a whole if TensorFlow is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        return WithoutTensorFlow.from_parent(parent, path=module_path)
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks every test below this folder."""
    item.add_marker("tensorflow")


@pytest.fixture(autouse=True, scope="module")
def _without_what_keras_need_not_import() -> Iterator[None]:
    """Hides optional packages of Keras, because TensorFlow starts a third faster without them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(HELPERS / "hidden"), prepend=os.pathsep)
        yield


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that sets the variables of a task, and others that a test passes."""
    monkeypatch.delenv("SLURM_RESOLVER_GPUS", raising=False)

    def set_variables(rank: int, counts: str | None, tasks: int, **more: str) -> None:
        values = {
            "SLURM_PROCID": str(rank),
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_STEP_NODELIST": NODES,
            **({"SLURM_STEP_TASKS_PER_NODE": counts} if counts else {}),
            **more,
        }
        set_all(monkeypatch, values)
        # makes monkeypatch restore the variables that the constructor sets
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_RESOLVER_GPUS", "TF_FORCE_GPU_ALLOW_GROWTH"):
            if name not in values:
                monkeypatch.setenv(name, "")
                monkeypatch.delenv(name)

    return set_variables
