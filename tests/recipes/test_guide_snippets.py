"""Runs the blocks of the guides that are parts of a program, in such a program."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from example_runs import ENVIRONMENT
from folders import ROOT
from local_run import COMMAND, captured
from page_blocks import texts_of
from slurm_cluster import SlurmCluster

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
MODEL = """\
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
rows = (np.ones((64, 8)), np.ones((64, 1)))
data = tf.data.Dataset.from_tensor_slices(rows).batch(16)
"""


class Snippet(NamedTuple):
    """A program in which the line BLOCK stands for a block of a page.

    Attributes:
        tasks: how many tasks run it.
        program: without its imports.
        replaced: text of the block, such as the number of epochs, and what replaces it.
        status: the exit status.
        shown: what the program prints.
    """

    tasks: int = 1
    program: str = "BLOCK"
    replaced: tuple[str, str] = ("", "")
    status: int = 0
    shown: str = ""


RESOLVER = "resolver = SlurmClusterResolver()\n"
THEIRS = "strategy = tf.distribute.MultiWorkerMirroredStrategy(SlurmClusterResolver())\n"
# By page, a program for each of its blocks of Python. Other tests run the pages that are not here.
SNIPPETS = {
    "cloud.md": [Snippet(2)],
    "fault_tolerance.md": [
        Snippet(
            tasks=2,
            replaced=("# … the model, in strategy.scope()\n", MODEL),
        )
    ],
    "gpus.md": [Snippet(tasks=2, program=f"{RESOLVER}BLOCK")],
    "keras.md": [
        Snippet(
            program="""
from keras import tree
strategy = tf.distribute.MirroredStrategy(["CPU:0"])
self = SimpleNamespace(distribute_strategy=strategy)
data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
maybe_distributed_data_batch = next(iter(data))
BLOCK
print(data_batch.shape)
""",
            shown="(4,)",
        ),
        Snippet(
            tasks=2,
            program=THEIRS
            + """
with strategy.scope():
    variable = tf.Variable(2.0)


@tf.function
def train_step():
    with tf.GradientTape() as tape:
        loss = variable * (strategy.cluster_resolver.task_id + 1.0)
    trainable_weights = [variable]
    BLOCK
    return gradients[0]


print("gradient", strategy.run(train_step).numpy())
""",
            shown="gradient 1.5",  # the mean of 1 and 2
        ),
        Snippet(tasks=2, program=f"{THEIRS}BLOCK", status=1, shown="You must feed a value"),
    ],
    "parameter_servers.md": [
        Snippet(4),
        Snippet(
            tasks=3,
            program=f"""
resolver = SlurmClusterResolver({{"chief": 1, "ps": 1, "worker": -1}})
if resolver.task_type in ("ps", "worker"):
    sys.exit(resolver.serve())
strategy = slurm_resolver.ParameterServerStrategy(resolver)
{MODEL}
def make_dataset():
    return tf.data.Dataset.from_tensor_slices(rows).repeat()
BLOCK
""",
            replaced=("epochs=10, steps_per_epoch=1000", "epochs=2, steps_per_epoch=4"),
        ),
        Snippet(2, "BLOCK\nprint(server.target)", shown="grpc://"),
    ],
    "ports.md": [Snippet(2, replaced=('"n9": ', '"localhost": '))],
    "python.md": [Snippet(2, shown="worker 0")],
    "slurm.md": [Snippet(2, shown="worker 1")],
    "strategies.md": [Snippet(2), Snippet(2, f"{RESOLVER}BLOCK")],
    "unchanged_programs.md": [
        Snippet(  # the page's other program, test_guide_programs.py runs as well
            program="FLAGS = SimpleNamespace(task_index=0)\nBLOCK\nprint(config)",
            shown="/job:worker/task:0",
        ),
    ],
}
OTHER_PROGRAMS = {"unchanged_programs.md": "import jax\n"}


def blocks(page: str) -> list[str]:
    """Returns the blocks of Python for which `SNIPPETS` has programs."""
    other = OTHER_PROGRAMS.get(page, "no other program")
    found = texts_of(ROOT / "docs" / page, "python")
    return [block for block in found if not block.startswith(other)]


def test_every_block_has_a_program() -> None:
    assert {page: len(blocks(page)) for page in SNIPPETS} == {
        page: len(snippets) for page, snippets in SNIPPETS.items()
    }
    assert {page: len(texts_of(ROOT / page, "bash")) for page in BATCH_FILES} == {
        page: len(files) for page, files in BATCH_FILES.items()
    }


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in SNIPPETS for number in range(len(SNIPPETS[page]))],
)
def test_parts_of_programs(tmp_path: Path, page: str, number: int) -> None:
    snippet = SNIPPETS[page][number]
    old, new = snippet.replaced
    block = blocks(page)[number]
    assert old in block
    program = re.sub(
        r"^( *)BLOCK$",
        lambda found: textwrap.indent(block.replace(old, new, 1), found[1]),
        snippet.program,
        flags=re.M,
    )
    (tmp_path / "train.py").write_text(IMPORTS + program)
    done = captured(
        [*COMMAND, "run", "-n", str(snippet.tasks), "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    printed = done.stdout + done.stderr
    assert done.returncode == snippet.status, printed
    assert snippet.shown in printed


# By page, how many tasks run the program in each of its blocks of bash. None: a test of the command
# runs it, beside a training.
BATCH_FILES: dict[str, list[int | None]] = {
    "README.md": [8],
    "docs/data.md": [0, 8, None],
    "docs/gpus.md": [8, 2],
    "docs/heterogeneous.md": [7],
    "docs/many_nodes.md": [8],
}


@pytest.mark.nightly
@pytest.mark.newest
@pytest.mark.tensorflow
@pytest.mark.parametrize("page", BATCH_FILES)
def test_batch_files(real_slurm: SlurmCluster, tmp_path: Path, page: str) -> None:
    files = texts_of(ROOT / page, "bash")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").touch()
    captured(["tar", "-cf", "data.tar", "venv"], status=0, cwd=tmp_path)
    program = "import os\nprint('rank', os.environ['SLURM_PROCID'], 'trains')\n"
    if page.endswith("heterogeneous.md"):
        (resolver,) = texts_of(ROOT / page, "python")
        program = f"from slurm_resolver import SlurmClusterResolver\n{resolver}{program}"
    (tmp_path / "train.py").write_text(program)
    for text, tasks in zip(files, BATCH_FILES[page]):
        if tasks is None:
            continue
        # A node of these tests has 8 CPUs, and the nodes share a folder /tmp.
        text = text.replace("--cpus-per-task=8", "--cpus-per-task=1")
        text = text.replace("/tmp", str(tmp_path))
        if "#SBATCH --nodes" not in text:
            request = "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4"
            text = f"#!/bin/bash\n#SBATCH {request}\n{text}"
        (tmp_path / "train.sbatch").write_text(text)
        real_slurm.run(
            f"sbatch --wait --output={tmp_path / 'job.out'} train.sbatch",
            cwd=tmp_path,
            env={**ENVIRONMENT, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        )
        printed = [tmp_path / "job.out", *tmp_path.glob("logs/*")]
        ranks = re.findall(r"rank (\d+) trains", "".join(path.read_text() for path in printed))
        assert len(set(ranks)) == tasks
