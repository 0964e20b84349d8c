"""TensorFlow clusters on Slurm: `SlurmClusterResolver`, and its parts that need no TensorFlow.

Importing this package imports only its errors. Each other name is loaded when it is first used:
commands start quickly, and only the names that need TensorFlow import it.
"""

from __future__ import annotations

from slurm_resolver import errors
from slurm_resolver.version import __version__ as __version__

TYPE_CHECKING = False  # not typing's: importing typing takes as long as starting Python
if TYPE_CHECKING:
    from typing import Any

    from slurm_resolver.cluster.addresses import Task as Task
    from slurm_resolver.cluster.cluster import Cluster as Cluster
    from slurm_resolver.cluster.resolve import resolve as resolve
    from slurm_resolver.cluster.resolve import tf_config_from_slurm as tf_config_from_slurm
    from slurm_resolver.errors import *  # noqa: F403
    from slurm_resolver.slurm.hostlist import compress_hostlist as compress_hostlist
    from slurm_resolver.slurm.hostlist import count_hostlist as count_hostlist
    from slurm_resolver.slurm.hostlist import expand_hostlist as expand_hostlist
    from slurm_resolver.slurm.hostlist import expand_tasks_per_node as expand_tasks_per_node
    from slurm_resolver.tf.keras.mirrored import (
        MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
    )
    from slurm_resolver.tf.keras.parameter_server import (
        ParameterServerStrategy as ParameterServerStrategy,
    )
    from slurm_resolver.tf.replace import install as install
    from slurm_resolver.tf.resolver import SlurmClusterResolver as SlurmClusterResolver
    from slurm_resolver.tf.training.backup import BackupAndResume as BackupAndResume
    from slurm_resolver.tf.training.resumable_loop import ResumableLoop as ResumableLoop
    from slurm_resolver.tf.training.termination import termination_config as termination_config

_MODULE_OF = {
    **{name: "errors" for name in vars(errors) if name.endswith("Error")},
    "BackupAndResume": "tf.training.backup",
    "Cluster": "cluster.cluster",
    "MultiWorkerMirroredStrategy": "tf.keras.mirrored",
    "ParameterServerStrategy": "tf.keras.parameter_server",
    "ResumableLoop": "tf.training.resumable_loop",
    "SlurmClusterResolver": "tf.resolver",
    "Task": "cluster.addresses",
    "compress_hostlist": "slurm.hostlist",
    "count_hostlist": "slurm.hostlist",
    "expand_hostlist": "slurm.hostlist",
    "expand_tasks_per_node": "slurm.hostlist",
    "install": "tf.replace",
    "resolve": "cluster.resolve",
    "termination_config": "tf.training.termination",
    "tf_config_from_slurm": "cluster.resolve",
}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"slurm_resolver.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
