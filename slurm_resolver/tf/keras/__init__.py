"""Keras 3's `fit`, `evaluate` and `predict` on several workers, and the two strategies for it.

Only `patches` changes Keras and TensorFlow. It lists each change and its reason.
"""
