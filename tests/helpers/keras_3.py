"""Keras 3, for tests that import it. They are skipped with Keras 2, which an old TensorFlow has."""

from __future__ import annotations

from typing import Any

import pytest

keras: Any = pytest.importorskip(
    "keras",
    minversion="3.10",
    reason="this TensorFlow has Keras 2",
)
