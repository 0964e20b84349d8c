"""Hides matplotlib from what has this folder on PYTHONPATH: see hidden/__init__.py."""

raise ImportError("hidden from this test's programs")
