"""`slurm-resolver hosts`: exact output and status."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import List

import pytest

from slurm_resolver.cli import main

COMMAND = [sys.executable, "-m", "slurm_resolver", "hosts"]


def hosts(
    arguments: List[str], capsys: pytest.CaptureFixture[str], status: int = 0
) -> tuple[str, str]:
    assert main(["hosts", *arguments]) == status
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["expand", "n[9-11],login"], "n9\nn10\nn11\nlogin\n"),
        (["expand", "n[9-10]", "m1", "n9"], "n9\nn10\nm1\nn9\n"),
        (["expand", "-u", "n[9-10]", "m1", "n9"], "n9\nn10\nm1\n"),
        (["expand", "--sort", "n[10,9],m1,n09"], "m1\nn09\nn9\nn10\n"),
        (["expand", "-S", ",", "n[9-11]"], "n9,n10,n11\n"),
        (["expand", "--separator", r"\t", "n[9-11]"], "n9\tn10\tn11\n"),
        (["expand", ""], ""),
        (["fold", "n9", "n10", "n11"], "n[9-11]\n"),
        (["fold", "n[9-10]", "n[11-12],m1"], "n[9-12],m1\n"),
        (["fold", "n3", "n1", "n2", "n3"], "n[3,1-3]\n"),
        (["fold", "-u", "n3", "n1", "n2", "n3"], "n[3,1-2]\n"),
        (["fold", "--sort", "--unique", "n3", "n1", "n2", "n3"], "n[1-3]\n"),
        (["fold", "--sort", "rack10-n1", "rack2-n[1-2]"], "rack2-n[1-2],rack10-n1\n"),
        (["fold", ""], "\n"),
        (["count", "n[1-1000],login[1-2]", "n1"], "1003\n"),
        (["count", "-u", "n[1-1000],login[1-2]", "n1"], "1002\n"),
        (["count", ""], "0\n"),
    ],
)
def test_arguments(arguments: List[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hosts(arguments, capsys) == (printed, "")


@pytest.mark.parametrize(
    ("arguments", "given", "printed"),
    [
        (["expand"], b"n[9-10]\n", b"n9\nn10\n"),
        (["fold"], b"n9 n10\r\nn11,\t n12", b"n[9-12]\n"),
        (["fold", "n8", "-", "n11"], b"n9 n10", b"n[8-11]\n"),
        (["count"], b"", b"0\n"),
        (["fold"], "knoten-ä1 knoten-ä2".encode(), "knoten-ä[1-2]\n".encode()),
        (["expand"], b"\xff[1-2]", b"\xff1\n\xff2\n"),  # no UTF-8: as it came
    ],
)
def test_standard_input(
    arguments: List[str],
    given: bytes,
    printed: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), "ascii"))
    assert main(["hosts", *arguments]) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr() == (printed, b"")


@pytest.mark.parametrize("action", ["expand", "fold", "count"])
@pytest.mark.parametrize(
    ("hostlist", "message"),
    [
        (
            "a,n[3-1]",
            "'[3-1]' in 'a,n[3-1]': the range 3-1 runs backwards; expected its lower number first",
        ),
        ("n[1-2", "'[' in 'n[1-2': a '[' that is not closed"),
        (
            "n[0-65536]",
            "'[0-65536]' in 'n[0-65536]': the range 0-65536 has more than 65,536 hosts, the limit",
        ),
    ],
)
def test_a_list_that_cannot_be_read(
    action: str, hostlist: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = hosts([action, "n1", hostlist], capsys, status=2)
    assert printed == ("", f"slurm-resolver hosts: {message}\n")


@pytest.mark.parametrize("arguments", [[], ["shout"], ["count", "--sort"]])
def test_usage_errors(arguments: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["hosts", *arguments])
    assert caught.value.code == 2
    assert "\n\nusage: slurm-resolver hosts" in capsys.readouterr().err


def test_a_million_names_through_pipes() -> None:
    names = "".join(f"n{i}\n" for i in range(1_000_000))
    folded = run(["fold"], names)
    assert folded.startswith("n[0-65535,65536-131071,")
    assert run(["count"], folded) == "1000000\n"
    assert run(["expand"], folded) == names


def run(arguments: List[str], given: str) -> str:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=given,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=180,
    ).stdout


def test_a_reader_that_goes_away() -> None:
    with subprocess.Popen(
        [*COMMAND, "expand", "n[1-65000]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "n1\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=180) == 0
