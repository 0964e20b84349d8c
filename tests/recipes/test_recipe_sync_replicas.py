"""Synchronous replication with a parameter server: in step, and the same in both forms."""

from __future__ import annotations

import difflib
import pickle
import re
import tarfile
from pathlib import Path
from typing import List

import pytest
from example_runs import accuracies, batch_file, srun
from folders import EXAMPLES
from slurm_cluster import SlurmCluster

FOLDER = EXAMPLES / "sync_replicas"

pytestmark = [pytest.mark.tensorflow, pytest.mark.slurm, pytest.mark.newest]


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in CIFAR-10's files, names and types, as folder and as tar.gz beside it."""
    np = pytest.importorskip("numpy")
    digits, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    images = np.kron(digits.reshape(-1, 1, 8, 8) * 15, np.ones((3, 4, 4))).astype("uint8")
    rows = images.reshape(len(images), 3 * 32 * 32)
    folder: Path = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-py"
    folder.mkdir()
    files = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for name, data, own in zip(files, np.array_split(rows, 6), np.array_split(labels, 6)):
        content = {b"batch_label": name, b"data": data, b"labels": own.tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": []}, protocol=2))
    with tarfile.open(folder.parent / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    return folder


def assert_in_step(output: str, workers: int, steps: int) -> None:
    """As many steps as each worker took, not as all took together; the same weights seen by all.

    Without synchronisation the global step counts every worker's, and a worker that has ended
    reads weights that the others go on changing.
    """
    told = re.findall(r"worker (\d): (\d+) of (\d+) steps, weights (\w+)$", output, re.M)
    assert sorted(index for index, *_ in told) == [str(index) for index in range(workers)]
    assert {(int(taken), int(total)) for _, taken, total, _ in told} == {(steps, steps)}
    assert len({weights for *_, weights in told}) == 1


def cross_entropies(output: str) -> List[float]:
    return [float(number) for number in re.findall(r"cross-entropy ([\d.]+)$", output, re.M)]


def test_the_two_forms_differ_in_a_few_lines() -> None:
    of_2017, here = [
        (FOLDER / name).read_text(encoding="utf-8").splitlines()
        for name in ("train_2017.py", "train.py")
    ]
    differences = [line for line in difflib.ndiff(of_2017, here) if line[:2] in ("- ", "+ ")]
    assert [line[2:].split("  #")[0].strip() for line in differences if line[0] == "-"] == [
        "from slurm_resolver import tf_config_from_slurm",
        "cluster, job, index = tf_config_from_slurm(ps_number=1)",
        "server.join()",
    ]
    assert [line[2:].split("  #")[0].strip() for line in differences if line[0] == "+"] == [
        "import sys",
        "from slurm_resolver import SlurmClusterResolver",
        'resolver = SlurmClusterResolver({"ps": 1, "worker": -1})',
        "cluster, job, index = resolver.cluster.jobs(), resolver.task_type, resolver.task_id",
        "sys.exit(resolver.serve(server))",
    ]


def test_workers_train_in_step_and_the_parameter_server_ends(real_slurm: SlurmCluster) -> None:
    options = "-w n9,n10,n11 -N3 -n3"
    output = srun(real_slurm, options, "sync_replicas", "--iterations 101 --batch-size 16")
    assert_in_step(output, workers=2, steps=50)
    assert re.findall(r"^step (\d+): accuracy", output, re.M) == ["10", "20", "30", "40", "50"]
    assert min(accuracies(output)) > 0.85


def test_both_forms_learn_from_three_workers_what_one_does_alone(
    real_slurm: SlurmCluster, cifar: Path
) -> None:
    """The average of three gradients is the gradient of the three batches together."""
    # Two tasks a node: the helper of 2017 knew but one.
    allocation = "-w n9,n10 -N2 --ntasks-per-node=2 --cpus-per-task=2"
    arguments = f"--iterations 60 --batch-size 16 --dropout 0 --data {cifar}"
    of_2017 = batch_file(real_slurm, allocation, f"train_2017.sbatch {arguments}", FOLDER)
    assert_in_step(of_2017, workers=3, steps=20)

    archive = cifar.parent / "cifar-10-python.tar.gz"
    arguments = f"--iterations 20 --batch-size 48 --dropout 0 --data {archive}"
    alone = srun(real_slurm, "-w n9,n10 -N2 -n2", "sync_replicas", arguments)
    assert_in_step(alone, workers=1, steps=20)
    # Sums in another order grow apart, by 1 % in 30 steps.
    assert cross_entropies(of_2017)[-1] == pytest.approx(cross_entropies(alone)[-1], rel=0.04)
    assert min(accuracies(of_2017 + alone)) > 0.6


def test_the_helper_of_the_batch_file_is_clean(real_slurm: SlurmCluster) -> None:
    real_slurm.run("shellcheck task.sh", cwd=FOLDER)
