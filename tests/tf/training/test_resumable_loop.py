"""A loop that was interrupted goes on with the batches that are left."""

from __future__ import annotations

from pathlib import Path

import pytest
from labelled_rows import BrokenOffError

import slurm_resolver as sr

EPOCHS = 2
STEPS = 4


@pytest.mark.parametrize("steps_before", [1, 4, 6])
@pytest.mark.parametrize("kind", ["an epoch's", "an epoch's iterator", "all"])
@pytest.mark.parametrize("steps", [STEPS, None])
def test_each_batch_is_a_step_once(
    tmp_path: Path, kind: str, steps: int | None, steps_before: int
) -> None:
    """The data are those of an epoch, or one iterator over those of all epochs."""
    if kind == "all" and steps is None:
        pytest.skip("an epoch without an end")
    seen: list[int] = []

    def train(most: int) -> None:
        termination = sr.termination_config(None, signals=())
        loop = sr.ResumableLoop(str(tmp_path), termination=termination, save_every=1)
        of_all = iter(range(EPOCHS * STEPS))
        for epoch in loop.epochs(EPOCHS):
            of_epoch = range(epoch * STEPS, (epoch + 1) * STEPS)
            data = {"an epoch's": of_epoch, "an epoch's iterator": iter(of_epoch), "all": of_all}
            for batch in loop.batches(data[kind], steps):
                if len(seen) == most:
                    raise BrokenOffError
                seen.append(batch)

    with pytest.raises(BrokenOffError):
        train(steps_before)
    train(EPOCHS * STEPS)
    assert seen == list(range(EPOCHS * STEPS))


def test_batches_of_an_epoch_that_the_program_leaves_are_read(tmp_path: Path) -> None:
    seen: list[int] = []

    def train(most: int) -> None:
        termination = sr.termination_config(None, signals=())
        loop = sr.ResumableLoop(str(tmp_path), termination=termination, save_every=1)
        data = iter(range(EPOCHS * STEPS))
        for _ in loop.epochs(EPOCHS):
            for batch in loop.batches(data):
                if len(seen) == most:
                    raise BrokenOffError
                seen.append(batch)
                if len(seen) % STEPS == 0:
                    break

    with pytest.raises(BrokenOffError):
        train(STEPS + 2)
    train(EPOCHS * STEPS)
    assert seen == list(range(EPOCHS * STEPS))
