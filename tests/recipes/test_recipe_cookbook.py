"""The cookbook's recipes: products on the devices of a task, and the perceptron on MNIST."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
from example_runs import ENVIRONMENT
from folders import EXAMPLES
from slurm_cluster import Completed, SlurmCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm, pytest.mark.newest]


def srun(slurm: SlurmCluster, options: str, command: str, check: bool = True) -> Completed:
    script = EXAMPLES / "cookbook" / command
    return slurm.run(
        f"srun {options} python -u {script}", env=ENVIRONMENT, timeout=240, check=check
    )


def test_every_task_times_its_product_on_the_cpu(real_slurm: SlurmCluster) -> None:
    output = srun(real_slurm, "-w n9,n10 -N2 -n2", "matmul.py cpu 200 300 --repeat 2").stdout
    found = re.findall(
        r"^rank (\d) on (n\d+): /device:CPU:0, 200x300 by its transpose: "
        r"([\d.]+) ms, ([\d.e-]+) GFLOP/s, sum ([\d.e+]+)$",
        output,
        re.M,
    )
    assert sorted(where[:2] for where in found) == [("0", "n9"), ("1", "n10")]
    for _, _, milliseconds, gflops, total in found:
        assert float(gflops) * float(milliseconds) / 1e3 == pytest.approx(0.024, rel=0.2)
        # 300 columns, in each 200 numbers of 0.5 on average, and the square of their sum
        assert float(total) == pytest.approx(300 * 100**2, rel=0.1)


def test_gpus_that_do_not_work_are_named(real_slurm: SlurmCluster) -> None:
    options = "-w n9 -N1 -n2 --gpus-per-node=2"
    done = srun(real_slurm, options, "matmul.py gpu 100", check=False)
    assert done.returncode == 1
    told = re.findall(r"^(rank \d on n9) has no GPU: it was given GPU (\d), but", done.stderr, re.M)
    assert sorted(told) == [("rank 0 on n9", "0"), ("rank 1 on n9", "1")]
    assert "Traceback" not in done.stderr
    assert "GFLOP" not in done.stdout


def test_a_task_without_a_gpu_is_told_how_to_get_one(real_slurm: SlurmCluster) -> None:
    done = srun(real_slurm, "-w n9 -n1", "matmul.py gpu 100", check=False)
    assert done.returncode == 1
    assert (
        "rank 0 on n9 has no GPU: ask Slurm for one, as with srun --gpus-per-task=1" in done.stderr
    )


def test_a_matrix_is_multiplied_on_two_devices(real_slurm: SlurmCluster) -> None:
    output = srun(real_slurm, "-w n9 -n1", "in_graph.py cpu").stdout
    places = dict(re.findall(r"^(\w+) ran on .*/device:(CPU:\d)$", output, re.M))
    assert places == {"product_0": "CPU:0", "product_1": "CPU:1", "result": "CPU:0"}
    rows = re.findall(r"\[ *([\d.]+) +([\d.]+) *\]", output)
    expected = [[22, 28], [49, 64], [76, 100], [103, 136]]
    assert [[float(number) for number in row] for row in rows] == expected
    assert output.endswith("equal to numpy's\n")


def test_two_gpus_that_do_not_work_are_named(real_slurm: SlurmCluster) -> None:
    done = srun(real_slurm, "-w n9 -n1 --gpus=2", "in_graph.py gpu", check=False)
    assert done.returncode == 1
    assert "expected two GPUs, but TensorFlow sees 0, and the task was given 0,1" in done.stderr


STEP = re.compile(
    r"^worker (\d): Step: (\d+), Epoch: (\d+), Batch: (\d+) of (\d+), Cost: [\d.]+, "
    r"AvgTime: [\d.]+ ms$",
    re.M,
)
END = re.compile(
    r"^worker (\d): Test-Accuracy: ([\d.]+) Total Time: [\d.]+ s Final Cost: ([\d.]+) "
    r"Throughput: \d+ images/s$",
    re.M,
)


def mnist(slurm: SlurmCluster, arguments: str) -> Tuple[str, Dict[str, float]]:
    """What the tasks printed, and by worker the accuracy that it ended with."""
    options = "-w n9,n10,n11 -N3 -n3 --kill-on-bad-exit=1"
    output = srun(slurm, options, f"mnist.py {arguments}").stdout
    return output, {worker: float(accuracy) for worker, accuracy, _ in END.findall(output)}


def test_the_perceptron_learns_the_digits_and_writes_summaries(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    import tensorflow as tf

    output, learned = mnist(real_slurm, f"--logs {tmp_path}")
    assert sorted(learned) == ["0", "1"]
    assert min(learned.values()) > 0.85
    steps = STEP.findall(output)
    for worker in "01":
        shown = [tuple(map(int, step[2:])) for step in steps if step[0] == worker]
        assert shown == [(epoch, 14, 14) for epoch in range(1, 21)]
    # The last step of all, which the two have counted together.
    assert 2 * 280 - 2 <= max(int(step[1]) for step in steps) <= 2 * 280

    (file,) = tmp_path.glob("events.*")  # the chief's
    summaries: Dict[str, List[float]] = defaultdict(list)
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            summaries[value.tag].append(value.simple_value)
    assert {tag: len(values) for tag, values in summaries.items()} == {"cost": 280, "accuracy": 280}
    assert summaries["cost"][-1] < 0.3 < summaries["cost"][0]
    assert summaries["accuracy"][0] < 0.5 < summaries["accuracy"][-1]


def test_the_perceptron_learns_from_a_file_of_mnist(
    real_slurm: SlurmCluster, tmp_path: Path, mnist_file: Path
) -> None:
    arguments = f"--data {mnist_file} --batch-size 10 --epochs 5 --logs {tmp_path}"
    output, learned = mnist(real_slurm, arguments)
    assert max(learned.values()) > 0.8
    shown = [step[2:] for step in STEP.findall(output) if step[0] == "0"]
    assert shown[:3] == [("1", "100", "143"), ("1", "143", "143"), ("2", "100", "143")]
