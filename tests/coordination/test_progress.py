"""Every log names the worker for which the others wait."""

from __future__ import annotations

import pytest
from kinds import Fields

from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.progress import (
    CALLBACK,
    COMPILING,
    DATA,
    IDLE,
    MEETING,
    SAVING,
    STEP,
    Monitor,
    Report,
    find_stall,
)
from slurm_resolver.coordination.tasks import Tasks

LIMIT = 300.0


def task(rank: int) -> str:
    return f"worker {rank} (rank {rank} on n{rank // 2})"


def at(
    step: int,
    phase: str = STEP,
    *,
    stage: str = "training",
    epoch: int = 1,
    age: float = 301.0,
    begun: int = -1,
    ms: float = 5.0,
) -> Report:
    begun = step if begun < 0 else begun
    return Report(stage, epoch, step, begun, phase, age, ms)


def said(workers: dict[int, Report]) -> str:
    _, line = find_stall(workers, LIMIT, task)
    return line.replace(" of epoch 1", "")


FIRST_FIVE = ", ".join(task(rank) for rank in range(5))
IN_A_STEP = dict.fromkeys(range(7), at(812))
STALLS = {
    "several": (
        {
            **IN_A_STEP,
            3: at(811, CALLBACK),
            5: at(811, DATA),
            7: at(811, CALLBACK),
        },
        (
            "worker 5 (rank 5 on n2) in step 811, waiting for data; worker 3 (rank 3 on n1), "
            "worker 7 (rank 7 on n3) in step 811, in a callback. The others wait: worker 0 "
            "(rank 0 on n0), worker 1 (rank 1 on n0), worker 2 (rank 2 on n1), worker 4 (rank 4 "
            "on n2), worker 6 (rank 6 on n3) in step 812"
        ),
    ),
    "all in the step": (
        IN_A_STEP,
        (
            f"{FIRST_FIVE} and 2 more in step 812. They wait for each other in its collective "
            "operations: look at the network between their nodes (firewalls, the MTU), and at "
            "their GPUs (nvidia-smi, "
            "dmesg)"
        ),
    ),
    "one worker beside an evaluator": ({0: at(812)}, "worker 0 (rank 0 on n0) in step 812"),
    "a worker that has left fit": (
        {
            0: at(5),
            1: at(
                0,
                IDLE,
                stage="",
                begun=4,
            ),
        },
        (
            "worker 1 (rank 1 on n0) outside of fit, evaluate and predict. The others wait: "
            "worker 0 (rank 0 on n0) in step 5"
        ),
    ),
    "at an epoch's end": (
        {
            0: at(812, MEETING),
            1: at(812, CALLBACK),
        },
        (
            "worker 1 (rank 1 on n0) in step 812, in a callback. The others wait: "
            "worker 0 (rank 0 on n0) in step 812, waiting for the others"
        ),
    ),
    "an epoch later": (
        {
            0: at(
                1,
                begun=813,
                epoch=2,
            ),
            1: at(812, CALLBACK),
        },
        (
            "worker 1 (rank 1 on n0) in step 812, in a callback. The others wait: "
            "worker 0 (rank 0 on n0) in step 1 of epoch 2"
        ),
    ),
}


@pytest.mark.parametrize(("workers", "line"), STALLS.values(), ids=list(STALLS))
def test_a_stall_is_told_in_one_line(workers: dict[int, Report], line: str) -> None:
    assert said(workers) == f"no step for 301 s: {line}"


GOOD = {
    "one prepares its data before fit": {
        0: at(
            0,
            IDLE,
            stage="",
            age=3500,
        ),
        1: at(
            0,
            MEETING,
            stage="fit",
            age=3500,
        ),
    },
    "one worker has just begun a step": {**IN_A_STEP, 3: at(813, age=299)},
    "compiling": dict.fromkeys(range(8), at(1, COMPILING, age=3500)),
    "one saves, the others wait": {**IN_A_STEP, 7: at(811, SAVING, age=3500)},
    "nobody trains": dict.fromkeys(
        range(8),
        at(
            0,
            IDLE,
            stage="",
            age=1e6,
        ),
    ),
    "ten steps of 40 s": dict.fromkeys(
        range(8),
        at(
            7,
            ms=40_000,
            age=390,
        ),
    ),
}


@pytest.mark.parametrize("workers", GOOD.values(), ids=list(GOOD))
def test_a_good_run_is_silent(workers: dict[int, Report]) -> None:
    assert said(workers) == ""


def test_what_may_take_long_is_told_after_an_hour() -> None:
    assert said({0: at(0, IDLE, stage="", age=4000), 1: at(0, MEETING, stage="", age=4000)}) == (
        "no step for 4000 s: worker 0 (rank 0 on n0) outside of fit, evaluate and predict. The "
        "others wait: worker 1 (rank 1 on n0) waiting for the others"
    )
    assert said({0: at(5, age=4000), 1: at(4, SAVING, age=4000)}).endswith(
        "worker 1 (rank 1 on n0) in step 4, saving. The others wait: worker 0 (rank 0 on n0) "
        "in step 5"
    )


def test_each_stall_is_told_and_repeated_every_300_s() -> None:
    sent: list[str] = []

    class Told(Tasks):
        def send(self, ranks: object, message: Fields) -> None:
            sent.append(f"{self.clock.now:.0f}: {message['stall'].partition(':')[0]}")

    address = ServiceAddress("n0", 1, "n0", "42.0 start 0", 1, 0, True)
    tasks = Told(address, task)
    monitor = Monitor(tasks)
    for now in range(500):
        tasks.clock.now = now
        if now in (0, 70):  # the only steps
            report = [*at(now, age=0.0)]
            monitor.message(0, {"progress": report, "limit": 60.0})
        monitor.tick()
    assert sent == [
        "61: no step for 61 s",
        "70: steps advance again",
        "131: no step for 61 s",
        "432: no step for 362 s",
    ]
