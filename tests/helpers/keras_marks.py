"""Marks of the tests that need Keras 3; without Keras, they are skipped."""

from __future__ import annotations

import pytest

VERSION = pytest.importorskip("keras").__version__
KERAS_3 = pytest.mark.skipif(VERSION.startswith("2."), reason="this TensorFlow has Keras 2")
KERAS_3_ON_SLURM = [pytest.mark.newest, KERAS_3]  # do not depend on the version of Slurm
