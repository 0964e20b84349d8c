"""Which tasks compute or copy far slower than the median of the step: for ``check --speed``.

In a synchronous training all wait for the slowest. There are no limits of its own, as machines
differ: what counts is how far a task is behind the others, in the best of some tries.
"""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.result import OK, WARNING, Result, result_of
from slurm_resolver.preflight.work_speed import Speed, measure_cpu
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.slurm.gpu_identity import find_own_numbers
from slurm_resolver.wording import ranges_of

# How many times slower than the median a slow task is; of two, than the other one.
RATIO = 3.0
RATIO_OF_TWO = 10.0
_OWN_CPU = 0.7  # which part of a CPU a task gets that nobody takes it from


class Measured(NamedTuple):
    """A CPU or GPU that was measured: of which task, its name, and its speed."""

    rank: int
    node: str
    name: str
    speed: Speed


def check_work(
    notes: Mapping[int, Note], cluster: Cluster
) -> Tuple[List[Result], List[Tuple[int, str]]]:
    """Returns what was measured, if anything was, and what seems slow and is to be measured again.

    That is by rank, and whether it is the CPU or the GPUs.
    """
    nodes = [task.node for task in cluster.tasks]
    cpus = [
        Measured(rank, nodes[rank], "CPU", Speed(*note["cpu_speed"]))
        for rank, note in notes.items()
        if note.get("cpu_speed")
    ]
    if not cpus:
        return [], []
    sharing = _ranks_that_share(notes, nodes)
    gpus = [
        Measured(rank, nodes[rank], f"GPU {device}", Speed(*speed))
        for rank, note in notes.items()
        for device, speed in note.get("gpu_speeds", {}).items()
        if rank not in sharing
    ]
    slow = [*find_slow(cpus), *find_slow(gpus)]
    told = [*_tell(slow), *_tell_unmeasured(notes)]
    described = "; ".join(filter(None, [_describe(cpus), _describe(gpus)]))
    again = sorted({(one.rank, one.name.split()[0]) for one, _ in slow})
    return [result_of("work", told, described, WARNING)], again


def measured_here() -> Result:
    """Returns how fast this machine's CPU is, outside a step."""
    cpu = _describe([Measured(0, "", "CPU", measure_cpu())])
    return Result("work", OK, f"{cpu}; in a step it is compared with the others")


def _tell_unmeasured(notes: Mapping[int, Note]) -> List[str]:
    """Returns which tasks have GPUs that TensorFlow does not find, or cannot use."""
    found: Dict[str, List[int]] = {}
    for rank, note in notes.items():
        if "gpu_speeds" in note:
            number, devices = len(note["gpu_speeds"]), len(note["devices"])
            if note["gpu_problem"]:
                found.setdefault(f"cannot be measured: {note['gpu_problem']}", []).append(rank)
            elif number < devices:
                part = f"{number} of {devices}" if number else "none of them"
                text = (
                    f"TensorFlow finds {part}: pip install 'tensorflow[and-cuda]' in place of a "
                    "TensorFlow without GPUs, or see what it logs at its start"
                )
                found.setdefault(text, []).append(rank)
    return [f"GPUs of {_ranks(ranks)}: {text}" for text, ranks in found.items()]


def find_slow(measured: Sequence[Measured]) -> List[Tuple[Measured, str]]:
    """Returns those that are far behind, each with what was measured."""
    if len(measured) < 2:
        return []
    ratio, name = (RATIO_OF_TWO, "the other") if len(measured) == 2 else (RATIO, "median")
    computed = _usual([one.speed.computed for one in measured])
    copied = _usual([one.speed.copied for one in measured])
    slow = []
    for one in measured:
        found = []
        if one.speed.computed * ratio < computed:
            found.append(
                f"{_computes(one)} {_rate(one, one.speed.computed)} ({name} {_rate(one, computed)})"
            )
        if one.speed.copied * ratio < copied:
            found.append(f"copies {_bytes(one.speed.copied)} ({name} {_bytes(copied)})")
        if found:
            slow.append((one, ", ".join(found)))
    return slow


def _usual(numbers: Sequence[float]) -> float:
    """Returns the median; of two the larger one, as the other may be the slow one."""
    return max(numbers) if len(numbers) == 2 else statistics.median(numbers)


def _tell(slow: Sequence[Tuple[Measured, str]]) -> List[str]:
    """Returns what is said of each node that has a slow task, and what to do about it."""
    on_node: Dict[str, List[Tuple[Measured, str]]] = {}
    for one in slow:
        on_node.setdefault(one[0].node, []).append(one)
    told = []
    for node, found in on_node.items():
        ranks = _ranks([one.rank for one, _ in found])
        worst, what = min(found, key=lambda one: one[0].speed.computed)
        share = min(one.speed.share for one, _ in found)
        why = "what else runs there, its clocks and its heat"
        if share < _OWN_CPU:
            why = f"what else runs there: the task got {share:.0%} of a CPU"
        told.append(
            f"{ranks} on {node}: the {worst.name} {what}: look at {why}, or do without the node "
            f"(sbatch --exclude={node})"
        )
    return told


def _ranks_that_share(notes: Mapping[int, Note], nodes: Sequence[str]) -> Set[int]:
    """Returns the ranks that use a GPU that another uses as well, and so has measured with it."""
    on_node: Dict[str, List[int]] = {}
    for rank, note in notes.items():
        if note.get("gpu_speeds"):
            on_node.setdefault(nodes[rank], []).append(rank)
    sharing = set()
    for ranks in on_node.values():
        if find_own_numbers([notes[rank]["shown"] for rank in ranks]) is None:
            used = Counter(device for rank in ranks for device in notes[rank]["devices"])
            sharing |= {r for r in ranks if any(used[d] > 1 for d in notes[r]["devices"])}
    return sharing


def _ranks(ranks: Iterable[int]) -> str:
    ranges = ranges_of(set(ranks))
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {','.join(ranges)}"


def _describe(measured: Sequence[Measured]) -> str:
    """Returns the medians; "" where nothing was measured."""
    if not measured:
        return ""
    one = measured[0]
    computed = statistics.median(each.speed.computed for each in measured)
    copied = statistics.median(each.speed.copied for each in measured)
    return (
        f"a {one.name.split()[0]} {_computes(one)} {_rate(one, computed)}, copies {_bytes(copied)}"
    )


def _computes(one: Measured) -> str:
    return "hashes" if one.name == "CPU" else "multiplies"


def _rate(one: Measured, rate: float) -> str:
    return _bytes(rate) if one.name == "CPU" else f"{rate / 1e12:.1f} TFLOP/s"


def _bytes(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.0f} MB/s"
