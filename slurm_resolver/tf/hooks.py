"""The private methods of TensorFlow's resolver, which its subclasses may override.

The reference is tensorflow/python/distribute/cluster_resolver/slurm_cluster_resolver.py.
"""

from __future__ import annotations

from slurm_resolver.errors import LayoutError

# What subclasses of TensorFlow's resolver may override.
HOOKS = (
    "_resolve_own_rank",
    "_resolve_num_tasks",
    "_resolve_hostlist",
    "_resolve_task_configuration",
)


def refuse_hooks(resolver: type) -> None:
    """Raises LayoutError if a subclass has a private method that TensorFlow's resolver calls."""
    names = [name for name in HOOKS if hasattr(resolver, name)]
    if names:
        raise LayoutError(
            f"{resolver.__name__} has {', '.join(names)}, which only TensorFlow's resolver calls. "
            "Expected arguments instead: tasks_per_node for the number of tasks on each node, and "
            "node_address for other names of the nodes; the ranks are Slurm's."
        )
