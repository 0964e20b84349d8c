"""`slurm-resolver show`: exact output and status; and what the folded rows stand for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Callable, Dict, List, Optional, Sequence

import pytest
import task_variables
from hypothesis import given
from hypothesis import strategies as st

import slurm_resolver
from slurm_resolver.cli import main
from slurm_resolver.cli.cluster_picture import Row, number_ranges, picture_rows
from slurm_resolver.cluster.jobs import job_counts
from slurm_resolver.cluster.layout import layout_from_environment
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.resolve import build_cluster
from slurm_resolver.cluster.tasks import Task
from slurm_resolver.slurm.step import SlurmStep

COMMAND = [sys.executable, "-m", "slurm_resolver"]

TASK = {**task_variables.TASK, "SLURM_DISTRIBUTION": "cyclic"}


class TestShow:
    @pytest.fixture
    def task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in TASK.items():
            monkeypatch.setenv(name, value)

    @pytest.mark.usefixtures("task")
    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "--jobs", "ps=1,worker=-1", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown == slurm_resolver.resolve({"ps": 1, "worker": -1}).to_dict()
        assert shown["self"]["gpus"] == ["4"]

    @pytest.mark.usefixtures("task")
    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "--each", "--jobs", "ps=1,worker=-1"]) == 0
        assert (
            capsys.readouterr().out
            == """\
job step 42.0: 4 tasks on 2 nodes, cyclic distribution (from environment), ports from \
SLURM_STEP_RESV_PORTS
jobs: ps 1, worker 3
node  rank  local  task      address
n9       0      0  ps 0      n9:23001
         2      1  worker 1  n9:23002
n10      1      0  worker 0  n10:23001  (this task)
         3      1  worker 2  n10:23002
GPUs of the tasks on n10:
  rank 1: 4 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)  (this task)
  rank 3: 5 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)
"""
        )

    @pytest.mark.usefixtures("task")
    def test_a_job_without_gpus_has_none_where_nothing_shows_any(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SLURM_PROCID", "0")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        assert main(["show", "--jobs", "ps=1,worker=-1"]) == 0
        assert "  rank 0: none (this job uses no GPU" in capsys.readouterr().out

    @pytest.mark.usefixtures("task")
    def test_a_task_whose_job_uses_no_gpu(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SLURM_PROCID", "0")
        assert main(["show", "--each", "--jobs", "ps=1,worker=-1"]) == 0
        assert capsys.readouterr().out.endswith("""\
GPUs of the tasks on n9:
  rank 0: none (this job uses no GPU (gpu_jobs))  (this task)
  rank 2: 4,5 (CUDA_VISIBLE_DEVICES, the only task on the node that uses GPUs)
""")
        assert main(["show", "--jobs=ps=1,worker=-1", "--gpu-jobs=ps,worker"]) == 0
        assert "rank 0: 4 (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)" in capsys.readouterr().out

    def test_devices_that_slurm_bound_are_known_to_each_task_alone(
        self, task: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
        assert main(["show", "--each"]) == 0
        assert capsys.readouterr().out.endswith("""\
GPUs of the tasks on n10:
  rank 1: 4 (CUDA_VISIBLE_DEVICES, bound to the task by Slurm)  (this task)
  rank 3: unknown (known to the task alone)
""")

    @pytest.mark.parametrize(("rank", "lines"), [("0", 8), ("1", 0)])
    def test_once(
        self,
        rank: str,
        lines: int,
        task: None,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("SLURM_PROCID", rank)
        for arguments in ([], ["--once"]):
            assert main(["show", *arguments]) == 0
            assert len(capsys.readouterr().out.splitlines()) == (lines + 2 if lines else 0)
        assert main(["show", "--once", "--json"]) == 0
        assert bool(capsys.readouterr().out) == bool(lines)
        for arguments in (["--each"], ["--json"]):
            assert main(["show", *arguments]) == 0
            assert capsys.readouterr().out

    def test_a_step_from_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        options = "--nodelist n[9-10] --tasks-per-node 3,2 --distribution plane=2 --port-base 2222"
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
        ]

    def test_one_is_singular(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "--nodelist", "n1"]) == 0
        assert "planned step: 1 task on 1 node, block" in capsys.readouterr().out

    def test_one_count_is_for_every_node(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["show", "--nodelist", "n[1-3]", "--tasks-per-node", "2", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["tasks"]) == 6

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "there is no Slurm here"),
            (["--distribution", "cyclic"], "--nodelist"),
            (["--nodelist", "n[3-1]"], "--nodelist='n[3-1]'"),
            (["--nodelist", "n[1-2"], "--nodelist='n[1-2': expected a host list such as n[1-4]"),
            (["--nodelist", ""], "--nodelist='': expected a host list"),
            (["--nodelist", "n1", "--distribution", "heap"], "--distribution 'heap'"),
            (["--nodelist", "n1", "--distribution", "plane"], "expected block, cyclic or plane=N"),
            (["--nodelist", "n1", "--distribution", "plane=x"], "--distribution plane='x'"),
            (["--nodelist", "n1", "--tasks-per-node", "²"], "--tasks-per-node='²'"),
            (
                ["--nodelist", "n[1-3]", "--tasks-per-node", "2,1"],
                "--tasks-per-node '2,1': expected one number, or one for each of the 3 nodes",
            ),
            (
                ["--nodelist", "n1", "--jobs", "ps=2"],
                "need 2 tasks, but --nodelist and --tasks-per-node make 1",
            ),
            (["--nodelist", "n[1-2]", "--distribution", "arbitrary"], "only its own step can show"),
        ],
    )
    def test_errors(
        self, arguments: List[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["show", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("slurm-resolver show: ")
        assert "SLURM_" not in captured.err  # nobody has set a variable
        assert message in captured.err

    @pytest.mark.parametrize("jobs", ["ps", "ps=", "=1", "ps=1,ps=2", "ps=one", ""])
    def test_jobs_that_cannot_be_read(self, jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["show", "--jobs", jobs])
        assert caught.value.code == 2
        assert "argument --jobs: " in capsys.readouterr().err

    def test_a_reader_that_goes_away(self) -> None:
        step = ["--nodelist", "n[1-9999]", "--tasks-per-node", "4"]
        with subprocess.Popen(
            [*COMMAND, "show", *step], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(timeout=180) == 0


Picture = Callable[[List[str]], str]


@pytest.fixture
def picture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Picture:
    """What the command prints on a terminal of 80 columns."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")

    def run(arguments: List[str]) -> str:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert main(["show", "--each", *arguments]) == 0
        return capsys.readouterr().out

    return run


class TestPicture:
    def test_a_task_on_its_node(self, monkeypatch: pytest.MonkeyPatch, picture: Picture) -> None:
        for name, value in TASK.items():
            monkeypatch.setenv(name, value)
        assert (
            plain(picture(["--jobs", "ps=1,worker=-1"]))
            == """\
╭─ job step 42.0 ──────────────────────────────────────────╮
│ tasks   4 tasks on 2 nodes, cyclic distribution          │
│ jobs    ps 1  worker 3                                   │
│ layout  from environment                                 │
│ ports   from SLURM_STEP_RESV_PORTS                       │
│ GPUs    from CUDA_VISIBLE_DEVICES split by SLURM_LOCALID │
╰──────────────────────────────────────────────────────────╯
node  rank, task, port
n9    0 ps 0 :23001  2 worker 1 :23002
n10   1 worker 0 :23001 gpu 4 (this task)  3 worker 2 :23002 gpu 5
"""
        )

    def test_jobs_with_names_of_their_own(self, picture: Picture) -> None:
        step = ["--nodelist", "n[1-2]", "--jobs", "mesh=1,worker=1"]
        shown = plain(picture(step))
        assert "jobs    mesh 1  worker 1" in shown
        assert "n1    0 mesh 0 :8888" in shown

    @pytest.mark.parametrize(
        ("distribution", "nodes"),
        [
            (
                "block",
                """\
n1         0 chief 0 :2222  1 worker 0 :2223
n2         2 ps 0 :2222  3 worker 1 :2223
n3         4 ps 1 :2222  5 worker 10 :2223
n[4-1000]  997 nodes, ranks 6-1999  worker 2-9,11-1996 :2222-2223, 2 a node
""",
            ),
            (
                "cyclic",
                """\
n1         0 chief 0 :2222  1000 worker 0 :2223
n2         1 ps 0 :2222  1001 worker 998 :2223
n3         2 ps 1 :2222  1002 worker 999 :2223
n[4-1000]  997 nodes, ranks 3-999,1003-1999
           worker 1-997,1000-1996 :2222-2223, 2 a node
""",
            ),
        ],
    )
    def test_a_thousand_nodes_fit_on_a_screen(
        self, distribution: str, nodes: str, picture: Picture
    ) -> None:
        step = f"--nodelist n[1-1000] --tasks-per-node 2 --distribution {distribution}"
        arguments = [*step.split(), "--jobs", "chief=1,ps=2,worker=-1", "--port-base", "2222"]
        shown = plain(picture(arguments))
        assert shown.startswith("╭─ planned step ─")
        assert "2000 tasks on 1000 nodes" in shown
        assert "chief 1  ps 2  worker 1997" in shown
        heading, _, shown_nodes = shown.partition("╯\n")[2].partition("\n")
        assert heading.split() == ["node", "rank,", "task,", "port"]
        assert shown_nodes == nodes

    def test_every_node_by_itself(self, picture: Picture) -> None:
        step = ["--nodelist", "n[1-5]", "--port-base", "2222"]
        folded = plain(picture(step)).splitlines()
        assert folded[-1] == "n[1-5]  5 nodes, ranks 0-4  worker 0-4 :2222, 1 a node"
        lines = plain(picture([*step, "--all"])).splitlines()
        assert lines[-5:] == [f"n{i + 1}    {i} worker {i} :2222" for i in range(5)]

    def test_more_than_a_picture_can_hold_is_plain_text(self, picture: Picture) -> None:
        lines = picture(["--nodelist", "n[1-1001]", "--all"]).splitlines()
        assert lines[0].startswith("planned step: 1001 tasks on 1001 nodes, block distribution")
        assert len(lines) == 3 + 1001

    def test_each_job_has_its_colour(
        self, picture: Picture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step = ["--nodelist", "n[1-5]", "--jobs", "chief=1,ps=1,worker=-1"]
        shown = picture(step)
        for text in ("\x1b[35mchief 0\x1b", "\x1b[36mps 0\x1b", "\x1b[32mworker 1\x1b"):
            assert text in shown
        monkeypatch.setenv("NO_COLOR", "1")
        assert not re.search(r"\x1b\[3[0-9]m", picture(step))


def plain(text: str) -> str:
    """The text without colours and without the spaces at the ends of lines."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def plan(nodes: str, counts: str, distribution: str, **jobs: int) -> Sequence[Task]:
    variables: Dict[str, str] = {
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_DISTRIBUTION": distribution,
        "SLURM_DIST_PLANESIZE": "2",
    }
    step = SlurmStep.read(variables)
    layout = layout_from_environment(step)
    of_jobs = job_counts(jobs or None, layout.num_tasks)
    return build_cluster(step, layout, of_jobs, ClusterOptions(jobs or None)).tasks


class TestRows:
    @pytest.mark.parametrize(
        ("tasks", "rows"),
        [
            (plan("n[1-3]", "1(x3)", "block"), ["n1", "n2", "n3"]),
            (plan("n[1-4]", "1(x4)", "block"), ["n[1-4]"]),
            (plan("n[1-9]", "2(x5),1(x4)", "cyclic"), ["n[1-5]", "n[6-9]"]),
            (plan("n[1-9]", "4(x9)", "plane"), ["n[1-9]"]),
            (plan("n[1-9]", "1(x9)", "block", ps=4, worker=5), ["n[1-4]", "n[5-9]"]),
            (plan("n[1-9]", "1(x9)", "block", ps=2, worker=7), ["n1", "n2", "n[3-9]"]),
            (plan("a[1-4],b[1-4]", "1(x4),2(x4)", "block"), ["a[1-4]", "b[1-4]"]),
        ],
    )
    def test_nodes_that_are_alike(self, tasks: Sequence[Task], rows: List[str]) -> None:
        assert [row.host_list() for row in picture_rows(tasks)] == rows

    def test_some_stay_alone(self) -> None:
        tasks = plan("n[1-10]", "1(x10)", "block")
        rows = [row.host_list() for row in picture_rows(tasks, {"n5"})]
        assert rows == ["n[1-4]", "n5", "n[6-10]"]

    def test_names_whose_host_list_is_long(self) -> None:
        names = [f"n{i}.cluster.example.com" for i in range(1, 9)]
        (row,) = picture_rows(plan(",".join(names), "1(x8)", "block"))
        assert row.host_list() == f"{names[0]} ... {names[-1]}"

    def test_a_long_name_of_one_node_is_itself(self) -> None:
        name = "gpu-node-0001.cluster.example.com"
        (row,) = picture_rows(plan(name, "2", "block"))
        assert row.host_list() == name

    def test_addresses_that_are_no_suffix_of_the_node(self) -> None:
        tasks = [Task(i, f"n{i}", 0, "worker", i, f"10.0.0.{i}:2222") for i in range(8)]
        assert [row.nodes for row in picture_rows(tasks)] == [(f"n{i}",) for i in range(8)]

    @given(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
        copies=st.integers(1, 5),
        distribution=st.sampled_from(["block", "cyclic", "plane"]),
        ps=st.integers(0, 6),
        own=st.none() | st.integers(1, 60),
    )
    def test_rows_have_exactly_the_tasks(
        self, counts: List[int], copies: int, distribution: str, ps: int, own: Optional[int]
    ) -> None:
        counts = [count for count in counts for _ in range(copies)]
        jobs = {"ps": ps, "worker": -1} if 0 < ps < sum(counts) else {}
        text = ",".join(map(str, counts))
        tasks = plan(f"n[1-{len(counts)}]", text, distribution, **jobs)
        alone = set() if own is None else {f"n{own}"}
        rows = picture_rows(tasks, alone)
        assert sorted(task for row in rows for task in row.tasks()) == list(tasks)
        assert all(len(row.nodes) == 1 for row in rows if alone & set(row.nodes))
        for row in rows:
            check_texts(row)

    def test_a_hundred_thousand_tasks(self) -> None:
        tasks = plan("n[1-1000]", "100(x1000)", "cyclic")
        (row,) = picture_rows(tasks)
        assert sorted(row.tasks()) == list(tasks)
        assert (row.host_list(), row.indices("worker")) == ("n[1-1000]", "0-99999")


def check_texts(row: Row) -> None:
    tasks = row.tasks()
    looks = [
        [(task.job, task.local_rank, task.address[len(node) :]) for task in own]
        for node, own in zip(row.nodes, row.tasks_of_nodes)
    ]
    assert all(look == looks[0] for look in looks)
    ranks = [[task.rank for task in own] for own in row.tasks_of_nodes]
    for i, numbers in enumerate(ranks):
        advance = [b - a for a, b in zip(ranks[0], ranks[min(1, len(ranks) - 1)])]
        assert numbers == [first + i * step for first, step in zip(ranks[0], advance)]
    assert row.ranks() == number_ranges(task.rank for task in tasks)
    for job in {task.job for task in tasks}:
        assert row.indices(job) == number_ranges(task.index for task in tasks if task.job == job)
        ports = number_ranges(int(task.address.split(":")[1]) for task in tasks if task.job == job)
        assert row.ports(job) == f":{ports}"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([4, 1, 2, 3, 9], "1-4,9"),
        ([1, 1, 2], "1-2"),
        ([1, 3, 5, 7], "1,3,5,7"),
        ([1, 3, 5, 7, 9], "1,3,5,...,9"),
    ],
)
def test_ranges_of_numbers(numbers: List[int], text: str) -> None:
    assert number_ranges(numbers) == text
