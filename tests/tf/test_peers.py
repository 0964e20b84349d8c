"""What a worker says of the loss of another one."""

from __future__ import annotations

import re
import types

import pytest
import tensorflow as tf
from captured import Patch
from kinds import Strings

from slurm_resolver.errors import FitError
from slurm_resolver.tf import peers
from slurm_resolver.tf.peers import Peers

NAMES = [f"worker {rank} (rank {rank} on n{rank})" for rank in range(3)]


def worker_1() -> Peers:
    one = object.__new__(Peers)
    one.ranks = {rank: f"worker {rank}" for rank in range(3)}
    one.names = [*one.ranks.values()]
    one.name = one.names[1]
    one.client = types.SimpleNamespace(
        name_of=NAMES.__getitem__, address=types.SimpleNamespace(rank=1)
    )
    return one


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
    one = worker_1()
    one._take_loss({"gone": 0, "why": why})
    assert told == [one.loss] == [reason]
    with pytest.raises(FitError, match=re.escape(reason)):
        one.refuse_loss()


def test_a_worker_that_has_left_is_not_lost() -> None:
    """A save of the others need not end."""
    one = worker_1()
    one._take_goodbyes({"left": [2]})
    assert one.absence.startswith(f"{NAMES[2]} has ended, and cannot take part in a step")
    one.refuse_loss()


def test_a_worker_that_does_not_answer_tensorflow_is_named() -> None:
    error = tf.errors.UnavailableError(None, None, "from /job:worker/replica:0/task:2: timed out")
    reason = f"{NAMES[2]} is gone: it does not answer TensorFlow"
    assert worker_1().lost_by(error) == reason
