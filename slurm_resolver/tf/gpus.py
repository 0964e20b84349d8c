"""Sets the GPUs that TensorFlow sees in this process, before it looks for them, and counts them."""

from __future__ import annotations

import os

import tensorflow as tf

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.task_gpus import apply_gpus
from slurm_resolver.log import warn
from slurm_resolver.slurm.gpu_variables import Devices
from slurm_resolver.tf import private_names


def show_gpus(cluster: Cluster, auto_set_gpu: bool) -> Devices | None:
    """Sets the GPUs; returns those that this process will see, None if they are unknown."""
    gpus = cluster.gpu_decision
    if not auto_set_gpu:
        return gpus.devices if cluster.options.gives_gpu_counts else gpus.visible_before
    known = _known_gpus() if gpus.settings else 0
    apply_gpus(gpus, cluster.step, os.environ)
    # The program may have hidden some GPUs itself.
    if known not in (0, len(gpus.devices or ())) and known == count_gpus(None):
        warn(
            "%s comes too late: TensorFlow has already looked at the devices, and this process "
            "keeps the GPUs that it saw then (%d); create the resolver before anything lists or "
            "uses devices",
            ", ".join(f"{name}={value}" for name, value in gpus.settings.items()),
            known,
        )
    return gpus.devices


def count_gpus(devices: Devices | None) -> int:
    """Returns how many GPUs this process will use.

    `devices` are what `show_gpus` returned.
    """
    if _known_gpus():
        return len(tf.config.get_visible_devices("GPU"))
    if devices is None:  # the environment does not say: TensorFlow uses what it finds
        return len(tf.config.list_physical_devices("GPU"))
    return len(devices)


def _known_gpus() -> int:
    """Returns how many GPUs TensorFlow has found, if it has looked already: then it keeps them."""
    # No public name tells without looking; a TensorFlow without this one costs the warning, and
    # the GPUs that a program has hidden count.
    context = private_names.CONTEXT.find()
    if context is None or private_names.PHYSICAL_DEVICES.of(context(), None) is None:
        return 0
    return len(tf.config.list_physical_devices("GPU"))
