"""Runs Keras' own tests in one process, or in lockstep in two workers.

KERAS_SOURCES is a folder with the tests, such as a checkout of Keras, or "installed": those that
the wheel of the installed Keras has. Not every wheel has tests.

The workers run the tests that passed in one process, each in the strategy's scope. OUTPUT.alone,
OUTPUT.0 and OUTPUT.1 contain the error of each test as JSON, or "" if the test passed.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy
import pytest
from kinds import Strings, Texts

ABSENT = (
    "jax.experimental.sparse",
    "jax.experimental",
    "jax",
    "torch",
    "grain",
    "pandas",
)
SECONDS = 300  # after this time a test counts as hung; on a busy machine, some take a minute
STDERR = os.dup(2)  # pytest captures the descriptor 2, and the traceback of a hung test with it


class Outcomes:
    """A pytest plugin that records the error of each test."""

    def __init__(self, passed: Strings, mocked: Strings) -> None:
        self.passed = passed
        self.mocked = mocked
        self.errors: Texts = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not self.passed or item.nodeid in self.passed]
        for name in self.mocked:
            del sys.modules[name]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.errors[item.nodeid] = ""
        faulthandler.dump_traceback_later(
            SECONDS,
            exit=True,
            file=STDERR,
        )
        sys.modules["keras"].utils.set_random_seed(zlib.crc32(item.nodeid.encode()) % 2**31)
        result = yield
        faulthandler.cancel_dump_traceback_later()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if report.outcome != "passed":
            self.errors[item.nodeid] = self.errors[item.nodeid] or str(call.excinfo)[:300]
        return report


def run_in_scope() -> None:
    """Enters the scope after setUp has cleared the default graph, and disables XLA."""
    import slurm_resolver

    strategy = slurm_resolver.MultiWorkerMirroredStrategy()
    import keras
    from keras.src import testing

    # not every version has the same name for this class
    trainer: Any = next(base for base in keras.Model.__mro__ if "compile" in vars(base))
    set_up = testing.TestCase.setUp
    compiles = trainer.compile
    seeds = numpy.random.seed
    numpy.random.seed = lambda seed=None: seeds(seed or 0)  # Keras draws test data without a seed

    def entered(test: Any) -> None:
        test.doCleanups()  # some tests call setUp again
        set_up(test)
        test.enterContext(strategy.scope())

    def compiled(model: Any, *args: Any, **how: Any) -> None:
        jit = how.pop("jit_compile", "auto")  # XLA has no collectives on CPUs
        compiles(
            model,
            *args,
            jit_compile=False if jit is True else jit,
            **how,
        )

    testing.TestCase.setUp = entered
    trainer.compile = compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "files",
        nargs="+",
        help="trainers/trainer_test.py, callbacks/…",
    )
    args = parser.parse_args()
    rank = os.environ.get("SLURM_PROCID", "alone")
    passed: Strings = []
    if rank != "alone":
        alone = json.loads(Path(f"{args.output}.alone").read_text())
        passed = [test for test, error in alone.items() if not error]
        run_in_scope()
    mocked = [name for name in ABSENT if not importlib.util.find_spec(name.partition(".")[0])]
    import keras  # before the modules of other backends become mocks
    from keras.src.backend.tensorflow import trainer

    if not hasattr(trainer, "TensorFlowTrainer"):  # the tests of 3.15 on a later Keras
        trainer.TensorFlowTrainer = trainer.Trainer
    sys.modules.update((name, MagicMock()) for name in mocked)
    sys.modules["conftest"] = MagicMock(skip_if_backend=lambda *_: lambda test: test)
    given = os.environ.get("KERAS_SOURCES", "installed")
    installed = Path(keras.__file__).parent
    source = installed / "src" if given == "installed" else Path(given, "keras", "src")
    plugin = Outcomes(passed, mocked)
    options = ["-q", "--rootdir=.", "-c", os.devnull, "--import-mode=importlib", "--tb=short"]
    options += ["-pno:cacheprovider", "-pno:faulthandler"]
    with tempfile.TemporaryDirectory() as folder:
        for name in args.files:
            Path(folder, name).parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            shutil.copy(
                source / name,
                Path(folder, name),
            )
        os.chdir(folder)
        pytest.main(
            [*options, *args.files],
            plugins=[plugin],
        )
        os.chdir("/")
    Path(f"{args.output}.{rank}").write_text(json.dumps(plugin.errors))


if __name__ == "__main__":
    main()
