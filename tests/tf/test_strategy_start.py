"""Who may start a strategy, and what its options leave to the choice between NCCL and gRPC."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from captured import Patch

from slurm_resolver.errors import RendezvousError
from slurm_resolver.start.transport import TaskDevices
from slurm_resolver.tf import strategy_start

OPTIONS = tf.distribute.experimental.CommunicationOptions
AUTO = tf.distribute.experimental.CommunicationImplementation.AUTO
NCCL = tf.distribute.experimental.CommunicationImplementation.NCCL
RING = tf.distribute.experimental.CommunicationImplementation.RING
# The GPUs of two tasks, and whether they allow NCCL.
OWN = [TaskDevices(f"n{rank}", ["0"], usable=1) for rank in (0, 1)]
SHARED = [TaskDevices("n1", ["0"], usable=1)] * 2


def chosen(of_program: Any, devices: list[TaskDevices], patch: Patch) -> Any:
    """Returns the options that one of two tasks uses."""
    cluster = SimpleNamespace(gpus=())
    patch.setattr(strategy_start, "cluster_of", lambda resolver: cluster)
    patch.setattr(strategy_start, "task_devices", lambda cluster, usable: None)
    group: Any = SimpleNamespace(gather=lambda *purpose: dict(enumerate(devices)))
    return strategy_start.choose_communication(of_program, group, resolver=None)


GIVEN = [
    None,
    OPTIONS(),
    OPTIONS(bytes_per_pack=9),
    OPTIONS(timeout_seconds=60.0),
    OPTIONS(implementation=NCCL),
    OPTIONS(implementation=RING),
]


@pytest.mark.parametrize("devices", [OWN, SHARED])
@pytest.mark.parametrize("of_program", GIVEN)
def test_options_without_an_implementation_leave_the_choice(
    of_program: Any, devices: list[TaskDevices], monkeypatch: Patch
) -> None:
    options = chosen(of_program, devices, monkeypatch)
    expected = of_program or OPTIONS()
    if devices is SHARED or expected.implementation is not AUTO:
        assert options is of_program
        return
    assert options.implementation is NCCL
    assert options.bytes_per_pack == expected.bytes_per_pack
    assert options.timeout_seconds == expected.timeout_seconds


# Where a second strategy is refused: whether this process has one, and what the error says.
SECOND = {
    "in the same process": (True, "this process has a strategy already, whose server listens at"),
    "in a second program": (
        False,
        (
            r"worker 0, the only task of its step, cannot listen at port \d+: Address already in "
            r"use \(ss -ltnp shows by what\): a second program in the same task"
        ),
    ),
}


@pytest.mark.parametrize("where", SECOND)
def test_a_second_strategy_is_refused(where: str, port: int, monkeypatch: Patch) -> None:
    is_served, said = SECOND[where]
    task = SimpleNamespace(rank=0, address=f"n1:{port}")
    cluster: Any = SimpleNamespace(task=task, tasks=[task], name_of="worker {}".format)
    monkeypatch.setattr(strategy_start, "_served", {task.address} if is_served else set())
    with socket.create_server(("", port)), pytest.raises(RendezvousError, match=said):
        strategy_start._refuse_second(cluster)
