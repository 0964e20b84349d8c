"""Which nodes of the allocation a step may run on.

A node that fails leaves a job with --no-kill: Slurm removes it from the job's node list. One that
is drained, or does not answer, stays in it, and only its own state shows it.
"""

from __future__ import annotations

from typing import Collection, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.hostlist_compress import compress_hostlist

# Words of `scontrol show node`, such as MIXED+DRAIN. MAINT, RESERVED and REBOOT_REQUESTED let a job
# that runs there continue.
_UNHEALTHY = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE"),
    *("NOT_RESPONDING", "INVALID_REG", "REBOOT_ISSUED"),
    *("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"),
}


def is_healthy(state: str) -> bool:
    """Whether a node in this state, as `scontrol show node` writes it, can start tasks."""
    parts = state.upper().split("+")
    # the star of older versions: the node does not respond
    return bool(state) and not any(part in _UNHEALTHY or part.endswith("*") for part in parts)


class Nodes(NamedTuple):
    """The nodes that a job still has, in Slurm's order, and the state of each."""

    names: Tuple[str, ...] = ()
    states: Mapping[str, str] = {}

    def healthy(self) -> Tuple[str, ...]:
        """Returns those that can start tasks."""
        return tuple(name for name in self.names if is_healthy(self.states.get(name, "")))


def nodes_of(job: Mapping[str, str], timeout: float) -> Nodes:
    """Returns the nodes of a job (`scontrol.show_job`); OSError: the controller does not answer."""
    nodelist = job.get("NodeList", "")
    if nodelist in scontrol.UNSET:
        return Nodes()
    return Nodes(tuple(expand_hostlist(nodelist)), scontrol.node_states(nodelist, timeout))


def choose(
    healthy: Sequence[str], suspects: Collection[str], wanted: int, least: int
) -> Tuple[str, ...]:
    """Returns the nodes for a step: `wanted` of the healthy ones, at least `least`, or none.

    Suspects are nodes on which a step has failed, although Slurm calls them healthy: they are used
    only where too few nodes would be left without them.
    """
    trusted = [name for name in healthy if name not in suspects]
    pool = trusted if len(trusted) >= least else list(healthy)
    return tuple(pool[:wanted]) if len(pool) >= least else ()


def srun_options(nodes: Sequence[str], tasks_per_node: int) -> List[str]:
    """Returns srun's options for a step on these nodes."""
    return [
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes) * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        f"--nodelist={compress_hostlist(nodes)}",
    ]
