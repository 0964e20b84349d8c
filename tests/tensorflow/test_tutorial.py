"""TensorFlow's tutorial for several workers, with Keras 3, to its end on the real Slurm."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from folders import HELPERS
from slurm_cluster import SlurmCluster

from slurm_resolver.diagnostics.log_messages import explain

keras_version = pytest.importorskip("keras").__version__
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.tensorflow,
    pytest.mark.newest,
    pytest.mark.skipif(keras_version.startswith("2."), reason="this TensorFlow has Keras 2"),
]

PROGRAM = HELPERS / "multi_worker_tutorial.py"
STEP = "srun --kill-on-bad-exit=1 -w n9,n10 -N2 -n2"
THEIRS = "tf.distribute.MultiWorkerMirroredStrategy()"


def run(
    slurm: SlurmCluster, program: Path, folder: Path, *options: str
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "slurm_resolver", "exec", *options, "--"]
    words += [sys.executable, "-W", "ignore", str(program), str(folder)]
    return slurm.run(f"{STEP} {shlex.join(words)}", timeout=240, check=False)


def ended(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.findall(r"slurm_resolver\S+ worker ([01]) accuracy ([\d.]+)", done.stdout)
    assert {worker for worker, _ in found} == {"0", "1"}
    assert len({accuracy for _, accuracy in found}) == 1
    assert zipfile.ZipFile(folder / "model.keras").testzip() is None
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint", "model.keras"]


def test_unchanged(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    ended(run(real_slurm, PROGRAM, tmp_path, "--replace-strategy"), tmp_path)


@pytest.mark.nightly
def test_with_one_import_changed(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    text = PROGRAM.read_text()
    assert text.count(THEIRS) == 1
    changed = tmp_path / "changed.py"
    ours = "from slurm_resolver import MultiWorkerMirroredStrategy\nstrategy = "
    changed.write_text(text.replace(f"strategy = {THEIRS}", f"{ours}MultiWorkerMirroredStrategy()"))
    ended(run(real_slurm, changed, folder), folder)


@pytest.mark.nightly
def test_without_either_the_log_is_explained(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    done = run(real_slurm, PROGRAM, tmp_path)
    assert done.returncode != 0
    found = {finding.id: finding.remedy for finding in explain(done.stderr.splitlines())}
    assert "from slurm_resolver import MultiWorkerMirroredStrategy" in found["keras-3-fit"]
    assert "exec --replace-strategy" in found["keras-3-fit"]
