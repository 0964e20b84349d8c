"""Any words: no command ends with a traceback, and one that refuses says why, with status 2."""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_resolver.cli import build_parser, main

WORDS = """
-1 0 1 2 4097 1e9 nan -inf 1:2:3:4 30:1 0-15%4 75,x -- - : { {job} {ps_hosts {}{0}
n1 n[1-2 n[1-2] n[2-1] a[0-65535]b[0-65535] , [ ] ~ ' $(x) true a/b / % %t-%N.log
ps=1 ps=1,worker=-1 pss=1 ps= =1 ps=-2 worker=99999999999 evaluator=2
block cyclic:fcyclic plane=2 plane=0 arbitrary gpu:single:0 cpu=2,gres/gpu=x
gpu:a100:2 none verbose,cores USR1@60 B:X@-1
"""
VALUES = ["", "\n", "a b", "\x1b[31m", "\udc80", "9" * 30, "\u00bd", *WORDS.split()]


def options_of_commands() -> Dict[str, List[str]]:
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: sorted({option for action in parser._actions for option in action.option_strings})
        for name, parser in commands.choices.items()
    }


OPTIONS = options_of_commands()
COMMANDS = sorted(OPTIONS)


@st.composite
def words(draw: st.DrawFn) -> Tuple[str, List[str]]:
    command = draw(st.sampled_from(COMMANDS))
    values = st.sampled_from(VALUES) | st.text(max_size=4).filter(lambda text: "\0" not in text)
    options = st.sampled_from(OPTIONS[command])
    # argparse of Python 3.9 fails with an IndexError for -h=
    long = options.filter(lambda option: option.startswith("--"))
    part = st.one_of(
        options.map(lambda option: [option]),
        st.tuples(options, values).map(list),
        st.tuples(long, values).map(lambda pair: ["=".join(pair)]),
        values.map(lambda value: [value]),
    )
    parts = draw(st.lists(part, max_size=4))
    program = draw(st.sampled_from([[], ["--", "true"], ["--", "./missing"], ["true", "--x"]]))
    return command, [word for words in parts for word in words] + program


class Started(Exception):  # noqa: N818 (it is none)
    """The words are good: a program would be started now."""


@pytest.fixture(autouse=True, scope="module")
def _nothing_starts(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Files that a command writes are in a folder of the test, and no program is started."""

    def started(*_: object, **__: object) -> int:
        raise Started

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("any"))
        patch.setattr("slurm_resolver.local.job.LocalJob.run", started)
        patch.setattr("slurm_resolver.supervision.supervisor.Supervisor.run", started)
        patch.setattr("os.execvpe", started)
        patch.setattr("os.execvp", started)
        yield


@given(words())
def test_any_words(made: Tuple[str, List[str]]) -> None:
    command, arguments = made
    output, errors = io.BytesIO(), io.StringIO()
    text = io.TextIOWrapper(output, "utf-8", errors="backslashreplace")
    standard_input = io.TextIOWrapper(io.BytesIO(b"n1 n2\n"))
    before = set(Path().iterdir())
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(errors):
        sys.stdin, kept = standard_input, sys.stdin
        try:
            status: object = main([command, *arguments])
        except SystemExit as end:
            status = end.code
        except Started:
            status = 0
        finally:
            sys.stdin = kept
            text.flush()
            text.detach()
    assert status in (0, 1, 2, 3), arguments
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN, arguments  # Python's own, as before
    if status == 2:
        assert errors.getvalue().strip(), arguments
        assert "Traceback" not in errors.getvalue()
    assert set(Path().iterdir()) == before, arguments
