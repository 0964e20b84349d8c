"""The types of pytest's fixtures `capsys`, `capfd`, `caplog` and `monkeypatch`."""

from __future__ import annotations

import pytest

Captured = pytest.CaptureFixture[str]
Logged = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch
