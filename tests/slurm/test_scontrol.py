"""The package reads the fields of a job from the output of scontrol."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_cluster import SlurmCluster

from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.step_variables import SlurmStep

SHOW = """\
import json, sys; from slurm_resolver.slurm import scontrol
job = scontrol.show_job(sys.argv[1]); print(json.dumps([job, scontrol.end_time(job)]))"""
NAME = "a JobState=FAILED"
WORDS = ["b JobState=FAILED\n   JobState=FAILED\n\nc", "Restarts=7"]


def test_free_text_and_the_users_settings_change_no_field(
    real_slurm: SlurmCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "job file").write_text("#!/bin/bash\nsleep 600\n")
    job_id = real_slurm.run(
        shlex.join(
            [
                "sbatch",
                "--parsable",
                "-J",
                NAME,
                "--comment",
                "x Restarts=9",
                "-t",
                "30",
                "-o",
                "x.out",
                str(folder / "job file"),
                *WORDS,
            ]
        ),
        cwd=folder,
    ).stdout.strip()
    try:
        real_slurm.run(f"until squeue -h -t R -j {job_id} | grep -q .; do sleep 0.1; done")
        done = real_slurm.run(
            shlex.join([sys.executable, "-c", SHOW, job_id]),
            env={"SLURM_TIME_FORMAT": "relative"},
        )
    finally:
        real_slurm.run(["scancel", job_id])
    job, end = json.loads(done.stdout)
    assert job["JobName"] == NAME
    assert (job["JobState"], job["Restarts"], job["Requeue"]) == ("RUNNING", "0", "1")
    assert job["StdOut"] == f"{folder}/x.out"
    assert job["NodeList"] == job["BatchHost"]
    assert 1000 < end - time.time() <= 1800


if TYPE_CHECKING:  # mypy refuses the id of a step, and says where such an ignore is not needed
    raw = SlurmStep().job_id or ""
    scontrol.show_job(raw)  # type: ignore[arg-type]
    scontrol.run_on(raw, "scancel", timeout=1.0)  # type: ignore[arg-type]
    scontrol.cancel_steps([raw])  # type: ignore[list-item]
    scontrol.run("scancel", raw)  # type: ignore[attr-defined]


OWN_JOB = """\
from slurm_resolver.slurm import scontrol; from slurm_resolver.slurm.step_variables import SlurmStep
job, fields = scontrol.own_job(SlurmStep.read())
print(job, *[step["StepId"] for step in scontrol.show_steps(fields)])"""
# An array's last task has the array's own id. A job that a task submits inherits its variables.
ARRAY = f"""\
#!/bin/bash
until [ $(squeue -h -r -t R -n array | wc -l) = 2 ]; do sleep 0.1; done
srun {sys.executable} program > of-${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
until [ $(ls of-*_* | wc -l) = 2 ]; do sleep 0.1; done
sbatch --wait -n1 -o of-%j --wrap "srun {sys.executable} program"
"""


def test_the_id_of_a_job_means_no_other(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "program").write_text(OWN_JOB)
    (tmp_path / "job").write_text(ARRAY)
    real_slurm.run("sbatch --wait -J array --array=3-4 -n1 job", cwd=tmp_path)
    files = list(tmp_path.glob("of-*"))
    assert len(files) == 4
    for name in [path.name[3:] for path in files]:
        assert (tmp_path / f"of-{name}").read_text() == f"{name} {name}.batch {name}.0\n"
