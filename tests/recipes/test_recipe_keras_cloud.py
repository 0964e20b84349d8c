"""scaling.py says where a table of nodes against time cannot show any speed-up."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from folders import EXAMPLES


@pytest.fixture(scope="module")
def scaling() -> Any:
    spec = importlib.util.spec_from_file_location("scaling", EXAMPLES / "keras_cloud/scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What the nodes tell of themselves, tasks of a node, CPUs of a task, and what is said of it.
MACHINES = {
    "three simulated nodes": (["a 2"] * 3, 1, "2", "all nodes are one machine with 2 CPUs"),
    "one CPU each is there": (["a 3"] * 3, 1, "1", ""),
    "two tasks a node want more": (["a 3"] * 3, 2, "1", "all nodes are one machine with 3 CPUs"),
    "machines of their own": (["a 2", "b 2"], 1, "2", ""),
    "two containers of three": (["a 4", "b 4", "b 4"], 1, "4", "2 of the nodes are one machine"),
    "one node": (["a 1"], 4, "1", ""),
    "no boot_id to be read": (["2", "2"], 1, "2", ""),
    "srun failed": ([], 1, "2", ""),
}


@pytest.mark.parametrize("case", MACHINES)
def test_nodes_that_share_a_machine_are_told(
    scaling: Any, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, tasks, cpus, said = MACHINES[case]
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines))
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", cpus)
    found = scaling.shared_machines(len(lines), tasks)
    assert bool(found) == bool(said)
    assert said in found


def test_the_plot_has_the_note(scaling: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    keys = ("seconds", "speed_up", "loss", "accuracy", "test_accuracy")
    rows = [{"nodes": nodes, **dict.fromkeys(keys, 1.0)} for nodes in (1, 2)]
    sizes = []
    for note in ("", "all nodes are one machine"):
        scaling.plot(rows, tmp_path / "plot.png", note)
        sizes.append((tmp_path / "plot.png").read_bytes())
    assert sizes[0] != sizes[1]
