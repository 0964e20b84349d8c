"""Keras 3's `fit`, `evaluate` and `predict` on several workers, and the two strategies for it.

`patches` replaces methods of Keras and TensorFlow. It lists each of them and the reason.
"""
