"""Puts this package's classes into the place of TensorFlow's, for programs left as they are."""

from __future__ import annotations

import sys
from typing import Any, Iterable, Optional

import tensorflow as tf

from slurm_resolver.tf.keras.mirrored import MultiWorkerMirroredStrategy
from slurm_resolver.tf.resolver import SlurmClusterResolver

_THEIRS = "tensorflow.python.distribute.cluster_resolver"


class _FromTfConfig(MultiWorkerMirroredStrategy):
    """What a program gets that asks for TensorFlow's class: its cluster is TF_CONFIG's."""

    def __init__(
        self, cluster_resolver: Optional[Any] = None, communication_options: Optional[Any] = None
    ) -> None:
        if cluster_resolver is None:
            cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        super().__init__(cluster_resolver, communication_options)


def replace_strategy() -> None:
    """Makes `tf.distribute.MultiWorkerMirroredStrategy` this package's."""
    _FromTfConfig.__name__ = _FromTfConfig.__qualname__ = "MultiWorkerMirroredStrategy"
    for module in (tf.distribute, tf.compat.v2.distribute):
        module.MultiWorkerMirroredStrategy = _FromTfConfig
        module.experimental.MultiWorkerMirroredStrategy = _FromTfConfig


def install() -> None:
    """Puts this package's resolver into the place of TensorFlow's, for the rest of the process.

    For code that makes TensorFlow's class itself, such as a library. Call it before that code makes
    its resolver; ``srun slurm-resolver exec --replace-resolver -- python …`` does it from outside.
    Resolvers then pass `isinstance` against TensorFlow's class, also where code has imported that
    by name before. Such code still makes TensorFlow's own.
    """
    api = tf.distribute.cluster_resolver
    theirs = api.SlurmClusterResolver
    if theirs is SlurmClusterResolver:
        return
    public = [api, *(getattr(tf.compat, v).distribute.cluster_resolver for v in ("v1", "v2"))]
    inner = [sys.modules.get(name) for name in (_THEIRS, f"{_THEIRS}.slurm_cluster_resolver")]
    for module in (*public, *inner):
        if getattr(module, "SlurmClusterResolver", None) is theirs:
            setattr(module, "SlurmClusterResolver", SlurmClusterResolver)  # noqa: B010 (a constant)
    theirs.register(SlurmClusterResolver)


_BY_NAME = {"strategy": replace_strategy, "resolver": install}


def replace(names: Iterable[str]) -> None:
    """Replaces what the names stand for; `slurm_resolver.startup` has them from a variable."""
    for name in names:
        _BY_NAME[name]()
