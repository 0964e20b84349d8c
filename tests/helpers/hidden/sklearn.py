"""Hides scikit-learn from programs with this folder on PYTHONPATH; see hidden/__init__.py."""

raise ImportError("hidden from this test's programs")
