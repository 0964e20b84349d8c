"""The types of pytest's fixtures `capsys`, `capfd`, `caplog` and `monkeypatch`, and their uses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

Captured = pytest.CaptureFixture[str]
Logged = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch


def set_all(monkeypatch: Patch, variables: Mapping[str, str]) -> None:
    """Sets variables of this process until the test has ended."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
