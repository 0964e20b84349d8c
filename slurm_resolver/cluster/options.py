"""What a caller may choose about the cluster."""

from __future__ import annotations

import functools
import time
from typing import Callable, Collection, Literal, Mapping, NamedTuple, Optional, Tuple

from slurm_resolver.cluster.node_address import NodeAddress, host_for
from slurm_resolver.cluster.roles import Placement, WorkerOrder

LayoutChoice = Literal["auto", "environment", "rendezvous"]
LAYOUTS: Tuple[LayoutChoice, ...] = ("auto", "environment", "rendezvous")
MEETING_SECONDS = 60.0


class ClusterOptions(NamedTuple):
    """Everything that a caller may choose about the cluster; `resolve` explains each option.

    `gpus_per_node` and `gpus_per_task` are arguments of TensorFlow's resolver, and so of
    `SlurmClusterResolver`. Until `until`, a time of `time.monotonic`, the tasks may tell each other
    where they run; None is `MEETING_SECONDS` from then on.
    """

    jobs: Optional[Mapping[str, int]] = None
    port_base: Optional[int] = None
    placement: Placement = "spread"
    worker_order: WorkerOrder = "ring"
    het_groups: Optional[Mapping[str, int]] = None
    node_address: Optional[NodeAddress] = None
    gpu_jobs: Optional[Collection[str]] = None
    layout: LayoutChoice = "auto"
    gpus_per_node: Optional[int] = None
    gpus_per_task: Optional[int] = None
    local: bool = False
    until: Optional[float] = None

    @property
    def meeting_seconds(self) -> float:
        """The seconds in which all tasks have to come to a meeting that begins now."""
        return MEETING_SECONDS if self.until is None else max(0.0, self.until - time.monotonic())

    @property
    def host_of(self) -> Callable[[str], str]:
        """A function from a node's name to the host that others connect to."""
        return functools.partial(host_for, node_address=self.node_address)
