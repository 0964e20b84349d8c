"""Keras 3's `fit`, `evaluate` and `predict` on several workers, and the two strategies for it.

`patches` is the one place that changes Keras and TensorFlow, and lists what it changes and why.
"""
