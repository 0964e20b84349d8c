"""`slurm-resolver show`: exact output and status."""

from __future__ import annotations

import json

import pytest
import task_variables
from captured import Captured, Patch, set_all
from local_run import COMMAND, captured, in_step, piped, refused

import slurm_resolver
from slurm_resolver.cli import main
from slurm_resolver.cluster.cluster import describe_cluster

TASK = {**task_variables.TASK, "SLURM_DISTRIBUTION": "cyclic"}
JOBS = ["--jobs", "ps=1,worker=-1"]


@pytest.fixture
def task(monkeypatch: Patch) -> None:
    set_all(monkeypatch, TASK)


@pytest.mark.usefixtures("task")
def test_every_task_prints_json(capsys: Captured) -> None:
    assert main(["show", *JOBS, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == slurm_resolver.resolve({"ps": 1, "worker": -1}).to_dict()
    assert shown["self"]["gpus"] == ["4"]
    assert main(["show", *JOBS]) == 0
    assert capsys.readouterr().out == ""  # rank 0 prints the text


@pytest.mark.usefixtures("task")
def test_text() -> None:
    assert (
        describe_cluster(
            slurm_resolver.resolve({"ps": 1, "worker": -1}),
            gpus=["none", "4", "4", "5"],
        )
        == """\
job step 42.0: 4 tasks on 2 nodes, cyclic distribution (from environment), ports from \
SLURM_STEP_RESV_PORTS
jobs: ps 1, worker 3
node  rank  local  task      GPUs  address
n9       0      0  ps 0      none  n9:23001
         2      1  worker 1  4     n9:23002
n10      1      0  worker 0  4     n10:23001  (this task)
         3      1  worker 2  5     n10:23002
GPUs of this task: 4 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)"""
    )


def test_tasks_tell_each_other_where_they_run() -> None:
    show = [*COMMAND, "show", "--json", "--layout=rendezvous", *JOBS]
    done = captured(in_step("-n3 --no-label", *show), status=0)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(one["self"]["rank"] for one in told) == [0, 1, 2]
    assert {one["layout_source"] for one in told} == {"rendezvous"}
    assert told[0]["tasks"] == told[1]["tasks"] == told[2]["tasks"]


def test_a_step_from_options(capsys: Captured) -> None:
    options = "--nodelist n[9-10] --tasks-per-node 3 --distribution plane=2 --port-base 2222"
    more = "--jobs chief=1,ps=1,worker=-1 --node-address=-ib0"
    assert main(["show", *options.split(), *more.split(), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["self"], shown["job_id"], shown["layout_source"]) == (None, None, "options")
    assert [(task["job"], task["address"]) for task in shown["tasks"]] == [
        ("chief", "n9-ib0:2222"),
        ("worker", "n9-ib0:2223"),
        ("ps", "n10-ib0:2222"),
        ("worker", "n10-ib0:2223"),
        ("worker", "n9-ib0:2224"),
        ("worker", "n10-ib0:2224"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--nodelist n[1-2", "--nodelist='n[1-2': expected a host list such as n[1-4]"),
        ("--nodelist=", "--nodelist='': expected a host list"),
        ("--nodelist n1 --distribution heap", "--distribution 'heap'"),
        ("--nodelist n1 --distribution plane", "expected block, cyclic or plane=N"),
        (
            "--nodelist n1 --jobs ps=2",
            "need 2 tasks, but --nodelist and --tasks-per-node make 1",
        ),
    ],
)
def test_errors(arguments: str, message: str, capsys: Captured) -> None:
    errors = refused(capsys, "show", *arguments.split())
    assert errors.startswith("slurm-resolver show: ")
    assert "SLURM_" not in errors  # the user has set no variable
    assert message in errors


def test_outside_a_step_it_says_how_to_start_it(capsys: Captured) -> None:
    told = "is not in a Slurm step. Start it with srun -N 2 "
    assert told in refused(capsys, "show")


def test_a_reader_that_goes_away() -> None:
    with piped(
        [*COMMAND, "show", "--nodelist", "n[1-9999]", "--tasks-per-node", "4"],
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=180) == 0
