"""Keras' own tests give in the strategy's scope on two workers what they give in one process.

For KERAS_SOURCES=installed, as Keras' wheel holds its tests, or the folder of a checkout of the
version that is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from folders import HELPERS, ROOT

SOURCES = os.environ.get("KERAS_SOURCES", "")
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not SOURCES, reason="KERAS_SOURCES=installed, or a folder"),
]

FILES = [
    "trainers/trainer_test.py",
    "trainers/compile_utils_test.py",
    "trainers/epoch_iterator_test.py",
    "callbacks/early_stopping_test.py",
    "callbacks/learning_rate_scheduler_test.py",
]
# by a test's name without its file and class: why it fails on two workers
KNOWN: Dict[str, str] = {
    "test_compute_loss_no_training_backwards_compatibility": "…",
    "test_evaluate_sparse_scipy_eager": "…",
    "test_evaluate_with_custom_compute_loss": "…",
    "test_evaluate_with_custom_test_step_dict": "…",
    "test_evaluate_with_custom_test_step_flat": "…",
    "test_fit_sparse_scipy_graph": "…",
    "test_fit_with_custom_train_step": "…",
    "test_metric_update_in_compute_loss": "…",
    "test_nested_inputs": "…",
    "test_predict_sparse_scipy_eager": "…",
    "test_predict_sparse_scipy_graph": "…",
    "test_trainer_with_raggeds_functional": "…",
    "test_trainer_with_raggeds_layer": "…",
    "test_trainer_with_raggeds_model": "…",
    "test_dict_output_case0": "…",
    "test_dict_output_case1": "…",
    "test_list_loss_dict_data": "…",
    "test_list_output_case0": "…",
    "test_list_output_case1": "…",
    "test_single_output_case_with_crossentropy_loss": "…",
    "test_struct_loss": "…",
    "test_struct_loss_indice_path": "…",
    "test_struct_loss_namedtuple": "…",
    "test_struct_loss_valid_weights": "…",
}


def outcomes(path: Path) -> Dict[str, Dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return {record["test"]: record for record in map(json.loads, lines)}


def test_what_passes_alone_passes_on_two_workers(tmp_path: Path) -> None:
    output, sources = tmp_path / "workers", SOURCES
    if sources != "installed":
        sources = str(Path(ROOT, sources))
    command = [sys.executable, "-W", "ignore", str(HELPERS / "keras_lockstep.py"), sources]
    subprocess.run([*command, str(output), *FILES], timeout=1800, check=True)
    alone = outcomes(Path(f"{output}.alone"))
    workers = outcomes(output)
    passed = {test for test, record in alone.items() if record["outcome"] == "passed"}
    assert passed
    assert passed == set(workers)
    wrong = {
        test.rpartition("::")[2]: record["error"]
        for test, record in workers.items()
        if record["outcome"] != "passed"
    }
    assert {test: error for test, error in wrong.items() if test not in KNOWN} == {}
    assert sorted(KNOWN.keys() - wrong.keys()) == []
