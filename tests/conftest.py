"""Shared fixtures, such as one real Slurm of each version for the whole session."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kinds import Strings
from slurm_conf import numbered
from slurm_fixture import slurm_of
from slurm_installation import PATH, Installation, installations, slurm_or_skip

from slurm_resolver import log
from slurm_resolver.local.environment import free_ports
from slurm_resolver.slurm.ancestors import Ancestors

# A busy machine may take long to generate and run an example. That is no fault of the code.
settings.register_profile(
    "without deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("without deadline")

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --slurm."""
    parser.addoption(
        "--slurm",
        action="append",
        metavar="VERSION",
        help="Slurm to test on (newest): one such as 24.11, oldest, or older: all but the newest",
    )


def chosen(asked: Strings) -> list[Installation]:
    """Returns the selected versions."""
    versions = installations()
    found = {
        "oldest": versions[:1],
        "newest": versions[-1:],
        "older": versions[:-1],
    }
    found.update((one.version, [one]) for one in versions)
    missing = ", ".join(version for version in asked if not found.get(version))
    if missing:
        here = ", ".join(one.version for one in versions)
        raise pytest.UsageError(
            f"--slurm: {missing} not found, only {here}; `make slurms` adds versions"
        )
    return [one for version in asked for one in found[version]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test on the real Slurm once on each selected version."""
    if "installation" in metafunc.fixturenames:
        versions = chosen(metafunc.config.getoption("--slurm") or ["newest"])
        ids = [one.version or "no Slurm" for one in versions]
        metafunc.parametrize(
            "installation",
            versions,
            ids=ids,
            scope="session",
        )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks every test that uses a real Slurm."""
    if "installation" in getattr(item, "fixturenames", ()):
        item.add_marker("slurm")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs what is missing; equal reasons become one line at the end."""
    if item.get_closest_marker("tensorflow") and not HAS_TENSORFLOW:
        pytest.skip("TensorFlow is not installed")
    if item.get_closest_marker("root") and os.geteuid():
        pytest.skip("needs root")
    if item.get_closest_marker("slurm") and not installations()[-1].version:
        slurm_or_skip("Slurm is not installed: `make slurm`")
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if shutil.which(name, path=PATH) is None:
                slurm_or_skip(f"{name} is not installed: `make slurm`")


@pytest.fixture(autouse=True)
def _no_slurm_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the Slurm job in which the tests themselves may run."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SLURMD_")) and name != "SLURM_RESOLVER_REQUIRE_SLURM":
            monkeypatch.delenv(name)
    for name in ("CUDA_VISIBLE_DEVICES", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("slurm_resolver.slurm.step_variables.find_ancestors", lambda _: Ancestors())


@pytest.fixture(autouse=True)
def _warned_of_nothing() -> None:
    """Lets each test see the warnings that a process logs only once."""
    log.warned.clear()


@pytest.fixture(autouse=True)
def _blocked_signals() -> Iterator[None]:
    """Unblocks what a test blocks, such as by a strategy: other tests start processes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The folder to which the tasks of a real step write their records."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


@pytest.fixture
def port() -> int:
    """A free port of this machine."""
    (found,) = free_ports(1)
    return found


# A real Slurm of five nodes, n8 to n12, whose names sort differently as strings.
real_slurm = slurm_of(numbered(8, 12, gpus=4), scope="session")
