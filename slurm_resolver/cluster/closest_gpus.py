"""Which tasks of a node see the same GPUs under ``srun --gpu-bind=closest``.

Slurm then shows each task the GPUs near its CPUs: those of one socket see the same, and share them.
No variable tells a task what the others see, so all tasks of the step tell each other, once.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from slurm_resolver.cluster.layout import Layout
from slurm_resolver.cluster.meeting import meet
from slurm_resolver.cluster.meeting_point import was_restarted
from slurm_resolver.cluster.options import MEETING_SECONDS
from slurm_resolver.errors import GpuError, RendezvousError
from slurm_resolver.log import warn_once
from slurm_resolver.rendezvous.point import Rendezvous
from slurm_resolver.rendezvous.task_claim import claim_task
from slurm_resolver.slurm.gpu_identity import find_own_numbers, shown_gpus
from slurm_resolver.slurm.step import SlurmStep

if TYPE_CHECKING:
    from slurm_resolver.rendezvous.gathering import Note

_CLOSEST = re.compile(r"gpu:(verbose,)?closest")

_told: Dict[Tuple[str, int], List[str]] = {}  # the answer, by step and rank: asked for once


def tasks_that_see_the_same(
    step: SlurmStep,
    layout: Layout,
    rendezvous: Rendezvous,
    may_meet: bool,
    timeout: float = MEETING_SECONDS,
) -> Optional[List[int]]:
    """Returns the local ranks of the tasks on this node that see the GPUs that this one sees.

    None where Slurm's binding is another, where no two tasks share a node, and where the tasks
    cannot tell each other: in a child process of a task, in one that was started again, in a
    heterogeneous step, whose components may have other bindings, and where they may not meet.

    Raises:
        GpuError: where not all tasks of the step come within `timeout` seconds; where the same
            numbers may be other GPUs in each task.
    """
    if _CLOSEST.search(step.tres_bind or "") is None or max(layout.local_rank_of) == 0:
        return None
    if not step.is_live or was_restarted(step, rendezvous) or not claim_task(rendezvous):
        return None
    if layout.components or not may_meet:
        warn_once(
            "--gpu-bind=closest may show several tasks of this node the same GPUs, and they cannot "
            "tell each other: bind them with srun --gpu-bind=per_task:N, or leave --gpu-bind out"
        )
        return None
    shown_to = _ask(step, layout, rendezvous, timeout)
    _refuse_numbers_of_each_task(layout, shown_to)
    node = layout.node_of[rendezvous.rank]
    own = shown_to[rendezvous.rank]
    return [layout.local_rank_of[r] for r in layout.ranks_on(node) if shown_to[r] == own]


def _ask(step: SlurmStep, layout: Layout, rendezvous: Rendezvous, timeout: float) -> List[str]:
    """Returns by rank the devices that each task sees."""
    key = rendezvous.identity, rendezvous.rank
    if key not in _told:
        names = [f"rank {rank} on {layout.nodes[n]}" for rank, n in enumerate(layout.node_of)]
        note = {"devices": shown_gpus(step)}
        try:
            answer = meet(rendezvous, "gpus", names, note, _collect, timeout)
        except RendezvousError as error:
            raise GpuError(
                f"SLURMD_TRES_BIND={step.tres_bind}: which tasks share the GPUs that --gpu-bind="
                f"closest shows cannot be known, as the tasks could not tell each other: {error} "
                "Start with srun --gpu-bind=per_task:N, or without --gpu-bind."
            ) from error
        _told[key] = json.loads(zlib.decompress(b64decode(answer["devices"])))
    return _told[key]


def _refuse_numbers_of_each_task(layout: Layout, shown_to: List[str]) -> None:
    """Raises GpuError, in all tasks alike, where a number may be another GPU in each task."""
    on_node: Dict[int, List[str]] = {}
    for node, shown in zip(layout.node_of, shown_to):
        on_node.setdefault(node, []).append(shown)
    for node, all_shown in on_node.items():
        unsure = find_own_numbers(all_shown)
        if unsure is not None:
            raise GpuError(
                f"CUDA_VISIBLE_DEVICES is {unsure} GPUs in tasks on {layout.nodes[node]}: under "
                "--gpu-bind=closest these may be the same GPUs, or other ones in each task, which "
                "Slurm numbers from 0 where it confines tasks (ConstrainDevices). Start with srun "
                "--gpu-bind=per_task:N, or without --gpu-bind; or let the driver tell: pip install "
                "nvidia-ml-py."
            )


def _collect(notes: Dict[int, Note]) -> Dict[str, Any]:
    devices = [notes[rank]["devices"] for rank in range(len(notes))]
    return {"devices": b64encode(zlib.compress(json.dumps(devices).encode(), 1)).decode()}
