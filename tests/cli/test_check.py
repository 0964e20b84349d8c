"""`slurm-resolver check` on one machine, alone and in a local step."""

from __future__ import annotations

import json
import os

import pytest
from captured import Captured, Logged
from local_run import COMMAND, captured, in_step

from slurm_resolver.cli import main

PROXIES = (
    "grpc_proxy",
    "https_proxy",
    "http_proxy",
    "no_proxy",
    "no_grpc_proxy",
)


def run(*words: str, status: int = 0) -> str:
    """Returns the output of two tasks, without the task numbers."""
    proxies = {*PROXIES, *map(str.upper, PROXIES)}
    return captured(
        in_step("-n 2 --no-label", *words),
        status=status,
        env={name: value for name, value in os.environ.items() if name not in proxies},
    ).stdout


def test_a_good_step_is_one_line() -> None:
    pytest.importorskip("tensorflow")
    told = "check: 10 ok, 4 skipped"
    assert run(*COMMAND, "check") == f"{told} (--verbose prints all)\n"
    *checks, last = run(*COMMAND, "check", "--verbose").splitlines()
    assert (len(checks), last) == (14, told)
    assert checks[0] == "presence    ok       all 2 tasks are present"


PROXY = "proxies     warning  {}: https_proxy: gRPC would use this proxy between the tasks"
ONE = "worker 1 (rank 1 on localhost)"
BOTH = "worker 0 (rank 0 on localhost), "


@pytest.mark.parametrize(
    ("ranks", "variables", "told"),
    [
        ("1", "https_proxy=x", PROXY.format(ONE)),
        ("[01]", "https_proxy=x", PROXY.format(BOTH + ONE)),
        ("1", "https_proxy=x no_proxy=n1", "check: 10 ok, 4 skipped"),
        ("1", "https_proxy=x NO_PROXY=n1", PROXY.format(ONE)),  # gRPC does not read it
        ("1", "HTTPS_PROXY=x", "check: 10 ok, 4 skipped"),
    ],
)
def test_what_tasks_find_alone_is_told_once_with_their_names(
    ranks: str, variables: str, told: str
) -> None:
    pytest.importorskip("tensorflow")
    assert run(
        "bash",
        "-c",
        f"case $SLURM_PROCID in {ranks}) export {variables};; esac; {' '.join(COMMAND)} check",
    ).startswith(told)


def test_a_task_that_does_not_come_is_named() -> None:
    (line,) = run(
        "bash",
        "-c",
        f'[ "$SLURM_PROCID" = 1 ] || exec {" ".join(COMMAND)} check --json --timeout 2',
        status=1,
    ).splitlines()
    (presence,) = json.loads(line)["checks"]
    assert presence["status"] == "failed"
    assert "1 of 2 tasks did not reach " in presence["detail"]
    assert ONE in presence["detail"]


def test_one_machine(capsys: Captured, caplog: Logged) -> None:
    status = main(["check", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert [check["id"] for check in printed["checks"]] == [
        "tensorflow",
        "keras",
        "proxies",
        "gpus",
        "step",
    ]
    failed = any(check["status"] == "failed" for check in printed["checks"])
    assert status == (1 if failed else 3)
    assert not printed["ok"]
    assert main(["check"]) == status
    assert "no step was checked" in capsys.readouterr().out
    assert main(["check", "--jobs", "pss=1"]) == status
    assert "job 'pss' is not 'ps'" in caplog.text
