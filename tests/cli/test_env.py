"""`slurm-resolver env`: what a bug report has, and what it leaves out."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Dict

import pytest
from task_variables import TASK

import slurm_resolver
from slurm_resolver.cli import main
from slurm_resolver.diagnostics.bug_report import make_report


def test_the_sections_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if not line.startswith(" ")]
    assert titles == ["versions:", "machine:", "variables:", "cluster:"]
    assert ["slurm_resolver", slurm_resolver.__version__] in [line.split() for line in lines]
    assert ["SLURM_STEP_NODELIST", "n[9-10]"] in [line.split() for line in lines]
    end = lines[lines.index("cluster:") :]
    assert end == [
        "cluster:",
        "  tasks         4",
        "  nodes         2",
        "  distribution  block",
        "  layout from   environment",
        "  ports from    SLURM_STEP_RESV_PORTS",
        "  this task     worker 1 (rank 1 on n9) at n9:23002",
        "  gpus          ['5'] (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)",
    ]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "machine", "variables", "cluster"]
    assert report["cluster"] == {"tasks": "none: not in a Slurm step"}


def test_a_cluster_that_cannot_be_resolved_says_why() -> None:
    report = make_report({**TASK, "SLURM_STEP_NODELIST": "n[10-9]"})
    assert report["cluster"]["error"].startswith("UnreadableValueError: SLURM_STEP_NODELIST=")
    report = make_report({**TASK, "SLURM_DISTRIBUTION": "arbitrary"})
    assert report["cluster"]["error"].startswith("UnknownLayoutError: ")


LEFT_OUT: Dict[str, str] = {
    "GRPC_XDS_BOOTSTRAP_CONFIG": '{"xds_servers": "secret"}',
    "SLURM_RESOLVER_SECRET": "secret secret secret",
    "SLURM_JWT": "eyJ.secret",
    "SLURM_JOB_COMMENT": "secret",
    "SLURM_JOB_ACCOUNT": "secret",
    "SLURM_STEP_SECRET": "secret",
    "SPANK_TOKEN": "secret",
    "GRPC_AUTH_TOKEN": "secret",
    "TF_CLI_TOKEN": "secret",
    "https_proxy": "http://me:secret@proxy:3128",
    "SLURM_SUBMIT_DIR": "/secret",
    "TF_CONFIG": '{"environment": {"WANDB_API_KEY": "secret"}}',
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_values_that_may_be_secret_are_left_out(name: str) -> None:
    report = make_report({**TASK, name: LEFT_OUT[name]})
    assert report["variables"][name] == "set (left out)"
    assert "secret" not in json.dumps({**report, "variables": list(report["variables"].values())})


def test_other_variables_are_not_named() -> None:
    report = make_report({**TASK, "AWS_SECRET_ACCESS_KEY": "x", "PATH": "y", "HOME": "z"})
    assert set(report["variables"]) == set(TASK)


def test_the_users_name_and_home_are_replaced() -> None:
    value = f"{Path.home()}/lists/{getpass.getuser()}/hosts"
    report = make_report({**TASK, "NCCL_DEBUG_FILE": value})
    assert report["variables"]["NCCL_DEBUG_FILE"] == "~/lists/USER/hosts"
    assert f"{Path.home()}/" not in json.dumps(report)


def test_a_program_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\necho no configuration >&2; exit 3\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert make_report({})["versions"]["srun"] == "exit status 3: no configuration"
