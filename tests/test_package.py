"""The public names of the package, and the package without TensorFlow."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from local_run import captured

import slurm_resolver
from slurm_resolver.timeouts import Timeouts

WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None  # importing it now fails
import slurm_resolver
for name in slurm_resolver.__all__:
    try:
        getattr(slurm_resolver, name)
    except ImportError as error:
        print(name, error)
"""


NEED_TENSORFLOW = {
    "BackupAndResume",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "ResumableLoop",
    "SlurmClusterResolver",
    "install",
    "termination_config",
}


def test_a_process_ends_at_once_while_its_interpreter_ends() -> None:
    """Python 3.12 and later start no thread then."""
    code = (
        "import atexit; from slurm_resolver.log import exit_at_once; "
        "atexit.register(exit_at_once, 3); print('printed')"
    )
    done = captured([sys.executable, "-c", code], status=3)
    assert (done.stdout, done.stderr) == ("printed\n", "")


def test_without_tensorflow_what_needs_it_is_missing_and_says_how_to_get_it() -> None:
    done = captured(
        [sys.executable, "-c", WITHOUT_TENSORFLOW],
        check=True,
    )
    errors = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(errors) == NEED_TENSORFLOW
    for name, error in errors.items():
        assert name in error
        assert "TensorFlow" in error
        assert "pip install 'tensorflow[and-cuda]>=2.15'" in error


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="SlurmClusterResolvr"):
        _ = slurm_resolver.SlurmClusterResolvr


def test_the_page_on_waits_has_the_times_of_the_code() -> None:
    """A comment behind each number has its name, or how it follows from others."""
    page = Path(__file__).parents[1] / "docs" / "waits.md"
    marked = re.findall(r"(\d+)<!-- (.+?) -->", page.read_text())
    times = {name: value for name, value in vars(Timeouts).items() if name[0] != "_"}
    for number, expression in marked:
        assert float(number) == eval(expression, {}, times), expression
    named = " ".join(expression for _, expression in marked).split()
    assert times.keys() <= {*named}
