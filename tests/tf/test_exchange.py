"""What ends the step or the call of a worker, by its state."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from captured import Patch
from kinds import Fields, Strings

from slurm_resolver.coordination.training_group import Group
from slurm_resolver.errors import FitError
from slurm_resolver.tf import exchange
from slurm_resolver.tf.exchange import STEP, State, Workers

NAMES = [f"worker {rank} (rank {rank} on n{rank})" for rank in range(3)]


@pytest.fixture
def aborted(monkeypatch: Patch) -> Strings:
    """Why the collectives of the worker have ended."""
    reasons: Strings = []
    monkeypatch.setattr(exchange, "abort_collectives", reasons.append)
    return reasons


@pytest.fixture
def worker(aborted: Strings) -> Workers:
    """Worker 1, without a thread of its client."""
    resolver = SimpleNamespace(
        cluster_spec=lambda: SimpleNamespace(as_dict=lambda: {"worker": NAMES}),
        task_type="worker",
        task_id=1,
    )
    client: Any = SimpleNamespace(
        name_of=NAMES.__getitem__,
        address=SimpleNamespace(rank=1),
        listeners={},
        begun={exchange._PURPOSE: 3},
        offered=[],
    )
    client.listen = client.listeners.__setitem__
    client.offer = lambda purpose, given: client.offered.append(given)
    return Workers(SimpleNamespace(cluster_resolver=resolver), Group(client, range(3)))


def happen(worker: Workers, message: Fields) -> None:
    """Lets the worker take a message of the service."""
    worker.client.listeners[next(iter(message))](message)


FAILED = "worker 0 has failed in fit: ValueError"
GONE = f"{NAMES[2]} is gone: its process has ended"
ALONE = f"{NAMES[1]} was stopped or cut off, and the others have ended without it"
LEFT = f"{NAMES[2]} has ended, and cannot take part in a step"
# What happens to another worker, why it ends the collectives of this one, and in which states.
EVENTS: list[tuple[Fields, str, set[State]]] = [
    (
        {"told": "failed 1", "value": FAILED},
        FAILED,
        {State.BEGUN, State.STEP},
    ),
    ({"left": [2]}, LEFT, {State.STEP}),
    ({"gone": 2, "why": "its process has ended"}, GONE, {*State}),
    ({"gone": 0, "why": f"FitError: {GONE}"}, GONE, {*State}),
    ({"gone": 0, "why": f"FitError: {NAMES[1]} is gone: it is silent"}, ALONE, {*State}),
    ({"gone": 1, "why": "the service has given up this task", "service": True}, ALONE, {*State}),
]


@pytest.mark.parametrize(("event", "reason", "states"), EVENTS)
@pytest.mark.parametrize("state", State)
def test_what_ends_the_collectives(
    worker: Workers,
    aborted: Strings,
    state: State,
    event: Fields,
    reason: str,
    states: set[State],
) -> None:
    worker.enter(State.BEGUN, "fit")
    if state in (State.ENDED, State.FAILED):
        worker.enter(state)
    worker.state = state
    happen(worker, event)
    assert [text[: len(reason)] for text in aborted] == [reason] * (state in states)


ENDED = "has ended that call"
# The state of a worker that has begun step 5, the call and the step of one that waits in an
# exchange, and what the worker answers to it.
WAITING: list[tuple[State, int | None, int, str]] = [
    (State.STEP, 1, 4, STEP),
    (State.STEP, 1, 5, ""),
    (State.ENDED, 1, 5, ENDED),
    (State.ENDED, None, 5, ""),
]


@pytest.mark.parametrize(("state", "call", "step", "answer"), WAITING)
def test_what_a_worker_answers_to_one_that_waits(
    worker: Workers, aborted: Strings, state: State, call: int | None, step: int, answer: str
) -> None:
    worker.enter(State.BEGUN, "fit")
    if state is State.ENDED:
        worker.enter(state)
    worker.state = state
    worker._steps = 5
    waiting = ["worker 0", "ends epoch 1", step, call]
    happen(worker, {"awaited": (exchange._PURPOSE, 4), "value": json.dumps(waiting)})
    assert [waiting.does for waiting in worker.client.offered] == [answer] * bool(answer)
    assert len(aborted) == (answer == STEP)


def test_what_has_happened_ends_what_would_wait(worker: Workers) -> None:
    worker.enter(State.BEGUN, "fit")
    with pytest.raises(FitError, match=FAILED), worker.doing(State.EXCHANGE):
        happen(worker, EVENTS[0][0])  # after the others have come
    worker.enter(State.ENDED)
    happen(worker, {"left": [2]})
    worker.refuse_loss()  # a save of the others need not end
    with pytest.raises(FitError, match=re.escape(LEFT)), worker.doing(State.STEP):
        pytest.fail("it waits")


def test_a_worker_that_does_not_answer_tensorflow_is_named(worker: Workers) -> None:
    error = tf.errors.UnavailableError(None, None, "from /job:worker/replica:0/task:2: timed out")
    reason = f"{NAMES[2]} is gone: it does not answer TensorFlow"
    assert worker.lost_by(error) == reason


LOST = {
    "Error reported from /job:worker/task:1: The following tasks are unhealthy (stopped sending "
    "heartbeats):\n/job:worker/replica:0/task:2\n": "worker 1",
    "{{function_node __wrapped__A_device_/job:worker/replica:0/task:3/device:CPU:0}} Socket closed "
    "from remote target /job:worker/replica:0/task:12 while calling /B": "worker 12",
    "Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat": "chief 0",
    "/job:worker/replica:0/task:0 said so": "",
}


def test_the_task_that_tensorflow_has_lost() -> None:
    names = ["chief 0", "worker 0", "worker 1", "worker 12"]
    workers: Any = SimpleNamespace(names=names, full_names=names, name="worker 0")
    for text, task in LOST.items():
        error = tf.errors.DeadlineExceededError(None, None, text)
        assert Workers.lost_by(workers, error).partition(" is gone")[0] == task
