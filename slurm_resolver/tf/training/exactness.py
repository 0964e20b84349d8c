"""Why the step of a training cannot resume exactly, and what to write instead."""

from __future__ import annotations

import tensorflow as tf

from slurm_resolver.tf import private_names
from slurm_resolver.tf.training.dataset_graph import is_random


def problem_of_step(before: set[str], checkpoint: tf.train.Checkpoint) -> str:
    """Returns what is wrong with the functions of the first step; "" if nothing is.

    These are the functions whose names are not in `before`. The checkpoint holds what is saved.
    """
    context = private_names.CONTEXT.get()()
    saved = tf.train.TrackableView(checkpoint).descendants()
    has_generator = any(isinstance(item, tf.random.Generator) for item in saved)
    for name in sorted(function_names() - before):
        for node in private_names.FUNCTION.of(context)(name).node_def:
            if is_random(node) or (node.op == "RngReadAndSkip" and not has_generator):
                return (
                    f"the step calls {node.op}, whose position is not saved: draw with "
                    "keras.random and seed=keras.random.SeedGenerator(n), an attribute of the "
                    "layer or model; or pass a tf.random.Generator, "
                    "BackupAndResume(folder, generator=generator)"
                )
    return ""


def function_names() -> set[str]:
    """Returns the names of all functions; none if TensorFlow cannot list or read them."""
    if private_names.FUNCTION_NAMES.is_missing() or private_names.FUNCTION.is_missing():
        return set()
    return set(map(str, private_names.FUNCTION_NAMES.of(private_names.CONTEXT.get()())()))
