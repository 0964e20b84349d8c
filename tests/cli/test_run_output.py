"""Where the local launcher's output goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest
from local_run import COMMAND, SPEAK, files, run

from slurm_resolver.local.output import file_name

# The variables that the fields of an output file's name stand for, in rank 3 of a step.
OF_A_TASK = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "7", "SLURM_PROCID": "3", "SLURM_NODEID": "0"}
OF_A_TASK.update(SLURMD_NODENAME="n9", SLURM_JOB_NAME="na me", SLURM_JOB_USER="ada")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("rank-%t.log", "rank-3.log"),
        ("%j.%s-%n-%N-%x-%u", "42.7-0-n9-na me-ada"),
        ("100%%-%t", "100%-3"),
        ("%%t", "%t"),
        ("%q-%", "%q-%"),
        ("plain", "plain"),
    ],
)
def test_fields_of_file_names(pattern: str, name: str) -> None:
    assert file_name(pattern, OF_A_TASK) == name


def test_output_in_files(tmp_path: Path) -> None:
    def written(*options: str) -> Dict[str, List[str]]:
        for path in tmp_path.iterdir():
            path.unlink()
        done = run("run", "-n2", *options, "--", "sh", "-c", SPEAK, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return files(tmp_path)

    assert written("-o", "rank-%t.log") == {
        f"rank-{rank}.log": ["", f"err {rank}", f"out {rank}", "tail"] for rank in (0, 1)
    }
    assert (tmp_path / "rank-0.log").read_text() == "out 0\nerr 0\ntail"
    written("-l", "-o", "rank-%t.log")
    assert (tmp_path / "rank-1.log").read_text().startswith("1: ")
    assert written("-o", "none") == {}


def test_lines_without_labels_do_not_mix() -> None:
    loop = "i=0; while [ $i -lt 300 ]; do printf $SLURM_PROCID; printf '%020d' $i; echo;"
    script = loop + "i=$((i+1)); done; printf $SLURM_PROCID-end"
    done = run("run", "-n3", "--no-label", "--", "sh", "-c", script)
    expected = [f"{rank}{number:020d}" for rank in range(3) for number in range(300)]
    assert sorted(done.stdout.splitlines()) == sorted([*expected, "0-end", "1-end", "2-end"])


def test_the_output_of_a_single_task_without_a_label_is_unchanged() -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) + b'a\\rb')"
    done = subprocess.run(
        [*COMMAND, "run", "--no-label", "--", sys.executable, "-c", script],
        capture_output=True,
        check=True,
        timeout=180,
    )
    assert done.stdout == bytes(range(256)) + b"a\rb"


def test_a_task_whose_output_nobody_reads_ends() -> None:
    command = [*COMMAND, "run", "-n2", "--", "yes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() in (b"0: y\n", b"1: y\n")
        process.stdout.close()
        assert b"was ended by SIGPIPE" in process.stderr.read()
        assert process.wait(timeout=180) == 128 + 13
