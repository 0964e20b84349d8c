"""`slurm-resolver hosts`: exact output and status."""

from __future__ import annotations

import io
from typing import List

import pytest

from slurm_resolver.cli import main


@pytest.mark.parametrize(
    ("words", "given", "printed"),
    [
        (["expand", "n[9-11],login"], "", "n9\nn10\nn11\nlogin\n"),
        (["expand", "n[9-10]", "m1", "n9"], "", "n9\nn10\nm1\nn9\n"),
        (["expand", ""], "", ""),
        (["expand"], "n[9-10]\n", "n9\nn10\n"),
        (["fold", "n9", "n10", "n11"], "", "n[9-11]\n"),
        (["fold", "n[9-10]", "n[11-12],m1"], "", "n[9-12],m1\n"),
        (["fold", "n3", "n1", "n2", "n3"], "", "n[3,1-3]\n"),
        (["fold", ""], "", "\n"),
        (["fold"], "n9 n10\nn11,\t n12", "n[9-12]\n"),
        (["count", "n[1-1000],login[1-2]", "n1"], "", "1003\n"),
        (["count"], "", "0\n"),
    ],
)
def test_output(
    words: List[str],
    given: str,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    assert main(["hosts", *words]) == 0
    assert capsys.readouterr() == (printed, "")


def test_a_list_that_is_not_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hosts", "count", "n1", "n[1-2"]) == 2
    message = "'[' in 'n[1-2': a '[' that is not closed"
    assert capsys.readouterr() == ("", f"slurm-resolver hosts: {message}\n")
