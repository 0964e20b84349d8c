"""On the real Slurm, workers that save together write one complete file that all can read."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from folders import quiet_helper
from keras_marks import KERAS_3_ON_SLURM
from keras_outcomes import outcomes
from kinds import Records
from slurm_cluster import SlurmCluster
from told_by_workers import run_on_slurm

pytestmark = KERAS_3_ON_SLURM

PROGRAM = quiet_helper("keras_saving.py")
Workers = Records


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def workers(real_slurm: SlurmCluster, folder: Path) -> Workers:
    """The results of two workers that have saved in every way."""
    run_on_slurm(real_slurm, PROGRAM, folder)
    return outcomes(folder, ["0", "1"])


def test_callbacks_write_one_good_file(workers: Workers, folder: Path) -> None:
    for worker in workers:
        best, highest = worker["callbacks"]["best"]
        assert best == highest
        assert worker["callbacks"]["loaded"] == [None]
    for name in ("best.keras", "by one.keras", "last.keras"):
        assert zipfile.ZipFile(folder / name).testzip() is None
    assert not (folder / "backup").exists()
    assert not [path.name for path in folder.rglob(".saving*")]


def test_whatever_is_saved_can_be_read_at_once_and_one_worker_alone_saves_in_the_scope(
    workers: Workers,
) -> None:
    for index, worker in enumerate(workers):
        assert worker["ways"] == {way: ["read"] for way in worker["ways"]}
        assert worker["late"]
        assert worker["in_scope"] == dict.fromkeys(worker["in_scope"], [None] * (2 - index))


def test_an_uncompiled_model_is_saved_and_keras_says_that_it_cannot_train(
    workers: Workers,
) -> None:
    for worker in workers:
        found = worker["uncompiled"]
        assert [found["save"], found["export"]] == [None, None]
        assert found["predict"] == [96, 3]
        for call in ("fit", "evaluate"):
            assert found[call].startswith("ValueError: You must call `compile()`")


def test_the_workers_still_hold_the_same(workers: Workers) -> None:
    assert workers[0]["weights"] == workers[1]["weights"]


def test_another_number_of_workers_goes_on(
    workers: Workers, real_slurm: SlurmCluster, folder: Path
) -> None:
    """The optimizer's state is loaded, so one more epoch has the same result as before."""
    run_on_slurm(real_slurm, [*PROGRAM, "--load"], folder, "-w n9,n10 -N2 -n3")
    found = outcomes(folder, ["loaded-0", "loaded-1", "loaded-2"])
    np.testing.assert_allclose(found[0]["predicted"], workers[0]["predicted"], atol=1e-5)
    for one, other in zip(found[0]["weights"], workers[0]["weights"]):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert all(task == found[0] for task in found)
