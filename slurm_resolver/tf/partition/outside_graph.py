"""Calls a function outside of the graph that is being traced."""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from slurm_resolver.tf.partition.values import T


def call_outside(function: Callable[[], T]) -> T:
    """Calls a function outside of the graph that is being traced, and of the strategy's scope.

    TensorFlow keeps the scopes of strategies, devices and names with a graph, also while it runs
    eagerly: a new graph has none. Another thread would have none either, but Keras keeps its own
    state by thread, such as the generator of random numbers without a seed, and so do programs.
    """
    graph = tf.Graph()
    with graph.as_default(), tf.__internal__.eager_context.eager_mode(), tf.device(None):
        return function()
