"""What a worker says of the loss of another one."""

from __future__ import annotations

import types

import pytest
from captured import Patch
from kinds import Strings

from slurm_resolver.tf import peers
from slurm_resolver.tf.peers import Peers

NAMES = [f"worker {rank} (rank {rank} on n{rank})" for rank in range(3)]


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("its process has ended", f"{NAMES[0]} is gone: its process has ended"),
        (f"FitError: {NAMES[2]} is gone: it is silent", f"{NAMES[2]} is gone: it is silent"),
        (
            f"FitError: {NAMES[1]} is gone: it is silent",
            f"{NAMES[1]} was stopped or cut off, and the others have ended without it",
        ),
    ],
)
def test_the_worker_is_named_that_has_ended_the_training(
    why: str, reason: str, monkeypatch: Patch
) -> None:
    """Worker 1 learns that worker 0 ends, which gives a reason."""
    told: Strings = []
    monkeypatch.setattr(peers, "abort_collectives", told.append)
    one = object.__new__(Peers)
    one.ranks = {rank: f"worker {rank}" for rank in range(3)}
    one.client = types.SimpleNamespace(
        name_of=NAMES.__getitem__, address=types.SimpleNamespace(rank=1)
    )
    one._take_loss({"gone": 0, "why": why})
    assert told == [one.loss] == [reason]
