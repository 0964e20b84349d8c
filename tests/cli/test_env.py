"""`slurm-resolver env`: what a bug report has, and what it leaves out."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
from task_variables import TASK

import slurm_resolver
from slurm_resolver.cli import main
from slurm_resolver.diagnostics.bug_report import make_report


def test_the_sections(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["versions", "machine", "variables", "cluster"]
    assert report["cluster"] == {"tasks": "none: not in a Slurm step"}
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert [line for line in lines if len(line) == 1] == [[f"{title}:"] for title in report]
    assert ["slurm_resolver", slurm_resolver.__version__] in lines
    assert ["SLURM_STEP_NODELIST", "n[9-10]"] in lines
    assert (
        text.partition("cluster:\n")[2]
        == """\
  tasks         4
  nodes         2
  distribution  block
  layout from   environment
  ports from    SLURM_STEP_RESV_PORTS
  this task     worker 1 (rank 1 on n9) at n9:23002
  gpus          ['5'] (CUDA_VISIBLE_DEVICES split by SLURM_LOCALID)
"""
    )


LEFT_OUT = {
    "GRPC_XDS_BOOTSTRAP_CONFIG": '{"xds_servers": "secret"}',
    "SLURM_RESOLVER_SECRET": "secret secret secret",
    "SLURM_JWT": "eyJ.secret",
    "SLURM_JOB_COMMENT": "secret",
    "SLURM_JOB_ACCOUNT": "secret",
    "SLURM_STEP_SECRET": "secret",
    "SPANK_TOKEN": "secret",
    "TF_CLI_TOKEN": "secret",
    "https_proxy": "http://me:secret@proxy:3128",
    "SLURM_SUBMIT_DIR": "/secret",
    "TF_CONFIG": '{"environment": {"WANDB_API_KEY": "secret"}}',
}


def test_what_may_be_secret_is_left_out() -> None:
    others = {"AWS_SECRET_ACCESS_KEY": "x", "PATH": "y", "HOME": "z"}
    report = make_report({**TASK, **LEFT_OUT, **others})
    assert set(report["variables"]) == {*TASK, *LEFT_OUT}
    assert {report["variables"][name] for name in LEFT_OUT} == {"set (left out)"}
    assert "secret" not in json.dumps({**report, "variables": list(report["variables"].values())})
    value = f"{Path.home()}/lists/{getpass.getuser()}/hosts"
    report = make_report({**TASK, "NCCL_DEBUG_FILE": value})
    assert report["variables"]["NCCL_DEBUG_FILE"] == "~/lists/USER/hosts"
    assert f"{Path.home()}/" not in json.dumps(report)
