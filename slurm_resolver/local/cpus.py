"""Which CPUs each task of a step on this machine is bound to (srun's --cpu-bind).

The variables are those that srun sets where the site binds with TaskPlugin=task/affinity.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import LaunchError

Cpus = Tuple[int, ...]

_VERBOSITY = {"q": "quiet", "quiet": "quiet", "v": "verbose", "verbose": "verbose"}
# Each with what it means here; None: bound as far as there are enough CPUs, as by default on Slurm.
_KINDS: Dict[str, Optional[str]] = {
    **{"": None, "rank": None, "no": "none", "none": "none"},
    **{"cores": "cores", "threads": "threads", "one_thread": "threads"},
}
_LIST = re.compile(r"\b(?:sockets|ldoms|rank_ldom|map_ldom|mask_ldom|map_cpu|mask_cpu)\b")


class CpuBinding(NamedTuple):
    """The CPUs of each task (None: not bound), and the variables that all tasks get.

    Attributes:
        warning: what the user has to know; None for nothing.
    """

    cpus: Optional[Sequence[Cpus]]
    variables: Dict[str, str]
    verbose: bool = False
    warning: Optional[str] = None


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
    units: List[Cpus] = [(cpu,) for cpu in allowed]
    if option is None and cpus_per_task is None:
        return CpuBinding(None, {})
    verbosity, word = ("quiet", "") if option is None else _read(option)
    kind = _KINDS[word]
    warning = None
    if word == "rank":
        warning = "--cpu-bind=rank is ignored, as by srun since 24.11: expected cores or threads"
    if kind is None:
        if per_task * num_tasks > len(allowed):
            return CpuBinding(None, {}, verbosity == "verbose", warning)
        binding = _bind_in_order(units, per_task, num_tasks, verbosity)
        return binding._replace(warning=warning)
    if kind == "none":
        return CpuBinding(None, _variables(verbosity, "none"), verbosity == "verbose")
    if kind == "cores":
        units = sorted({tuple(c for c in core_of(cpu) if c in allowed) for cpu in allowed})
        per_task = -(-per_task // max(map(len, units)))
    if per_task * num_tasks > len(units):
        raise LaunchError(
            f"--cpu-bind {option}: {num_tasks} tasks need {per_task * num_tasks} "
            f"{'cores' if kind == 'cores' else 'CPUs'}, but this process may use {len(units)}. "
            "Start fewer tasks, or leave the option out."
        )
    return _bind_in_order(units, per_task, num_tasks, verbosity)


def _read(option: str) -> Tuple[str, str]:
    """Returns quiet or verbose, and the kind of binding, "" for none given: ``verbose,cores``."""
    listed = _LIST.search(option.lower())
    if listed is not None:
        raise LaunchError(
            f"--cpu-bind {option!r}: {listed[0]} cannot be simulated here, as it is about one "
            "node's own CPUs. Use cores or threads here; on Slurm give this to srun."
        )
    words = option.lower().split(",")
    kinds = [word for word in words if word not in _VERBOSITY]
    if len(kinds) > 1 or not set(kinds) <= set(_KINDS) or "" in words:
        raise LaunchError(
            f"--cpu-bind {option!r}: expected none, cores or threads, with quiet, or verbose, "
            "before it"
        )
    verbosity = [_VERBOSITY[word] for word in words if word in _VERBOSITY]
    return (verbosity or ["quiet"])[-1], "".join(kinds)


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
