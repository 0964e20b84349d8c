"""TensorFlow clusters on Slurm: `SlurmClusterResolver`, and its parts that need no TensorFlow.

Importing this package imports none of its modules. Each name is loaded when it is first used:
commands start quickly, and only the names that need TensorFlow import it.
"""

from __future__ import annotations

from slurm_resolver.version import __version__ as __version__

TYPE_CHECKING = False  # not typing's: importing typing takes as long as starting Python
if TYPE_CHECKING:
    from typing import Any, List

    from slurm_resolver.cluster.addresses import Task
    from slurm_resolver.cluster.cluster import Cluster
    from slurm_resolver.cluster.resolve import resolve
    from slurm_resolver.errors import (
        AddressError,
        EnvironmentValueError,
        FitError,
        GpuError,
        HostlistError,
        JobsError,
        KerasError,
        LaunchError,
        LayoutError,
        NotInStepError,
        RendezvousError,
        ResumeError,
        SavingError,
        SlurmResolverError,
        UnknownLayoutError,
        UnreadableValueError,
    )
    from slurm_resolver.legacy import tf_config_from_slurm
    from slurm_resolver.slurm.hostlist import (
        compress_hostlist,
        count_hostlist,
        expand_hostlist,
        expand_tasks_per_node,
    )
    from slurm_resolver.tf.keras.mirrored import MultiWorkerMirroredStrategy
    from slurm_resolver.tf.keras.parameter_server import ParameterServerStrategy
    from slurm_resolver.tf.replace import install
    from slurm_resolver.tf.resolver import SlurmClusterResolver
    from slurm_resolver.tf.training.backup import BackupAndResume
    from slurm_resolver.tf.training.resumable_loop import ResumableLoop
    from slurm_resolver.tf.training.termination import termination_config

__all__ = [
    "AddressError",
    "BackupAndResume",
    "Cluster",
    "EnvironmentValueError",
    "FitError",
    "GpuError",
    "HostlistError",
    "JobsError",
    "KerasError",
    "LaunchError",
    "LayoutError",
    "MultiWorkerMirroredStrategy",
    "NotInStepError",
    "ParameterServerStrategy",
    "RendezvousError",
    "ResumableLoop",
    "ResumeError",
    "SavingError",
    "SlurmClusterResolver",
    "SlurmResolverError",
    "Task",
    "UnknownLayoutError",
    "UnreadableValueError",
    "compress_hostlist",
    "count_hostlist",
    "expand_hostlist",
    "expand_tasks_per_node",
    "install",
    "resolve",
    "termination_config",
    "tf_config_from_slurm",
]

_MODULE_OF = {  # of each name; the errors are in `errors`
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
    "tf_config_from_slurm": "legacy",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = _MODULE_OF.get(name, "errors")
    value = getattr(importlib.import_module(f"slurm_resolver.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
