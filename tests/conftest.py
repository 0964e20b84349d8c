"""What many tests share: recorded steps, and one real Slurm for the whole session."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

import pytest
from slurm_cluster import Node, SlurmCluster, started

DATA = Path(__file__).parent / "data"

# Rank 1 of four on two nodes that all see two GPUs; what a test is about, it adds.
TASK = {
    "SLURM_PROCID": "1",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_RESV_PORTS": "23001-23003",
    "CUDA_VISIBLE_DEVICES": "4,5",
}


class Recording(NamedTuple):
    """One recorded step: what was run, and each task's variables."""

    name: str
    command: str
    files: Dict[str, str]
    tasks: List[Dict[str, str]]

    def truth(self) -> Dict[int, Tuple[str, int]]:
        """By rank, the node and the local id that the task itself reported."""
        return {
            int(task["SLURM_PROCID"]): (task["SLURMD_NODENAME"], int(task["SLURM_LOCALID"]))
            for task in self.tasks
        }


def recordings() -> List[Recording]:
    """Every recorded step; a scenario with several steps gives several."""
    found = []
    with open(DATA / "steps.jsonl", encoding="utf-8") as lines:
        for line in lines:
            scenario = json.loads(line)
            steps: Dict[Tuple[str, str], List[Dict[str, str]]] = {}
            for own in scenario["each"]:
                task = {**scenario["all"], **own}
                key = (task.get("SLURM_JOB_ID", ""), task.get("SLURM_STEP_ID", ""))
                steps.setdefault(key, []).append(task)
            for number, tasks in enumerate(steps.values()):
                name = f"{scenario['slurm']}-{scenario['topology']}-{scenario['scenario']}"
                if len(steps) > 1:
                    name += f"-{number}"
                found.append(Recording(name, scenario["command"], scenario["files"], tasks))
    return found


@pytest.fixture(autouse=True)
def _no_slurm_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may themselves run in a Slurm job: none of its variables must reach them."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SLURMD_")) and name != "SLURM_RESOLVER_REQUIRE_SLURM":
            monkeypatch.delenv(name)
    for name in ("CUDA_VISIBLE_DEVICES", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def real_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A real Slurm of five nodes, n8 to n12: names whose order as strings is not theirs."""
    nodes = [Node(f"n{number}", cpus=8, gpus=4) for number in range(8, 13)]
    with started(SlurmCluster(nodes, tmp_path_factory.mktemp("slurm"))) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mnist_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits in MNIST's shape and types, in a file with MNIST's names."""
    np = pytest.importorskip("numpy")
    digits, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    images = np.kron(digits.reshape(-1, 8, 8), np.ones((3, 3))) * 255 / 16
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype("uint8")
    labels = labels.astype("uint8")
    assert images.shape[1:] == (28, 28)
    path: Path = tmp_path_factory.mktemp("mnist") / "mnist.npz"
    train, test = slice(0, 1437), slice(1437, None)
    parts = {"x_train": images[train], "x_test": images[test]}
    np.savez(path, **parts, y_train=labels[train], y_test=labels[test])
    return path


@contextlib.contextmanager
def packets_dropped(slurm: SlurmCluster, source: str, target: str) -> Iterator[None]:
    """Lets nothing from one node arrive at another: its packets go to a wrong hardware address."""
    address = slurm.run_on(source, f"getent ahostsv4 {target}").stdout.split()[0]
    route = slurm.run_on(source, f"ip -o route get {address}").stdout
    entry = f"{address} dev {route.split(' dev ')[1].split()[0]}"
    slurm.run_on(source, f"ip neigh replace {entry} lladdr 02:00:00:00:00:01 nud permanent")
    try:
        yield
    finally:
        slurm.run_on(source, f"ip neigh del {entry}")
