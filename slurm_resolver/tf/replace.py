"""Replaces TensorFlow's classes by this package's in unmodified programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from slurm_resolver.tf.keras import borrowed
from slurm_resolver.tf.keras.mirrored import MultiWorkerMirroredStrategy
from slurm_resolver.tf.resolver import SlurmClusterResolver


class _FromTfConfig(MultiWorkerMirroredStrategy):
    """Takes its cluster from TF_CONFIG by default, as TensorFlow's class does."""

    def __init__(
        self, cluster_resolver: Any | None = None, communication_options: Any | None = None
    ) -> None:
        of_config = tf.distribute.cluster_resolver.TFConfigClusterResolver
        super().__init__(cluster_resolver or of_config(), communication_options)


def replace_strategy() -> None:
    """Makes `tf.distribute.MultiWorkerMirroredStrategy` this package's."""
    _FromTfConfig.__name__ = _FromTfConfig.__qualname__ = "MultiWorkerMirroredStrategy"
    for module in (tf.distribute, tf.compat.v2.distribute):
        module.MultiWorkerMirroredStrategy = _FromTfConfig
        module.experimental.MultiWorkerMirroredStrategy = _FromTfConfig


def install() -> None:
    """Replaces TensorFlow's resolver by this package's for the rest of the process.

    For libraries that make TensorFlow's resolver themselves: call it before they import the class.
    ``srun slurm-resolver exec --replace-resolver -- python …`` does it without a change of the
    program. This package's resolvers then pass `isinstance` against TensorFlow's class.
    """
    api = tf.distribute.cluster_resolver
    theirs = api.SlurmClusterResolver
    if theirs is SlurmClusterResolver:
        return
    public = [api, *(getattr(tf.compat, v).distribute.cluster_resolver for v in ("v1", "v2"))]
    inner = [name.owner() for name in (borrowed.RESOLVER, borrowed.RESOLVER_ITSELF)]
    for module in (*public, *inner):
        if getattr(module, "SlurmClusterResolver", None) is theirs:
            setattr(module, "SlurmClusterResolver", SlurmClusterResolver)  # noqa: B010 (a constant)
    theirs.register(SlurmClusterResolver)


def replace(names: Iterable[str]) -> None:
    """Replaces the "strategy", the "resolver" or both; called by `slurm_resolver.startup`."""
    for name in names:
        {"strategy": replace_strategy, "resolver": install}[name]()
