"""`slurm-resolver check` on one machine, and on a recorded step."""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, List

import pytest
from recorded_steps import recordings

import slurm_resolver as sr
from slurm_resolver.cli import main
from slurm_resolver.preflight import step_checks as preflight
from slurm_resolver.preflight.keras_check import keras_result
from slurm_resolver.preflight.step_checks import check_here


def test_the_layout_is_compared_with_the_tasks_own_variables() -> None:
    task = next(r for r in recordings() if r.name.endswith("even_2x2")).tasks[2]
    cluster = sr.resolve(environ=task)
    facts = preflight._local_facts(cluster)
    assert preflight._check_layout({2: facts}, cluster).status == "ok"
    elsewhere = preflight._local_facts(
        cluster._replace(step=cluster.step.replace(node_name="n0", local_rank=1))
    )
    assert preflight._check_layout({2: elsewhere}, cluster) == (
        "layout",
        "failed",
        "worker 2 (rank 2 on n1) really runs on n0, local rank 1",
    )


def test_one_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    checks = {result.id: result for result in check_here()}
    ids = ["names", "tensorflow", "keras", "proxies", "gpus", "requeue", "preemption", "step"]
    assert list(checks) == ids
    assert checks["proxies"].status == "warning"
    assert "https_proxy set, which gRPC would use" in checks["proxies"].detail
    monkeypatch.setenv("NO_PROXY", "n[1-4]")
    assert {result.id: result for result in check_here()}["proxies"].status == "ok"
    failed = any(result.status == "failed" for result in checks.values())
    assert main(["check", "--json"]) == (1 if failed else 3)
    printed = json.loads(capsys.readouterr().out)
    assert [check["id"] for check in printed["checks"]] == list(checks)
    assert not printed["ok"]
    assert "no step was checked" in checks["step"].detail


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("pss=1", "job 'pss' is not 'ps'"),
        ("wroker=-1,ps=1", "job 'wroker' is not 'worker'"),
        ("chief=2", "TensorFlow takes at most one"),
        ("9p=1", "TensorFlow takes no job '9p'"),
    ],
)
def test_jobs_are_looked_at_without_a_step(
    jobs: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--jobs", jobs]) == 2
    assert message in capsys.readouterr().err


def test_software_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    versions: Dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    found: List[Any] = [r for r in check_here() if r.id in ("tensorflow", "keras")]
    assert [result.status for result in found] == ["failed", "skipped"]
    versions.update({"tensorflow-cpu": "2.21.0", "keras": "3.15.1"})
    found = [r for r in check_here() if r.id in ("tensorflow", "keras")]
    assert [result.status for result in found] == ["ok", "ok"]
    assert "slurm_resolver.MultiWorkerMirroredStrategy" in found[1].detail
    versions["keras"] = "3.9.2"
    (keras,) = (r for r in check_here() if r.id == "keras")
    assert keras.status == "warning"
    assert "Keras 3.9.2 trains wrongly on several workers" in keras.detail
    assert "pip install 'keras>=3.10'" in keras.detail


OLD = "Keras 3.9.2 trains wrongly on several workers"
NEW = "fit() under slurm_resolver.MultiWorkerMirroredStrategy"


@pytest.mark.parametrize(
    ("keras", "tf_keras", "legacy", "status", "detail"),
    [
        ("3.15.1", "", False, "ok", f"Keras 3.15.1: {NEW}"),
        ("3.15.1", "2.21.0", False, "ok", f"Keras 3.15.1: {NEW}"),
        ("3.9.2", "", False, "warning", OLD),
        ("3.9.2", "2.21.0", False, "ok", f"fit() of tf_keras 2.21.0. {OLD}"),
        ("3.9.2", "2.21.0", True, "ok", "fit() of tf_keras 2.21.0"),
        ("3.15.1", "", True, "warning", "pip install 'tf_keras==2.21.*'"),
        ("2.15.0", "", False, "ok", "fit() can be used"),
    ],
)
def test_the_keras_that_the_program_may_use(
    keras: str, tf_keras: str, legacy: bool, status: str, detail: str
) -> None:
    facts = [{"keras": keras, "tf_keras": tf_keras, "legacy_keras": legacy}] * 2
    result = keras_result(facts, "2.21.0")
    assert (result.status, detail in result.detail) == (status, True), result
    told_to_use_what_it_uses = legacy and tf_keras and "use tf_keras" in result.detail
    assert not told_to_use_what_it_uses


def test_errors_of_the_environment_are_exit_status_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "none")
    assert main(["check"]) == 2
    assert issubclass(sr.RendezvousError, sr.SlurmResolverError)
