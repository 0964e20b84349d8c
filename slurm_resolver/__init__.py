"""TensorFlow clusters on Slurm: `SlurmClusterResolver`, and what it is made of.

Importing this package does not import TensorFlow; the names that need it are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from slurm_resolver.cluster import Cluster, Task, resolve
from slurm_resolver.errors import (
    AddressError,
    EnvironmentValueError,
    GpuError,
    HostlistError,
    JobsError,
    LaunchError,
    LayoutError,
    NotInStepError,
    RendezvousError,
    SlurmResolverError,
    UnknownLayoutError,
)
from slurm_resolver.hostlist import (
    compress_hostlist,
    count_hostlist,
    expand_hostlist,
    expand_tasks_per_node,
)
from slurm_resolver.legacy import tf_config_from_slurm

if TYPE_CHECKING:
    from slurm_resolver.tf.resolver import SlurmClusterResolver

__version__ = "0.1.0"

__all__ = [
    "AddressError",
    "Cluster",
    "EnvironmentValueError",
    "GpuError",
    "HostlistError",
    "JobsError",
    "LaunchError",
    "LayoutError",
    "NotInStepError",
    "RendezvousError",
    "SlurmClusterResolver",
    "SlurmResolverError",
    "Task",
    "UnknownLayoutError",
    "compress_hostlist",
    "count_hostlist",
    "expand_hostlist",
    "expand_tasks_per_node",
    "resolve",
    "tf_config_from_slurm",
]

_WITH_TENSORFLOW = {"SlurmClusterResolver": "slurm_resolver.tf.resolver"}


def __getattr__(name: str) -> Any:
    if name in _WITH_TENSORFLOW:
        import importlib

        value = getattr(importlib.import_module(_WITH_TENSORFLOW[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
