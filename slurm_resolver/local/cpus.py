"""Which CPUs each task of a step on this machine is bound to (srun's --cpu-bind).

The variables are those that srun sets where the site binds with TaskPlugin=task/affinity.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import LaunchError

Cpus = Tuple[int, ...]

_CPU_BIND = re.compile(
    r"(?:(?P<verbosity>q|quiet|v|verbose),)?(?P<kind>no|none|rank|cores|threads)"
)
_ONLY_ON_SLURM = (
    *("sockets", "ldoms", "boards", "rank_ldom", "map_ldom", "mask_ldom"),
    *("map_cpu", "mask_cpu"),
)


class CpuBinding(NamedTuple):
    """The CPUs of each task (None: not bound), and the variables that all tasks get."""

    cpus: Optional[Sequence[Cpus]]
    variables: Dict[str, str]
    verbose: bool = False


def cpus_of_core(cpu: int) -> Cpus:
    """Returns all CPUs (hardware threads) of the core that this CPU belongs to."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        parts = [part.split("-") for part in path.read_text(encoding="ascii").strip().split(",")]
        return tuple(n for part in parts for n in range(int(part[0]), int(part[-1]) + 1))
    except (OSError, ValueError):
        return (cpu,)


def bind_cpus(
    option: Optional[str],
    num_tasks: int,
    cpus_per_task: Optional[int],
    allowed: Sequence[int],
    core_of: Callable[[int], Cpus] = cpus_of_core,
) -> CpuBinding:
    """Returns the CPUs of each task, in order out of those `allowed`, which are ascending.

    Without an `option` the tasks are bound only where `cpus_per_task` is given and there are
    enough CPUs.

    Raises:
        LaunchError: for an option that cannot be read or simulated, and where there are not enough
            CPUs for it.
    """
    per_task = cpus_per_task or 1
    if option is None:
        if cpus_per_task is None or per_task * num_tasks > len(allowed):
            return CpuBinding(None, {})
        return _bind_in_order([(cpu,) for cpu in allowed], per_task, num_tasks, "quiet")
    match = _CPU_BIND.fullmatch(option)
    if match is None:
        kind = option.partition(":")[0].rpartition(",")[2]
        if kind in _ONLY_ON_SLURM:
            raise LaunchError(
                f"--cpu-bind {option!r}: {kind} cannot be simulated here, as it is about one "
                "node's own CPUs. Use cores or threads here; on Slurm give this to srun."
            )
        raise LaunchError(
            f"--cpu-bind {option!r}: expected none, rank, cores or threads, with quiet, or "
            "verbose, before it"
        )
    verbosity = "verbose" if (match["verbosity"] or "").startswith("v") else "quiet"
    kind = match["kind"]
    if kind in ("no", "none"):
        return CpuBinding(None, _variables(verbosity, "none"), verbosity == "verbose")
    units: List[Cpus] = [(cpu,) for cpu in allowed]
    if kind == "cores":
        units = sorted({tuple(c for c in core_of(cpu) if c in allowed) for cpu in allowed})
        per_task = -(-per_task // max(map(len, units)))
    if per_task * num_tasks > len(units):
        raise LaunchError(
            f"--cpu-bind {option}: {num_tasks} tasks need {per_task * num_tasks} "
            f"{'cores' if kind == 'cores' else 'CPUs'}, but this process may use {len(units)}. "
            "Start fewer tasks, or leave the option out."
        )
    binding = _bind_in_order(units, per_task, num_tasks, verbosity)
    if kind == "rank":
        return binding._replace(variables=_variables(verbosity, "rank"))
    return binding


def _bind_in_order(
    units: Sequence[Cpus], units_per_task: int, num_tasks: int, verbosity: str
) -> CpuBinding:
    """Gives each task as many of the units (CPUs or cores) as it needs, one task after another."""
    cpus = [
        tuple(cpu for unit in units[first : first + units_per_task] for cpu in unit)
        for first in range(0, num_tasks * units_per_task, units_per_task)
    ]
    masks = ",".join(hex(sum(1 << cpu for cpu in own)) for own in cpus)
    return CpuBinding(cpus, _variables(verbosity, "mask_cpu:", masks), verbosity == "verbose")


def _variables(verbosity: str, kind: str, masks: str = "") -> Dict[str, str]:
    return {
        "SLURM_CPU_BIND": f"{verbosity},{kind}{masks}",
        "SLURM_CPU_BIND_LIST": masks,
        "SLURM_CPU_BIND_TYPE": kind,
        "SLURM_CPU_BIND_VERBOSE": verbosity,
    }
