"""Marks of the tests that need Keras 3; without Keras, they are skipped."""

from __future__ import annotations

import pytest

from slurm_resolver.start.keras_version import keras_problem

VERSION = pytest.importorskip("keras").__version__
KERAS_3 = pytest.mark.skipif(
    VERSION.startswith("2.") or bool(keras_problem(VERSION)),
    reason="this Keras is Keras 2, or trains wrongly",
)
KERAS_3_ON_SLURM = [pytest.mark.newest, KERAS_3]  # do not depend on the version of Slurm
