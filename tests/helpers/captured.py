"""The type of the fixtures `capsys` and `capfd`."""

from __future__ import annotations

import pytest

Captured = pytest.CaptureFixture[str]
