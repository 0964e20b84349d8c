"""Programs without any code for Slurm train on it under `slurm-resolver exec`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from folders import EXAMPLES
from slurm_cluster import SlurmCluster
from slurm_jobs import ENVIRONMENT, accuracies

TF_CONFIG_PROGRAM = EXAMPLES / "tf_config" / "train.py"
FLAGS_PROGRAM = EXAMPLES / "flags" / "train.py"


@pytest.mark.parametrize("program", [TF_CONFIG_PROGRAM, FLAGS_PROGRAM], ids=lambda p: p.parent.name)
def test_the_programs_do_not_mention_slurm(program: Path) -> None:
    assert "slurm" not in program.read_text(encoding="utf-8").lower()


@pytest.mark.tensorflow
@pytest.mark.newest
def test_a_tf_config_program_trains_to_equal_weights(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    output = real_slurm.run(
        "srun -w n9,n10 -N2 -n3 --kill-on-bad-exit=1 slurm-resolver exec --wait 60 -- "
        f"python {TF_CONFIG_PROGRAM} --output {tmp_path}/trained",
        env=ENVIRONMENT,
        timeout=300,
    ).stdout
    reports = re.findall(r"^worker (\d) of 3: .* weights (\w+)$", output, re.M)
    assert sorted(index for index, _ in reports) == list("012")
    assert len({weights for _, weights in reports}) == 1
    assert min(accuracies(output)) > 0.9
    # Only the chief's files; the other workers remove theirs.
    saved = sorted(path.name for path in (tmp_path / "trained").iterdir())
    assert saved == ["checkpoints", "model"]
    assert (tmp_path / "trained" / "model" / "saved_model.pb").exists()


@pytest.mark.newest
@pytest.mark.tensorflow
def test_a_program_with_flags_trains_and_its_step_ends(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    """The batch file ends with status 0, although the parameter server never ends by itself.

    It leaves no files. `sbatch --wait` may notice the end half a minute late, so salloc runs it.
    """
    copy = shutil.copytree(EXAMPLES / "flags", tmp_path / "flags")
    files = {path.name for path in copy.iterdir()}
    output = real_slurm.run(
        "salloc --quiet -w n9,n10 -N2 -n3 --cpus-per-task=2 bash train.sbatch",
        cwd=copy,
        env=ENVIRONMENT,
        timeout=300,
    ).stdout
    assert {path.name for path in copy.iterdir()} <= {*files, "__pycache__"}
    steps = re.findall(r"^\d: worker (\d): (\d+) of (\d+) steps$", output, re.M)
    assert sorted(worker for worker, _, _ in steps) == list("01")
    assert sum(int(own) for _, own, _ in steps) >= int(steps[0][2])
    (accuracy,) = accuracies(output)
    assert accuracy > 0.9
