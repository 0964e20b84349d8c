"""The options of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Callable, Literal, NamedTuple, Union, get_args

from slurm_resolver.errors import JobsError, LayoutError

Placement = Literal["spread", "rank"]
WorkerOrder = Literal["ring", "rank"]
LayoutChoice = Literal["auto", "environment", "rendezvous"]
PLACEMENTS = get_args(Placement)
WORKER_ORDERS = get_args(WorkerOrder)
LAYOUTS = get_args(LayoutChoice)

JobCounts = Mapping[str, int]  # the number of tasks of each job; -1 is the rest
# TensorFlow's strategies know these only. Its servers take any other name as well.
JOB_NAMES = ("chief", "worker", "ps", "evaluator")
HetGroups = Mapping[str, int]  # from a job's name to the component to take its tasks from
TasksPerNode = Union[int, Mapping[str, int]]  # on every node, or by node name
NodeAddress = Union[str, Mapping[str, str], Callable[[str], str]]


class ClusterOptions(NamedTuple):
    """The options of a cluster, which `SlurmClusterResolver` explains.

    `until` is the time of `time.monotonic` by which the tasks must have exchanged the layout; with
    None, they wait as at any start.
    """

    jobs: JobCounts | None = None
    port_base: int | None = None
    placement: Placement = "spread"
    worker_order: WorkerOrder = "ring"
    het_groups: HetGroups | None = None
    node_address: NodeAddress | None = None
    gpu_jobs: Collection[str] | None = None
    layout: LayoutChoice = "auto"
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    tasks_per_node: TasksPerNode | None = None
    local: bool = False
    until: float | None = None

    @property
    def gives_gpu_counts(self) -> bool:
        """Whether the caller says how many GPUs there are, and ensures that processes see them."""
        return self.gpus_per_node is not None or self.gpus_per_task is not None

    def check(self) -> None:
        """Raises JobsError or LayoutError for a choice or a name that this package does not know.

        Whether the counts of `jobs` fit is known with the number of tasks.
        """
        for name, choices, error in (
            ("placement", PLACEMENTS, JobsError),
            ("worker_order", WORKER_ORDERS, JobsError),
            ("layout", LAYOUTS, LayoutError),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise error(f"{name}={value!r}: expected one of {', '.join(choices)}.")
        # A job in `jobs` is known even if it has no tasks.
        names = [*JOB_NAMES, *(self.jobs if isinstance(self.jobs, Mapping) else ())]
        for name, kind, expected in (
            ("gpu_jobs", Collection, "a collection of these names"),
            ("het_groups", Mapping, "a mapping from these names to components"),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            is_kind = isinstance(value, kind) and not isinstance(value, str)
            if not is_kind or not all(job in names for job in value):
                raise JobsError(
                    f"{name}={value!r}: expected {expected}: {', '.join(map(str, names))}."
                )
