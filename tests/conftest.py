"""What many tests share: one real Slurm of each version for the whole session, and data."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Iterator, List

import pytest
from free_ports import free_port
from hypothesis import HealthCheck, settings
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation, installations

from slurm_resolver import log
from slurm_resolver.slurm.ancestors import Ancestors

# A busy machine may take any time to make an example and to run it: that says nothing of the code.
settings.register_profile(
    "without deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("without deadline")

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --slurm."""
    help_ = "what Slurm to test on: one such as 24.11, oldest, newest, or older: all but the newest"
    parser.addoption("--slurm", action="append", metavar="VERSION", help=help_)


def chosen(asked: List[str]) -> List[Installation]:
    """Returns the versions that are asked for, by default all that are here."""
    versions = installations()
    found = {"oldest": versions[:1], "newest": versions[-1:], "older": versions[:-1]}
    found.update((one.version, [one]) for one in versions)
    missing = ", ".join(version for version in asked if not found.get(version))
    if missing:
        here = ", ".join(one.version for one in versions)
        raise pytest.UsageError(
            f"--slurm: no {missing} here, but {here}; `make slurms` gets others"
        )
    return [one for version in asked for one in found[version]] or versions


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test on the real Slurm runs on each version; one that trains on the oldest and newest.

    One that is marked so runs on the newest alone: what it asks depends on no version, or a test
    without TensorFlow asks it of each.
    """
    if "installation" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--slurm")
        versions = chosen(asked or [])
        if not asked and metafunc.definition.get_closest_marker("tensorflow"):
            versions = versions[:: max(1, len(versions) - 1)]
        if not asked and metafunc.definition.get_closest_marker("newest"):
            versions = versions[-1:]
        ids = [one.version or "no Slurm" for one in versions]
        metafunc.parametrize("installation", versions, ids=ids, scope="session")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs TensorFlow where there is none; slurm_cluster.py does so for Slurm."""
    if item.get_closest_marker("tensorflow") and not HAS_TENSORFLOW:
        pytest.skip("TensorFlow is not installed")


@pytest.fixture(autouse=True)
def _no_slurm_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may themselves run in a Slurm job: neither that nor its variables reach them."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SLURMD_")) and name != "SLURM_RESOLVER_REQUIRE_SLURM":
            monkeypatch.delenv(name)
    for name in ("CUDA_VISIBLE_DEVICES", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("slurm_resolver.slurm.step.find_ancestors", lambda _: Ancestors())


@pytest.fixture(autouse=True)
def _warned_of_nothing() -> None:
    """What is said once in a process is said once in a test."""
    log.warned.clear()


@pytest.fixture
def port() -> int:
    """A free port of this machine."""
    return free_port()


@pytest.fixture(scope="session")
def real_slurm(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlurmCluster]:
    """A real Slurm of five nodes, n8 to n12: names whose order as strings is not theirs."""
    nodes = [Node(f"n{number}", cpus=8, gpus=4) for number in range(8, 13)]
    directory = tmp_path_factory.mktemp("slurm")
    with started(SlurmCluster(nodes, directory, installation=installation)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mnist_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in MNIST's shape and types, in a file with MNIST's names."""
    np = pytest.importorskip("numpy")
    digits, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    images = np.kron(digits.reshape(-1, 8, 8), np.ones((3, 3))) * 255 / 16
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype("uint8")
    labels = labels.astype("uint8")
    assert images.shape[1:] == (28, 28)
    path: Path = tmp_path_factory.mktemp("mnist") / "mnist.npz"
    train, test = slice(0, 1437), slice(1437, None)
    parts = {"x_train": images[train], "x_test": images[test]}
    np.savez(path, **parts, y_train=labels[train], y_test=labels[test])
    return path
