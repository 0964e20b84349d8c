"""The examples: the commands in their READMEs run, the models learn, and the tasks agree."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from bare_state import shell_commands
from folders import EXAMPLES, ROOT
from kinds import Strings
from local_run import captured
from slurm_cluster import SlurmCluster
from slurm_conf import numbered
from slurm_fixture import slurm_of
from slurm_jobs import ENVIRONMENT, accuracies

pytestmark = pytest.mark.newest

FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
PAGES = [EXAMPLES / "README.md", *(EXAMPLES / folder / "README.md" for folder in FOLDERS)]
ALL_COMMANDS = list(dict.fromkeys(command for page in PAGES for command in shell_commands(page)))
BATCH_FILES = sorted(EXAMPLES.glob("*/*.sbatch"))
# These need real GPUs, a larger machine, hours, or files that a checkout lacks.
NOT_RUN = re.compile(
    r"matmul.py gpu|matmul.sbatch gpu|cookbook/in_graph.sbatch|^sbatch --n|"
    r"ps_ratio|scaling|gpus.sbatch|cifar"
)
# What the output of each example contains. Examples that are not listed print a test accuracy.
SHOWN = {
    "cluster_tutorial": r"updates \d+|for \d+ updates|weights on /job:local/.*/task:0",
    "cookbook": r"GFLOP/s|equal to numpy's|Final Cost",
    "evaluator": r"evaluator: epoch \d, test accuracy",
    "flags": r"worker 1: \d+ of \d+ steps",
    "heterogeneous": r"chief 0 \(rank \d+ on \w+\): GPUs none",
    "legacy_server": r"worker 1: \d+ of \d+ steps",
    "preemptible": r"rank 1: trained, weights",
    "quick_start": r"; accuracy (0\.[89]|1\.)",
    # Each worker takes part in every step. Without synchronisation, they would share the steps.
    "sync_replicas": r"worker 1: (\d+) of \1 steps, weights",
}


def commands(folder: str, *programs: str) -> Strings:
    """Returns the example's commands that start with one of these programs and can run here."""
    all_commands = shell_commands(EXAMPLES / folder / "README.md")
    return [one for one in all_commands if one.split()[0] in programs and not NOT_RUN.search(one)]


@pytest.fixture(scope="session")
def mnist_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits of scikit-learn, in a file with the shapes, types and names of MNIST's file."""
    np = pytest.importorskip("numpy")
    digits, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    images = np.kron(digits.reshape(-1, 8, 8), np.ones((3, 3))) * 255 / 16
    images = np.pad(images, ((0, 0), (2, 2), (2, 2))).astype("uint8")
    labels = labels.astype("uint8")
    path: Path = tmp_path_factory.mktemp("mnist") / "mnist.npz"
    np.savez(
        path,
        x_train=images[:1437],
        x_test=images[1437:],
        y_train=labels[:1437],
        y_test=labels[1437:],
    )
    return path


@pytest.fixture
def checkout(tmp_path: Path, mnist_file: Path) -> Path:
    """A copy of the examples, to which they may write, and the data that the READMEs name."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / ".keras" / "datasets").mkdir(parents=True)
    shutil.copy(mnist_file, tmp_path / ".keras" / "datasets" / "mnist.npz")
    return tmp_path


def assert_learned(folder: str, command: str, output: str) -> None:
    """Fails if the tasks differ, have learned nothing, or do not print what the example shows."""
    context = f"{command}\n{output}"
    assert re.search(SHOWN.get(folder, "test accuracy"), output), context
    # Guessing gives 0.1. The file here has only 1,437 images; MNIST has 60,000.
    assert all(accuracy > 0.5 for accuracy in accuracies(output)), context
    assert len(set(re.findall(r"\bweights ([0-9a-f]{12})\b", output))) <= 1, context


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.parametrize("folder", FOLDERS)
def test_commands_of_one_machine(folder: str, checkout: Path) -> None:
    outputs = []
    for command in commands(folder, "python", "slurm-resolver"):
        done = captured(
            command,
            status=0,
            shell=True,
            cwd=checkout,
            env={
                **os.environ,
                **ENVIRONMENT,
                "HOME": str(checkout),
            },
        )
        assert_learned(folder, command, done.stdout)
        outputs.append(done.stdout + done.stderr)
    if folder == "async_master":
        assert "chief: continues from step" in outputs[1]
    if folder == "custom_loop":
        assert "continues from epoch 4" in outputs[1]
    if folder == "preemptible":
        assert "restart 1 of at most" in outputs[0]


# A Slurm with as many nodes as the largest command requests.
slurm = slurm_of(
    numbered(
        8,
        23,
        cpus=16,
        gpus=4,
    )
)


# `make test` runs one example on Slurm.


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, marks=[] if folder == "quick_start" else pytest.mark.nightly)
        for folder in FOLDERS
    ],
)
def test_commands_of_slurm(slurm: SlurmCluster, folder: str, checkout: Path) -> None:
    environ = {**ENVIRONMENT, "HOME": str(checkout)}
    for number, command in enumerate(commands(folder, "srun", "salloc", "sbatch")):
        log = checkout / f"{number}.out"
        done = slurm.run(
            command.replace("sbatch ", f"sbatch --wait --output={log} ", 1),
            cwd=checkout,
            env=environ,
            timeout=400,
            status=None,
        )
        output = log.read_text(encoding="utf-8") if command.startswith("sbatch") else done.stdout
        assert done.returncode == 0, f"{command}\n{output}\n{done.stderr}"
        assert_learned(folder, command, output)


def test_slurm_accepts_the_requests_of_batch_jobs(slurm: SlurmCluster) -> None:
    commands = [one for one in ALL_COMMANDS if one.split()[0] == "sbatch"]
    tested = [one.replace("sbatch", "sbatch --test-only", 1) for one in commands]
    slurm.run(
        "\n".join(["set -e", *tested]),
        cwd=ROOT,
        timeout=120,
    )


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("script", "options", "rows"),
    [
        (
            "async_master/ps_ratio.py",
            "--ps 1 2 --repeats 1 --steps 1500 --width 64",
            [["1", "2", "1 : 2"], ["2", "1", "2 : 1"]],
        ),
        (
            "keras_cloud/scaling.py",
            "--epochs 1 --batch-size 8",
            [["1", "1"], ["2", "2"], ["3", "3"]],
        ),
    ],
)
def test_scripts_that_measure_in_an_allocation(
    slurm: SlurmCluster, tmp_path: Path, script: str, options: str, rows: list[Strings]
) -> None:
    command = f"{EXAMPLES / script} --output {tmp_path} {options}"
    allocation = "--quiet -w n9,n10,n11 -N3 --ntasks-per-node=1 --cpus-per-task=2"
    done = slurm.run(
        f"salloc {allocation} python -u {command}",
        env=ENVIRONMENT,
        timeout=600,
    )
    name = Path(script).stem
    text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    assert done.stdout.endswith(text)
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    found = [line.strip("| ").split(" | ") for line in lines]
    assert [row[: len(rows[number])] for number, row in enumerate(found)] == rows
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.needs("shellcheck")
def test_batch_files_are_clean() -> None:
    captured(["shellcheck", *BATCH_FILES, *EXAMPLES.glob("*/*.sh")], status=0)
