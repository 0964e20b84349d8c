"""Replaces TensorFlow's classes with this package's in unmodified programs."""

from __future__ import annotations

import json
import os
import sys

import tensorflow as tf

from slurm_resolver.pythonpath import OPTIONS, VARIABLE
from slurm_resolver.tf.keras import mirrored
from slurm_resolver.tf.resolver import SlurmClusterResolver
from slurm_resolver.tf.server import can_serve


class MultiWorkerMirroredStrategy(mirrored.MultiWorkerMirroredStrategy):
    """Takes its cluster from TF_CONFIG by default, as TensorFlow's class does."""

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> None:
        super().__init__(
            cluster_resolver or tf.distribute.cluster_resolver.TFConfigClusterResolver(),
            communication_options,
        )


def replace_strategy() -> None:
    """Makes `tf.distribute.MultiWorkerMirroredStrategy` this package's."""
    for module in (tf.distribute, tf.compat.v2.distribute):
        module.MultiWorkerMirroredStrategy = MultiWorkerMirroredStrategy
        module.experimental.MultiWorkerMirroredStrategy = MultiWorkerMirroredStrategy


def install() -> None:
    """Replaces TensorFlow's resolver with this package's for the rest of the process.

    For libraries that make TensorFlow's resolver themselves: call it before they import the class.
    ``srun slurm-resolver exec --replace-resolver -- python …`` does it without changing the
    program. This package's resolvers then pass `isinstance` against TensorFlow's class.
    """
    theirs = tf.distribute.cluster_resolver.SlurmClusterResolver
    # It is public in several modules, and TensorFlow imports it from another one.
    for name, module in [*sys.modules.items()]:
        if (
            name.startswith("tensorflow.")
            and vars(module).get(SlurmClusterResolver.__name__) is theirs
        ):
            setattr(module, SlurmClusterResolver.__name__, SlurmClusterResolver)
    theirs.register(SlurmClusterResolver)


def end_servers() -> None:
    """Lets `join` of TensorFlow's servers end the process when the training is over.

    This task takes part in the training from now on.
    """
    resolver = SlurmClusterResolver(
        **json.loads(os.environ[OPTIONS]),
        auto_set_gpu=False,
    )

    def join(server: tf.distribute.Server) -> None:
        sys.exit(resolver.serve(server))

    if can_serve(resolver.cluster):
        tf.distribute.Server.join = join


def replace(tensorflow: object) -> None:
    """Replaces what `exec` asks for; called when TensorFlow is imported."""
    replacing = {
        "strategy": replace_strategy,
        "resolver": install,
        "servers": end_servers,
    }
    for name in os.environ[VARIABLE].split(","):
        replacing[name]()
