"""Keras' own tests that pass in one process also pass in the strategy's scope on two workers.

They run only with KERAS_SOURCES=installed, or a folder with keras/src/…_test.py, because they take
nine minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from folders import quiet_helper
from keras_outcomes import outcomes
from told_by_workers import run

pytestmark = pytest.mark.skipif("KERAS_SOURCES" not in os.environ, reason="KERAS_SOURCES=installed")

FILES = [
    "trainers/trainer_test.py",
    "trainers/epoch_iterator_test.py",
    "callbacks/backup_and_restore_test.py",
    "callbacks/early_stopping_test.py",
    "callbacks/csv_logger_test.py",
    "callbacks/lambda_callback_test.py",
    "callbacks/learning_rate_scheduler_test.py",
    "callbacks/model_checkpoint_test.py",
    "callbacks/monitor_callback_test.py",
    "callbacks/reduce_lr_on_plateau_test.py",
    "callbacks/tensorboard_test.py",
    "callbacks/terminate_on_nan_test.py",
    "callbacks/swap_ema_weights_test.py",  # the last: one of its tests changes TensorFlow's devices
]
# why a test fails on two workers, by its name without file and class
KNOWN = {
    "test_cooldown": "the test calls np.array() for a distributed variable, which is TensorFlow's",
    "test_custom_summary": "one worker writes the summaries",
    "test_swap_ema_weights_with_tf_distribute": "the test makes a strategy of its own",
    "test_retracing": "the first step builds the model, which TensorFlow traces twice",
}


def test_what_passes_alone_passes_on_two_workers(tmp_path: Path) -> None:
    program = [*quiet_helper("keras_lockstep.py"), str(tmp_path / "errors"), *FILES]
    for workers in (0, 2):
        run(
            program,
            tmp_path,
            workers,
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
            TF_ENABLE_ONEDNN_OPTS="0",
            KERAS_BACKEND="tensorflow",
        )
    alone, *both = outcomes(tmp_path, ["errors.alone", "errors.0", "errors.1"])
    passed = {test for test, error in alone.items() if not error}
    assert passed
    for errors in both:
        assert set(errors) == passed
        wrong = {test.rpartition("::")[2]: error for test, error in errors.items() if error}
        assert {test: error for test, error in wrong.items() if test not in KNOWN} == {}
