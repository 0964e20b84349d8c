"""What tells apart two trainings whose variables have the same shapes: layers, optimizer, seed.

The weights of another activation, of another optimizer or of another seed fit into a program's
variables, and it would go on with them without a word, as in a search that gives all its trainings
one folder.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence

from slurm_resolver.errors import ResumeError

_REMEDY = "Give each training a folder of its own, or remove this one to begin anew."


def describe(state: Mapping[str, Any]) -> List[str]:
    """Returns what is known of the models and optimizers in a training's state, by their classes.

    Names are left out, as Keras counts them up in a process, and so is what may change on the way:
    learning rates, dropout.
    """
    told: List[str] = []
    for name, one in sorted(state.items()):
        told += _layers(one, name)
        for optimizer in (one, getattr(one, "optimizer", None)):
            if hasattr(optimizer, "apply_gradients"):
                told.append(f"the optimizer is {type(optimizer).__name__}")
    return told


def _layers(model: Any, name: str) -> List[str]:
    told: List[str] = []
    layers = getattr(model, "layers", None)
    for number, layer in enumerate(layers if isinstance(layers, Sequence) else ()):
        told.append(f"layer {number} of {name} is {_describe_layer(layer)}")
        told += _layers(layer, f"layer {number} of {name}")
    return told


def _describe_layer(layer: Any) -> str:
    activation = getattr(layer, "activation", None)
    if activation is None:
        return type(layer).__name__
    name = getattr(activation, "__name__", None) or type(activation).__name__
    return f"{type(layer).__name__} with activation {name}"


def check_same_training(
    path: str,
    by: str,
    there: Optional[Sequence[str]],
    here: Sequence[str],
    seeds: Sequence[Optional[int]],
) -> None:
    """Checks that a checkpoint is one of this training, as far as both are known.

    Args:
        path: the checkpoint.
        by: who has saved it.
        there, here: what `describe` told then, and tells now.
        seeds: the `global_seed` of then, and of now.

    Raises:
        ResumeError: where they differ; it names both.
    """
    error = f"{path}, saved by {by}, is that of another training: {{}}. {_REMEDY}"
    # a model that is not built yet may lack some of its layers; check_model compares variables
    if there is not None and len(there) == len(here):
        for before, now in zip(there, here):
            if before != now:
                what = now.partition(" is ")[2] or now
                raise ResumeError(error.format(f"{before} there, and {what} here"))
    before_seed, seed = seeds
    if None not in (before_seed, seed) and before_seed != seed:
        raise ResumeError(
            error.format(
                f"its seed is {before_seed}, and that of this one is {seed} "
                "(keras.utils.set_random_seed, tf.random.set_seed)"
            )
            + f" To go on with it, set the seed {before_seed}."
        )
