"""The generators of random numbers that are global: those of Python, NumPy, Keras and TensorFlow.

Callbacks draw from them, and so do models: `keras.random` without a seed, a step that runs eagerly.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from slurm_resolver.tf import private_names
from slurm_resolver.tf.training.callback_states import content_of
from slurm_resolver.tf.training.fit_state import pack, unpack

States = dict[str, bytes]  # by the library
_FUNCTIONS: Any = (random.getstate, np.random.get_state)  # methods of the global generators


def random_states() -> States:
    """Returns the state of each generator that there is."""
    return {
        name: pack(content_of(generator)[0](generator)) for name, generator in _generators().items()
    }


def _generators() -> dict[str, object]:
    seeds = private_names.GLOBAL_OF_KERAS.get()("global_seed_generator")
    generators = {
        "random": _FUNCTIONS[0].__self__,
        "numpy": _FUNCTIONS[1].__self__,
        "keras": seeds and seeds.state,
        # TensorFlow takes seeds from it outside of graphs.
        "tensorflow": private_names.EAGER_SEEDS.of(private_names.CONTEXT.get()(), None),
    }
    return {name: generator for name, generator in generators.items() if generator is not None}


def set_random_states(states: States) -> None:
    """Gives the generators these states."""
    if "keras" in states:
        private_names.SEEDS_OF_KERAS.get()()  # makes it, with Python's
    for name, generator in _generators().items():
        if name in states:
            content_of(generator)[1](generator, unpack(states[name]))


def restore_random(saved: States, before: States) -> None:
    """Gives the generators their saved states, if none has drawn from them since `before`.

    The others are used by the data, which were read again and drew from them as before.
    """
    now = random_states()
    set_random_states(
        {name: state for name, state in saved.items() if now.get(name) == before.get(name)}
    )
