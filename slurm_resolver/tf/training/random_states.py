"""The generators of random numbers that are global: those of Python, NumPy, Keras and TensorFlow.

Callbacks draw from them, and so do models: `keras.random` without a seed, a step that runs eagerly.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from slurm_resolver.tf import private_names
from slurm_resolver.tf.training.fit_state import pack, unpack

States = dict[str, str]  # by the library


def random_states() -> States:
    """Returns the state of each generator that there is."""
    states: dict[str, Any] = {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
    }
    keras_seeds = private_names.GLOBAL_OF_KERAS.get()(private_names.SEEDS_NAME.get())
    if keras_seeds is not None:
        states["keras"] = keras_seeds.state.numpy()
    if _eager_seeds() is not None:
        states["tensorflow"] = _eager_seeds().getstate()
    return {name: pack(state) for name, state in states.items()}


def _eager_seeds() -> Any:
    """Returns the generator from which TensorFlow takes seeds outside of graphs, or None."""
    return private_names.EAGER_SEEDS.of(private_names.CONTEXT.get()(), None)


def set_random_states(states: States) -> None:
    """Gives the generators these states."""
    for name, packed in states.items():
        state = unpack(packed)
        if name == "random":
            random.setstate(state)
        elif name == "numpy":
            np.random.set_state(state)
        elif name == "keras":
            private_names.SEEDS_OF_KERAS.get()().state.assign(state)
        elif _eager_seeds() is not None:
            _eager_seeds().setstate(state)


def restore_random(saved: States, before: States) -> None:
    """Gives the generators their saved states, if none has drawn from them since `before`.

    Those that have changed since are used by the data, which have drawn again what they drew.
    """
    now = random_states()
    unused = {name: state for name, state in saved.items() if now.get(name) == before.get(name)}
    set_random_states(unused)
