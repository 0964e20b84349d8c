"""Who trains together, or does anything else that several tasks do.

Those that train have the jobs `coordination.TRAIN`. `start.ready.find_group` finds their ranks in a
cluster: the strategies, the exchanges of Keras' workers, their reports and checkpoints all use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slurm_resolver.coordination.client import Client


class Group(NamedTuple):
    """Some tasks of a step; each of them has the same group, with its own connection.

    Attributes:
        client: this task's connection to the coordination service.
        ranks: of the tasks, one job after the other, by index.
    """

    client: Client
    ranks: Sequence[int]

    @property
    def names(self) -> list[str]:
        """The tasks as messages name them."""
        return [*map(self.client.name_of, self.ranks)]

    def gather(self, purpose: str, value: Any, timeout: float | None) -> dict[str, Any]:
        """Returns the values that these tasks give, by name; see `Client.gather`."""
        values = self.client.gather(
            purpose,
            value,
            timeout,
            self.ranks,
        )
        return dict(zip(self.names, values.values()))
