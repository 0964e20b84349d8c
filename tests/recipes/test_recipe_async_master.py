"""The recipe "asynchronous data parallelism" learns, goes on, and tells the best ps : workers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Optional

import pytest
from example_runs import ENVIRONMENT, accuracies
from folders import EXAMPLES
from slurm_cluster import SlurmCluster

FOLDER = EXAMPLES / "async_master"

Speeds = Dict[int, List[Optional[float]]]  # of the runs with so many ps

# Stands in for srun: trains nothing, prints a line of the file that is named like the number of ps.
SRUN = r"""#!/bin/sh
cd "${0%/*}"
ps=$(echo "$*" | sed 's/.* --ps \([0-9]*\).*/\1/')
echo "$ps" >> log
echo "step 1 of 2 of $*"
result=$(sed -n "$(grep -cx "$ps" log)p" "$ps")
[ "$result" != fails ] || exit 3
echo "$result"
"""


@pytest.fixture(scope="module")
def ps_ratio() -> ModuleType:
    """The example's ps_ratio.py, as a module."""
    spec = importlib.util.spec_from_file_location("ps_ratio", FOLDER / "ps_ratio.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table_of(text: str) -> List[List[str]]:
    """The rows of a Markdown table, without its headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.fixture
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in for srun, in what looks like an allocation of eight tasks."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    return tmp_path


def result(speed: float) -> Dict[str, Any]:
    return {"steps_per_second": speed, "images_per_second": 64 * speed, "test_accuracy": 0.9}


OVERLAP = "Not told apart, as the runs overlap:"
ONE_RUN = "One run does not tell a difference from noise: --repeats 3."
ALONE = "There is no other to compare it with."
FASTER = "Each of its runs was faster than all runs of the others."


@pytest.mark.parametrize(
    ("speeds", "best", "sure"),
    [
        ({1: [100, 110, 90], 2: [200, 205, 150], 3: [120, 130, 125]}, "2 ps : 6", FASTER),
        # The highest median, not the highest run nor the highest mean; the fastest first.
        (
            {1: [100, 110, 900], 2: [120, 121, 119], 3: [1, 121, 119.5]},
            "2 ps : 6",
            f"{OVERLAP} 3 ps : 5 workers, 1 ps : 7 workers.",
        ),
        # Whose runs overlap with the best's, and no others.
        ({1: [80, 90], 2: [100, 110], 3: [95, 101]}, "2 ps : 6", f"{OVERLAP} 3 ps : 5 workers."),
        ({1: [100], 2: [90]}, "1 ps : 7", ONE_RUN),
        ({4: [100, 90]}, "4 ps : 4", ALONE),
        # A failed run is told, and does not take away what the others have shown.
        (
            {1: [100, 90], 2: [130, None], 3: [None]},
            "2 ps : 6",
            f"{ONE_RUN} Failed: 2 ps : 6 workers, 3 ps : 5 workers.",
        ),
        ({1: [None]}, "none", "Failed: 1 ps : 7 workers."),
    ],
)
def test_the_best_ratio_has_the_highest_median(
    ps_ratio: ModuleType, speeds: Speeds, best: str, sure: str
) -> None:
    results = {ps: [run and result(run) for run in runs] for ps, runs in speeds.items()}
    rows = [ps_ratio.summarise(ps, 8, runs) for ps, runs in results.items()]
    told, _, why = ps_ratio.verdict(rows).partition(". ")
    assert re.sub(r" workers, \d+\.\d steps/s$", "", told) == f"Best ratio: {best}"
    assert why == sure


def test_a_ratio_that_fails_is_named_and_the_others_are_in_the_table(
    ps_ratio: ModuleType,
    allocation: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    # 3 ps fail at once and are not tried again; 4 ps end well, and their workers came too late.
    for ps, speeds in {1: [100.0, 110.0], 2: [130.0, 126.0]}.items():
        lines = [json.dumps({"ps": ps, **result(speed)}) for speed in speeds]
        (allocation / str(ps)).write_text("\n".join(lines))
    (allocation / "3").write_text("fails")
    (allocation / "4").write_text('{"ps": 4, "test_accuracy": 0.9}')
    folder = allocation / "out"
    command = ["ps_ratio.py", "--repeats", "2", "--output", str(folder), "--steps", "7"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match=r"^failed: 3 ps : 5 workers, 4 ps : 4 workers$"):
        ps_ratio.main()  # a text is status 1
    told = capfd.readouterr()
    assert re.findall(r"^failed: .*, status \d of srun --ntasks=8 ", told.err, re.M) == [
        "failed: no result, status 3 of srun --ntasks=8 ",
        "failed: too few --steps, status 0 of srun --ntasks=8 ",
    ]
    assert "/train.py --ps 1 --steps 7\n" in told.out
    # In turn, so that what slows the machine down slows all of them.
    assert (allocation / "log").read_text().split() == list("123412")
    text = (folder / "ps_ratio.md").read_text(encoding="utf-8")
    assert told.out.endswith(text)
    assert table_of(text) == [
        ["1", "7", "1 : 7", "105.0", "100.0 to 110.0", "6720", "0.9000", "2"],
        ["2", "6", "1 : 3", "128.0", "126.0 to 130.0", "8192", "0.9000", "2"],
        ["3", "5", "3 : 5", "–", "–", "–", "–", "0, 1 failed"],
        ["4", "4", "1 : 1", "–", "–", "–", "–", "0, 1 failed"],
    ]
    best = f"Best ratio: 2 ps : 6 workers, 128.0 steps/s. {FASTER}"
    assert text.endswith(f"\n\n{best} Failed: 3 ps : 5 workers, 4 ps : 4 workers.\n")
    plot = (folder / "ps_ratio.png").read_bytes()
    assert plot.startswith(b"\x89PNG")
    assert len(plot) > 10_000


@pytest.mark.parametrize(
    ("arguments", "tasks", "message"),
    [
        ("--ps 1 8", "8", "--ps [1, 8], but 8 tasks leave a worker only for 1 to 7"),
        ("--ps 0", "8", "--ps [0], but 8 tasks leave a worker only for 1 to 7"),
        ("", "1", "--ps [], but 1 tasks leave a worker only for 1 to 0"),
        ("--repeats 0", "8", "--repeats 0: expected 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    ps_ratio: ModuleType,
    allocation: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    tasks: str,
    message: str,
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", tasks)
    monkeypatch.setattr("sys.argv", ["ps_ratio.py", *arguments.split()])
    with pytest.raises(SystemExit, match=r"^2$"):
        ps_ratio.main()
    assert message in capsys.readouterr().err
    assert not (allocation / "log").exists()


@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
def test_ps_ratio_measures_in_an_allocation(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output = real_slurm.run(
        f"salloc --quiet -w n9,n10,n11 -N3 --ntasks-per-node=1 --cpus-per-task=2 python -u "
        f"{FOLDER}/ps_ratio.py --ps 1 2 --repeats 1 --output {tmp_path} --steps 1500 --width 64",
        env=ENVIRONMENT,
        timeout=600,
    ).stdout
    text = (tmp_path / "ps_ratio.md").read_text(encoding="utf-8")
    assert output.endswith(text)
    rows = table_of(text)
    assert [row[:3] for row in rows] == [["1", "2", "1 : 2"], ["2", "1", "2 : 1"]]
    # Each run's own words, in their order: the table has them.
    told = re.findall(r"all workers together (\d+) steps/s, (\d+) images/s", output)
    assert [float(row[3]) for row in rows] == pytest.approx([int(one) for one, _ in told], abs=1)
    assert [row[5] for row in rows] == [images for _, images in told]
    assert [float(row[6]) for row in rows] == accuracies(output)
    assert min(accuracies(output)) > 0.8
    best = max(rows, key=lambda row: float(row[3]))
    assert f"\nBest ratio: {best[0]} ps : {best[1]} workers, {best[3]} steps/s." in text
    assert (tmp_path / "ps_ratio.png").read_bytes().startswith(b"\x89PNG")


def summaries(folder: Path) -> Dict[str, Dict[int, float]]:
    """By tag and step what TensorBoard would show of the newest events."""
    import tensorflow as tf

    *_, newest = sorted(folder.glob("events.*"))
    found: Dict[str, Dict[int, float]] = {}
    for event in tf.compat.v1.train.summary_iterator(str(newest)):
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


@pytest.mark.tensorflow
@pytest.mark.slurm
@pytest.mark.newest
def test_the_chief_saves_counts_and_goes_on(
    real_slurm: SlurmCluster, tmp_path: Path, mnist_file: Path
) -> None:
    """Each task has a folder of its own, as on nodes that do not share their files.

    The second run has another number of ps, on which the variables lie in other pieces.
    """
    own = f"--data {mnist_file} --width 64 --checkpoints {tmp_path}/\\$SLURM_PROCID"
    before = 0
    for steps, ps in ((500, 2), (800, 1)):
        count = f"--ps {ps} --steps {steps} --save-checkpoint-steps 150 --save-summaries-steps 25"
        output = real_slurm.run(
            f"srun -w n9,n10 -N2 --ntasks-per-node=2 --kill-on-bad-exit=1 "
            f'bash -c "exec python -u {FOLDER}/train.py {count} {own}"',
            env=ENVIRONMENT,
            timeout=400,
        ).stdout  # srun's status, the highest of all tasks', is 0
        went_on = re.findall(r"^chief: going on from step (\d+)$", output, re.M)
        assert went_on == ([str(before)] if before else [])
        shares = dict(re.findall(r"^(chief 0|worker \d) on n\d+: (\d+) steps$", output, re.M))
        assert sorted(shares) == ["chief 0", "worker 0", "worker 1"][: 4 - ps]
        assert int(shares["chief 0"]) > 1  # however late it is: the others wait for its first step
        assert min(accuracies(output)) > 0.8
        (line,) = re.findall(r"^{.*}$", output, re.M)
        result = json.loads(line)
        assert result["steps"] >= steps - before
        assert (result["ps"], result["workers"], result["nodes"]) == (ps, 4 - ps, 2)
        speed = result.get("steps_per_second", 0)  # none where a worker came too late to count
        assert result.get("images_per_second", 0) == pytest.approx(64 * speed)
        assert f"{speed:.0f} steps/s" in output or "too few steps for a speed" in output
        # All of it is the chief's, rank 0's, and the other nodes' disks stay as they were.
        assert [path.name for path in tmp_path.iterdir()] == ["0"]
        saved = sorted(int(path.stem[11:]) for path in tmp_path.glob("0/model.ckpt-*.index"))
        assert saved[-1] >= steps
        assert len(saved) > 1
        # The steps of all count; the last of each may come after the last save.
        all_steps = sum(map(int, shares.values()))
        assert steps - before <= all_steps <= steps - before + 2 * len(shares)
        assert saved[-1] <= before + all_steps
        told = summaries(tmp_path / "0")
        assert sorted(told) == ["accuracy", "global_step/sec", "loss"]
        assert all(before <= step <= saved[-1] for tag in told.values() for step in tag)
        assert all(0 <= accuracy <= 1 for accuracy in told["accuracy"].values())
        assert min(told["global_step/sec"].values()) > 0
        before = saved[-1]
