"""Runs the programs in the guides, and blocks that are parts of a program in such a program."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path

import pytest
from folders import ROOT
from local_run import COMMAND, captured, in_step
from page_blocks import PAGES, name_of, texts_of
from slurm_cluster import SlurmCluster
from slurm_jobs import ENVIRONMENT

IMPORTS = """\
import json
import os
import sys
from types import SimpleNamespace

import keras
import numpy as np
import slurm_resolver
import tensorflow as tf
from slurm_resolver import BackupAndResume, SlurmClusterResolver, termination_config
"""
# Text of the blocks, such as the number of epochs, and what replaces it.
REPLACED = {
    "# … the model, in strategy.scope()\n": """\
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
rows = (np.ones((64, 8)), np.ones((64, 1)))
data = tf.data.Dataset.from_tensor_slices(rows).batch(16)
""",
    "epochs=10, steps_per_epoch=1000": "epochs=2, steps_per_epoch=4",
    '"n9": ': '"localhost": ',
}
ALONE = (2, "BLOCK", "")
WITH_RESOLVER = (2, "resolver = SlurmClusterResolver()\nBLOCK", "")
# By block of Python: how many tasks run it, a program in which the line BLOCK stands for the block,
# and what the program prints.
PROGRAMS = {
    "CONTRIBUTING.md 0": (
        1,
        """
from keras import tree
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
self = SimpleNamespace(distribute_strategy=strategy)
data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
maybe_distributed_data_batch = next(iter(data))
BLOCK
print(data_batch.shape)
""",
        "(4,)",
    ),
    "docs/api.md 0": (2, "BLOCK", "worker 0"),
    "docs/cloud.md 0": ALONE,
    "docs/fault_tolerance.md 0": ALONE,
    "docs/gpus.md 0": WITH_RESOLVER,
    "docs/parameter_servers.md 0": (4, "BLOCK", ""),
    "docs/parameter_servers.md 1": (
        3,
        """
resolver = SlurmClusterResolver({"chief": 1, "ps": 1, "worker": -1})
if resolver.task_type in ("ps", "worker"):
    sys.exit(resolver.serve())
strategy = slurm_resolver.ParameterServerStrategy(resolver)
# … the model, in strategy.scope()

def make_dataset():
    return tf.data.Dataset.from_tensor_slices(rows).repeat()
BLOCK
""",
        "",
    ),
    "docs/parameter_servers.md 2": (2, "BLOCK\nprint(server.target)", "grpc://"),
    "docs/ports.md 0": ALONE,
    "docs/troubleshooting.md 0": (2, "BLOCK", "worker 1"),
    "docs/strategies.md 0": ALONE,
    "docs/unchanged_programs.md 1": (
        1,
        "FLAGS = SimpleNamespace(task_index=0)\nBLOCK\nprint(config)",
        "/job:worker/task:0",
    ),
}
# How many tasks run the program in each block of bash.
BATCH_FILES = {
    "docs/data.md 0": 0,
    "docs/gpus.md 0": 8,
    "docs/many_nodes.md 0": 8,
}
# The tests below run the programs of these pages as a whole, and test_sbatch_on_slurm.py the guide
# of heterogeneous jobs. A test of the command covers `status` beside a training.
WHOLE = re.compile(r"README|many_nodes|data|heterogeneous|unchanged_programs.md 0")
OTHER_BATCH_FILES = {"docs/data.md 1", "docs/heterogeneous.md 0"}


def blocks(language: str) -> dict[str, str]:
    """Returns the blocks of all pages by page and number."""
    return {
        f"{name_of(page)} {number}": text
        for page in PAGES
        for number, text in enumerate(texts_of(page, language))
    }


PYTHON = blocks("python")
BASH = blocks("bash")


def test_every_block_has_a_program() -> None:
    assert {name for name in PYTHON if not WHOLE.search(name)} == set(PROGRAMS)
    assert set(BASH) == {*BATCH_FILES, *OTHER_BATCH_FILES}


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_of_programs(tmp_path: Path, name: str) -> None:
    tasks, program, shown = PROGRAMS[name]
    program = re.sub(
        r"^( *)BLOCK$",
        lambda found: textwrap.indent(PYTHON[name], found[1]),
        IMPORTS + program,
        flags=re.M,
    )
    for old, new in REPLACED.items():
        program = program.replace(old, new)
    (tmp_path / "train.py").write_text(program)
    done = captured(
        in_step(f"-n {tasks}", sys.executable, "train.py"),
        status=0,
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert shown in done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.newest
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", BATCH_FILES)
def test_batch_files(real_slurm: SlurmCluster, tmp_path: Path, name: str) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").touch()
    captured(["tar", "-cf", "data.tar", "venv"], status=0, cwd=tmp_path)
    (tmp_path / "train.py").write_text(
        "import os\nprint('rank', os.environ['SLURM_PROCID'], 'trains')\n"
    )
    # A node of these tests has 8 CPUs, and the nodes share a folder /tmp.
    text = BASH[name].replace("--cpus-per-task=8", "--cpus-per-task=1")
    text = text.replace("/tmp", str(tmp_path))
    if "#SBATCH --nodes" not in text:
        request = "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4"
        text = f"#!/bin/bash\n#SBATCH {request}\n{text}"
    (tmp_path / "train.sbatch").write_text(text)
    real_slurm.run(
        f"sbatch --wait --output={tmp_path / 'job.out'} train.sbatch",
        cwd=tmp_path,
        env={**ENVIRONMENT, "HOME": str(tmp_path)},
    )
    printed = [tmp_path / "job.out", *tmp_path.glob("logs/*")]
    ranks = re.findall(r"rank (\d+) trains", "".join(path.read_text() for path in printed))
    assert len(set(ranks)) == BATCH_FILES[name]


TWO_TASKS = in_step("-n 2")


def program_of(page: str, start: str = "") -> str:
    """Returns the Python blocks of a guide that start with this text, joined."""
    texts = texts_of(ROOT / "docs" / page, "python")
    return "".join(text for text in texts if text.startswith(start))


def run(folder: Path, *command: str, **variables: str) -> str:
    return captured(
        command,
        status=0,
        cwd=folder,
        env={**os.environ, **variables},
    ).stdout


@pytest.mark.tensorflow
def test_first_block_of_readme(tmp_path: Path) -> None:
    """It runs as it stands."""
    (tmp_path / "train.py").write_text(program_of("../README.md"))
    assert "loss" in run(tmp_path, *TWO_TASKS, "python", "train.py")


@pytest.mark.tensorflow
def test_many_nodes(tmp_path: Path) -> None:
    """The blocks of the page form one program."""
    (tmp_path / "train.py").write_text(program_of("many_nodes.md"))
    printed = run(tmp_path, *TWO_TASKS, "python", "train.py")
    # Only the first worker prints, and one worker saves for all.
    assert re.findall(r"^(\d): Epoch", printed, re.M) == ["0", "0"]
    assert (tmp_path / "best.keras").exists()
    assert (tmp_path / "trained.keras").exists()


@pytest.mark.nightly
@pytest.mark.tensorflow
def test_data(tmp_path: Path) -> None:
    """Both workers say why the second dataset of the page is not divided; the first one is."""
    (tmp_path / "train.py").write_text(program_of("data.md"))
    printed = run(tmp_path, *TWO_TASKS, "sh", "-c", "python train.py 2>&1")
    assert printed.count("each worker produces all rows") == 2


@pytest.mark.nightly
def test_keras_with_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "train.py").write_text(program_of("unchanged_programs.md", "import jax\n"))
    losses = dict(
        re.findall(
            r"^(\d): (\[.*\])$",
            run(
                tmp_path,
                *TWO_TASKS,
                *COMMAND,
                "exec",
                "--env=keras-distribution",
                "--",
                sys.executable,
                "train.py",
                KERAS_BACKEND="jax",
            ),
            re.M,
        )
    )
    assert set(losses) == {"0", "1"}
    assert len(set(losses.values())) == 1
