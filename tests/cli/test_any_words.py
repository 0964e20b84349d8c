"""Any words: no command ends with a traceback, and one that refuses says why, with status 2."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path
from typing import List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_resolver.cli import build_parser, main

WORDS = """
-1 0 1 2 4097 1e9 nan -inf 1:2:3:4 30:1 0-15%4 75,x -- - : { {job} {ps_hosts {}{0}
n1 n[1-2 n[1-2] n[2-1] a[0-65535]b[0-65535] , [ ] ~ ' $(x) true a/b / % %t-%N.log
ps=1 ps=1,worker=-1 pss=1 ps= =1 ps=-2 worker=99999999999 evaluator=2
block cyclic plane=2 plane=0 arbitrary gpu:a100:2 none USR1@60 B:X@-1
"""
VALUES = ["", "\n", "a b", "\x1b[31m", "\udc80", "9" * 30, "\u00bd", *WORDS.split()]
(COMMANDS,) = (
    action.choices
    for action in build_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
)


@st.composite
def words(draw: st.DrawFn) -> Tuple[str, List[str]]:
    command = draw(st.sampled_from(sorted(COMMANDS)))
    actions = COMMANDS[command]._actions
    options = st.sampled_from(sorted(option for one in actions for option in one.option_strings))
    values = st.sampled_from(VALUES) | st.text(max_size=4).filter(lambda text: "\0" not in text)
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
        patch.setattr("slurm_resolver.local.job.run_job", started)
        patch.setattr("slurm_resolver.supervision.supervisor.Supervisor.run", started)
        patch.setattr("slurm_resolver.cli.exec._replace_process", started)
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"n1 n2\n")))
        yield


@given(words())
def test_any_words(made: Tuple[str, List[str]]) -> None:
    command, arguments = made
    output, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    before = set(Path().iterdir())
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status: object = main([command, *arguments])
        except SystemExit as end:
            status = end.code
        except Started:
            status = 0
    assert status in (0, 1, 2, 3), arguments
    if status == 2:
        assert errors.getvalue().strip(), arguments
    assert set(Path().iterdir()) == before, arguments
