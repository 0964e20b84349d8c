"""Which CPUs each task of a step on this machine is bound to (srun's --cpu-bind).

The variables are those that srun sets where the site binds with TaskPlugin=task/affinity.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import LaunchError

Cpus = Tuple[int, ...]

_BIND = re.compile(r"(?:(?P<how>q|quiet|v|verbose),)?(?P<kind>no|none|rank|cores|threads)")
_ELSEWHERE = (
    *("sockets", "ldoms", "boards", "rank_ldom", "map_ldom", "mask_ldom"),
    *("map_cpu", "mask_cpu"),
)


class LocalCpus(NamedTuple):
    """The CPUs of each task (None: not bound), and the variables of all."""

    cpus: Optional[Sequence[Cpus]]
    variables: Dict[str, str]
    verbose: bool = False


def siblings(cpu: int) -> Cpus:
    """Returns the CPUs (hardware threads) of the core that a CPU is part of."""
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
    core_of: Callable[[int], Cpus] = siblings,
) -> LocalCpus:
    """Returns the CPUs of each task, out of those `allowed`, which are ascending.

    Without an `option` the tasks are bound only where `cpus_per_task` is given and there are
    enough.

    Raises:
        LaunchError: for an option that cannot be read or imitated, and where there are not enough
            CPUs for it.
    """
    each = cpus_per_task or 1
    if option is None:
        if cpus_per_task is None or each * num_tasks > len(allowed):
            return LocalCpus(None, {})
        return _automatic([(cpu,) for cpu in allowed], each, num_tasks, "quiet")
    match = _BIND.fullmatch(option)
    if match is None:
        kind = option.partition(":")[0].rpartition(",")[2]
        if kind in _ELSEWHERE:
            raise LaunchError(
                f"--cpu-bind {option!r}: {kind} cannot be imitated here, as it is about one "
                "node's own CPUs. Use cores or threads here; on Slurm give this to srun."
            )
        raise LaunchError(
            f"--cpu-bind {option!r}: expected none, rank, cores or threads, with quiet, or "
            "verbose, before it"
        )
    how = "verbose" if (match["how"] or "").startswith("v") else "quiet"
    kind = match["kind"]
    if kind in ("no", "none"):
        return LocalCpus(None, _variables(how, "none"), how == "verbose")
    units: List[Cpus] = [(cpu,) for cpu in allowed]
    if kind == "cores":
        units = sorted({tuple(c for c in core_of(cpu) if c in allowed) for cpu in allowed})
        each = -(-each // max(map(len, units)))
    if each * num_tasks > len(units):
        raise LaunchError(
            f"--cpu-bind {option}: {num_tasks} tasks need {each * num_tasks} "
            f"{'cores' if kind == 'cores' else 'CPUs'}, but this process may use {len(units)}. "
            "Start fewer tasks, or leave the option out."
        )
    bound = _automatic(units, each, num_tasks, how)
    return bound._replace(variables=_variables(how, "rank")) if kind == "rank" else bound


def _automatic(units: Sequence[Cpus], each: int, num_tasks: int, how: str) -> LocalCpus:
    cpus = [
        tuple(cpu for unit in units[rank * each : (rank + 1) * each] for cpu in unit)
        for rank in range(num_tasks)
    ]
    masks = ",".join(hex(sum(1 << cpu for cpu in own)) for own in cpus)
    return LocalCpus(cpus, _variables(how, "mask_cpu:", masks), how == "verbose")


def _variables(how: str, kind: str, listed: str = "") -> Dict[str, str]:
    return {
        "SLURM_CPU_BIND": f"{how},{kind}{listed}",
        "SLURM_CPU_BIND_LIST": listed,
        "SLURM_CPU_BIND_TYPE": kind,
        "SLURM_CPU_BIND_VERBOSE": how,
    }
