"""Which CPUs each task of a step on this machine is bound to (srun's --cpu-bind).

The variables are those that srun sets where the site binds with TaskPlugin=task/affinity.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_resolver.errors import LaunchError

Cpus = Tuple[int, ...]

_BIND = re.compile(
    r"(?:(?P<how>q|quiet|v|verbose),)?"
    r"(?:(?P<kind>no|none|rank|cores|threads)|(?P<listed>map_cpu|mask_cpu):(?P<items>\S+))"
)
_ITEM = {
    "map_cpu": re.compile(r"(\d{1,5}|0x[0-9a-f]{1,4})(?:\*(\d{1,4}))?", re.IGNORECASE),
    "mask_cpu": re.compile(r"((?:0x)?[0-9a-f]{1,2048})(?:\*(\d{1,4}))?", re.IGNORECASE),
}
_ELSEWHERE = ("sockets", "ldoms", "boards", "rank_ldom", "map_ldom", "mask_ldom")


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
                f"--cpu-bind {option!r}: {kind} cannot be imitated, which depends on the node's "
                "make; try cores here, and this on Slurm"
            )
        raise LaunchError(
            f"--cpu-bind {option!r}: expected none, rank, cores, threads, map_cpu:LIST or "
            "mask_cpu:LIST, with quiet, or verbose, before it"
        )
    how = "verbose" if (match["how"] or "").startswith("v") else "quiet"
    verbose = how == "verbose"
    kind = match["kind"] or match["listed"]
    if kind in ("no", "none"):
        return LocalCpus(None, _variables(how, "none"), verbose)
    if kind in _ITEM:
        return _listed(option, kind, match["items"], num_tasks, allowed, how)
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


def _listed(
    option: str, kind: str, items: str, num_tasks: int, allowed: Sequence[int], how: str
) -> LocalCpus:
    entries: List[Cpus] = []
    shown: List[str] = []
    for item in items.split(","):
        one = _ITEM[kind].fullmatch(item)
        if one is None:
            form = "a CPU's number" if kind == "map_cpu" else "a hexadecimal mask"
            raise LaunchError(f"--cpu-bind {option!r}: {item!r}: expected {form}")
        number, times = one[1], int(one[2] or 1)
        if kind == "map_cpu":
            value = int(number, 16 if number[:2].lower() == "0x" else 10)
            own: Cpus = (value,)
        else:
            value = int(number, 16)
            own = tuple(bit for bit in range(value.bit_length()) if value >> bit & 1)
        if not own or not set(own) <= set(allowed):
            raise LaunchError(
                f"--cpu-bind {option!r}: {item!r} is outside the CPUs that this process may use: "
                f"{','.join(map(str, allowed))}"
            )
        entries += [own] * times
        shown += [str(value) if kind == "map_cpu" else f"{value:x}"] * times
    cpus = [entries[rank % len(entries)] for rank in range(num_tasks)]
    return LocalCpus(cpus, _variables(how, f"{kind}:", ",".join(shown)), how == "verbose")


def _variables(how: str, kind: str, listed: str = "") -> Dict[str, str]:
    return {
        "SLURM_CPU_BIND": f"{how},{kind}{listed}",
        "SLURM_CPU_BIND_LIST": listed,
        "SLURM_CPU_BIND_TYPE": kind,
        "SLURM_CPU_BIND_VERBOSE": how,
    }
