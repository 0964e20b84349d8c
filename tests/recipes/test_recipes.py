"""The examples after published recipes: what they learn, and that all tasks agree and end."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Dict, List

import pytest
from example_runs import ENVIRONMENT, accuracies, srun
from folders import EXAMPLES
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm, pytest.mark.newest]


def test_keras_cloud_scales_over_the_nodes_of_an_allocation(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    script = EXAMPLES / "keras_cloud" / "scaling.py"
    output = real_slurm.run(
        f"salloc --quiet -w n9,n10,n11 -N3 --ntasks-per-node=1 --cpus-per-task=2 "
        f"python -u {script} --output {tmp_path} --epochs 1 --batch-size 8",
        env=ENVIRONMENT,
        timeout=300,
    ).stdout
    runs = output.split("--- nodes: ")[1:]
    for count, run in enumerate(runs, 1):
        reports = re.findall(r"^rank (\d) on (n\d+): (loss .*weights \w+)", run, re.M)
        assert sorted(rank for rank, _, _ in reports) == [str(rank) for rank in range(count)]
        # from Slurm 24.11 on, a step starts on the node after those of the step before
        assert len({node for _, node, _ in reports} & {"n9", "n10", "n11"}) == count
        assert len({report for _, _, report in reports}) == 1
    table = (tmp_path / "scaling.md").read_text()
    assert output.endswith(table)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    # the nodes are this machine, and ask for two CPUs each
    assert ("all nodes are one machine with" in table) == ((os.cpu_count() or 1) < 3 * 2)
    assert rows[0][:3] == ["nodes", "tasks", "time (s)"]
    assert [row[:2] for row in rows[2:]] == [["1", "1"], ["2", "2"], ["3", "3"]]
    times = [float(row[2]) for row in rows[2:]]
    for row, seconds in zip(rows[2:], times):
        assert float(row[3]) == pytest.approx(times[0] / seconds, rel=0.1)
        assert float(row[7]) > 0.6
    plot = (tmp_path / "scaling.png").read_bytes()
    assert plot.startswith(b"\x89PNG")
    assert len(plot) > 10_000


def test_keras_cloud_trains_on_mnist_with_a_gpu_for_each_task(
    real_slurm: SlurmCluster, mnist_file: Path
) -> None:
    options = "-w n9,n10 -N2 --ntasks-per-node=2 --gpus-per-node=2"
    arguments = f"--data {mnist_file} --epochs 4 --batch-size 20"
    output = srun(real_slurm, options, "keras_cloud", arguments)
    reports = re.findall(r"^rank (\d) on (n\d+): (.*), GPUs (.*)$", output, re.M)
    assert [(rank, node, gpus) for rank, node, _, gpus in sorted(reports)] == [
        ("0", "n9", "0"),
        ("1", "n9", "1"),
        ("2", "n10", "0"),
        ("3", "n10", "1"),
    ]
    assert len({report for _, _, report, _ in reports}) == 1
    assert min(accuracies(output)) > 0.7


def test_a_custom_loop_goes_on_from_its_checkpoint(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    weights: List[str] = []
    for epochs, resumed in ((2, []), (4, ["0", "1"])):
        arguments = f"--epochs {epochs} --batch-size 16 --checkpoints {tmp_path}"
        output = srun(real_slurm, "-w n9,n10 -N2 -n2", "custom_loop", arguments)
        went_on = re.findall(r"^rank (\d): going on from epoch 2$", output, re.M)
        assert sorted(went_on) == resumed
        trained = re.findall(rf"^epoch (\d) of {epochs}: loss", output, re.M)
        assert trained == [str(epochs - 1), str(epochs)]
        reports = re.findall(r"^rank (\d): test accuracy.* weights (\w+)$", output, re.M)
        assert sorted(rank for rank, _ in reports) == ["0", "1"]
        assert len({one for _, one in reports}) == 1
        weights.append(reports[0][1])
    assert weights[0] != weights[1]
    assert min(accuracies(output)) > 0.9
    # The chief's, and nobody else's.
    assert sorted(path.name for path in tmp_path.glob("*.index")) == [
        "ckpt-2.index",
        "ckpt-3.index",
        "ckpt-4.index",
    ]


def test_an_evaluator_follows_the_training_and_ends_with_it(
    real_slurm: SlurmCluster, tmp_path: Path, mnist_file: Path
) -> None:
    pytest.importorskip("tensorboard")
    import tensorflow as tf

    arguments = f"--epochs 4 --checkpoints {tmp_path} --data {mnist_file}"
    output = srun(real_slurm, "-w n9,n10,n11 -N3 -n3", "evaluator", arguments)
    assert "worker 0: trained epochs 0 to 4" in output
    told = {
        int(epoch): float(accuracy)
        for epoch, accuracy in re.findall(r"epoch (\d), test accuracy ([\d.]+)$", output, re.M)
    }
    assert max(told) == 4
    assert told[4] > 0.85
    summaries: Dict[int, float] = {}
    (file,) = tmp_path.glob("evaluation/events.*")
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            if value.tag == "epoch_accuracy":
                summaries[event.step] = float(tf.make_ndarray(value.tensor))
    assert summaries == pytest.approx(told, abs=1e-4)
    assert list(tmp_path.glob("train/events.*"))


def test_an_evaluator_without_checkpoints_gives_up_and_says_so(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Each task has a folder of its own, as on nodes that do not share their files."""
    script = EXAMPLES / "evaluator" / "train.py"
    own = f"{tmp_path}/\\$SLURM_PROCID"
    arguments = f"--epochs 1 --timeout 1 --checkpoints {own}"
    done = real_slurm.run(
        f'srun -w n9,n10 -N2 -n2 bash -c "exec python {script} {arguments}"',
        env=ENVIRONMENT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    assert f"no checkpoint of epoch 1 in {tmp_path}/0, and nothing new for 1 s" in done.stderr
    assert "worker 0: trained epochs 0 to 1" in done.stdout
