"""How `check --speed` measures GPUs: here the CPU stands in for one."""

from __future__ import annotations

import json

import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from slurm_resolver.tf import device_speed  # noqa: E402

pytestmark = pytest.mark.tensorflow


def test_devices_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpus = tf.config.list_logical_devices("CPU")
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: cpus if kind == "GPU" else []
    )
    monkeypatch.setattr(device_speed, "_TRY_SECONDS", 0.001)
    monkeypatch.setattr(device_speed.measure, "__defaults__", (64, 2**12))
    device_speed.main()
    ((computed, copied),) = json.loads(capsys.readouterr().out)["gpus"]
    assert computed > 0
    assert copied > 0


def test_a_machine_without_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
    device_speed.main()
    assert json.loads(capsys.readouterr().out) == {"gpus": []}
