"""The options of a cluster."""

from __future__ import annotations

import time
from typing import Callable, Collection, Literal, Mapping, NamedTuple, Optional, Tuple, Union

from slurm_resolver.errors import JobsError, LayoutError

Placement = Literal["spread", "rank"]
WorkerOrder = Literal["ring", "rank"]
LayoutChoice = Literal["auto", "environment", "rendezvous"]
PLACEMENTS: Tuple[Placement, ...] = ("spread", "rank")
WORKER_ORDERS: Tuple[WorkerOrder, ...] = ("ring", "rank")
LAYOUTS: Tuple[LayoutChoice, ...] = ("auto", "environment", "rendezvous")

NodeAddress = Union[str, Mapping[str, str], Callable[[str], str]]

MEETING_SECONDS = 60.0


class ClusterOptions(NamedTuple):
    """The options of a cluster, which `SlurmClusterResolver` explains.

    `until` is the time of `time.monotonic` by which the tasks must have exchanged the layout; None
    allows `MEETING_SECONDS`.
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
        """The seconds that all tasks have to come to a meeting that begins now."""
        return MEETING_SECONDS if self.until is None else max(0.0, self.until - time.monotonic())

    def check_choices(self) -> None:
        """Raises JobsError or LayoutError for a value that is not one of an option's choices."""
        for name, choices, error in (
            ("placement", PLACEMENTS, JobsError),
            ("worker_order", WORKER_ORDERS, JobsError),
            ("layout", LAYOUTS, LayoutError),
        ):
            value = getattr(self, name)
            if value not in choices:
                expected = " or ".join(map(repr, choices))
                raise error(f"{name}={value!r}: expected {expected}.")
