"""The tasks of a step meet once, and stay in touch until the last one leaves.

The words of this folder:

service
    A thread in one task of the step, to which every task connects (`service`). That task is the one
    with local rank 0 on the step's first node.
client
    A task's connection to the service, which that task has as well (`client`). `tcp` opens it,
    `wire` says what goes over it, and `secret` how the two ends recognize each other.
process
    What represents a task. A task may have one process after another, such as `slurm-resolver exec`
    and then the program; each of them has another service.
gather
    Every task gives a value for a purpose, such as "the start", and gets the values of all
    (`rounds`).
group
    Tasks that do something together. Who trains together is in `training_group`.
serving
    Parameter servers, and workers of a coordinator, only serve the tasks that train. They end when
    the training is over (`training_with_servers` in the service, `member` in the tasks).
silent
    A process that does not answer, as it is stopped or hangs (`silence`).
progress
    What each worker does, which it reports every 5 s (`progress`).

What a task can rely on:

- A gather ends in every task, with all values, or with an error that names the missing tasks.
- A task that ends with a goodbye has left. One that ends without, or whose node is silent for the
  grace, is lost: all others are told which one, and why. A shorter outage does not count.
- A process that is silent on a node that answers, such as a stopped one, is named after the grace,
  and lost after four times as long. This also holds for the process of the service.
- Only processes that know the step's secret take part, where there is one; and only one process for
  each rank at a time.
- A forked process does not inherit the connection.

This folder knows ranks and the names of tasks, but no cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Callable, NamedTuple

from slurm_resolver.timeouts import Timeouts
from slurm_resolver.wording import shorten

# The jobs of the tasks that train together, and of all that take part in a training with servers.
TRAIN = ("chief", "worker")
TAKE_PART = (*TRAIN, "ps")

NameOf = Callable[[int], str]  # from a rank to how messages name its task


def named(texts: Mapping[int, str], name_of: NameOf, separator: str = ": ") -> list[str]:
    """Returns each of the texts, by rank, once, after the names of the tasks that gave it.

    The text of the fewest tasks comes first, as it is most likely the wrong one.
    """
    tasks = defaultdict(list)
    for rank, text in sorted(texts.items()):
        tasks[text].append(name_of(rank))
    return [
        f"{shorten(names)}{separator}{text}"
        for text, names in sorted(tasks.items(), key=lambda item: len(item[1]))
    ]


class ServiceAddress(NamedTuple):
    """The address of a step's coordination service.

    Only `rank` and `hosts_service` differ by task.
    """

    host: str
    port: int
    node: str  # for messages
    identity: str  # of the start of the step; a service admits no other
    num_tasks: int
    rank: int  # of this task
    hosts_service: bool  # whether the service runs in this task
    grace: float = Timeouts.grace  # seconds for which the network may fail before a task is lost
    # what a message adds to an address that does not answer: what to do
    remedy: str = ""

    @property
    def silence(self) -> float:
        """The seconds for which a process may not answer, on a node that does, until it is lost.

        A program may hold Python's interpreter lock for long, as in imports.
        """
        return Timeouts.silence_factor * self.grace

    @property
    def name(self) -> str:
        """The service as messages name it."""
        return f"the coordination service at {self.host}:{self.port} (local rank 0 on {self.node})"
