"""The local launcher's GPUs and CPUs, variable by variable as the real srun sets them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import pytest
from local_run import run
from slurm_cluster import Node, SlurmCluster, SlurmUnavailable, slurm_or_skip

from slurm_resolver.errors import GpuError
from slurm_resolver.local.cpus import bind_cpus
from slurm_resolver.local.gpus import GpuRequest, gpu_variables
from slurm_resolver.slurm.gpu_variables import CUDA

GPU_OPTIONS = """\
--gpus=2
-G3
--gpus-per-node=2
--gpus-per-node 2 --gpus 2
--gpus-per-task=2
--gpus-per-task 1 --gpus 2
--gpus-per-task 1 --gpus-per-node 2
--gpus 2 --gpu-bind none
--gpus 2 --gpu-bind closest
--gpus 2 --gpu-bind single:1
--gpus 4 --gpu-bind single:2
--gpus 2 -n4 --gpu-bind single:2
--gpus 2 -n3 --gpu-bind single:1
--gpus 2 --gpu-bind verbose,single:1
--gpus-per-task 2 --gpu-bind single:1
--gpus-per-task 1 --gpu-bind none
--gpus-per-task 1 --gpu-bind closest
--gpus 4 --gpu-bind per_task:2
--gpus 4 --gpu-bind per_task:1
--gpus 4 --gpu-bind per_task:3
--gpus 2 -n4 --gpu-bind per_task:1
--gpus 4 --gpu-bind map_gpu:3,1
--gpus 4 -n3 --gpu-bind map_gpu:0*2,1
--gpus 2 --gpu-bind map_gpu:0,3
--gpus 4 --gpu-bind mask_gpu:0x3,0xc
--gpus 4 -n3 --gpu-bind mask_gpu:0x1*2,2
--gpus 2 --gpu-bind mask_gpu:0x6
--gpus 2 --gpu-bind mask_gpu:0xc
--gpu-bind single:1
-c2 --gpus 2
-m cyclic
-m plane=2
-m block:cyclic
-m *
-m nopack
-m BLOCK
-m cyclic:block,Pack""".splitlines()


def variables(folder: Path) -> List[Dict[str, str]]:
    """Each task's variables that the options are about, from files by rank."""
    tasks = []
    for path in sorted(folder.iterdir()):
        entries = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
        about = ("GPU", "CUDA", "ROCR", "ZE_AFF", "TRES", "SLURM_DIST", "SLURM_NTASKS", "PER_TASK")
        tasks.append({k: v for k, v in entries.items() if any(word in k for word in about)})
        assert entries["SLURM_PROCID"] == path.name
    return tasks


# One process for all steps, as Python takes longer to start than they do.
LOOP = """
import sys
from slurm_resolver.cli import main
for line in sys.stdin:
    assert main(["run", "-n2", *line.rstrip("\\n").split("\\0"), "--", "env", "-0"]) == 0
"""


@pytest.mark.slurm
def test_variables_are_the_real_sruns(real_slurm: SlurmCluster, tmp_path: Path) -> None:
    steps = [shlex.split(text) for text in GPU_OPTIONS]
    for number, options in enumerate(steps):
        for folder in (f"srun-{number}", f"run-{number}"):
            (tmp_path / folder).mkdir()
        pattern = f"{tmp_path}/srun-{number}/%t"
        real_slurm.run(["srun", "-wn9", "-n2", *options, "-o", pattern, "env", "-0"])
    lines = ["\0".join([*o, "-o", f"{tmp_path}/run-{n}/%t"]) for n, o in enumerate(steps)]
    command = [sys.executable, "-c", LOOP]
    subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=60)
    for number, text in enumerate(GPU_OPTIONS):
        ours = variables(tmp_path / f"run-{number}")
        assert ours == variables(tmp_path / f"srun-{number}"), text


def gpus(request: GpuRequest, tasks: int, **environ: str) -> List[Optional[str]]:
    found = gpu_variables(request, tasks, environ)
    assert all(
        one.get("CUDA_VISIBLE_DEVICES") == one.get("SLURM_STEP_GPUS", one.get(CUDA))
        for one in found.variables
    )
    return [one.get(CUDA) for one in found.variables]


@pytest.mark.parametrize(
    ("request_", "tasks", "visible", "expected"),
    [
        (GpuRequest(2), 2, "4,5,6", ["4,5", "4,5"]),
        (GpuRequest(per_node=3), 2, "4,5,6", ["4,5,6", "4,5,6"]),
        (GpuRequest(per_task=1), 2, "7,3", ["7", "3"]),
        (GpuRequest(per_task=1), 2, "GPU-aa,MIG-bb", ["GPU-aa", "MIG-bb"]),
        (GpuRequest(2, bind="map_gpu:1,0"), 2, "4,5", ["5", "4"]),
        (GpuRequest(2, bind="none"), 2, "4,5", [None, None]),
        (GpuRequest(0), 2, "4,5", ["", ""]),
        (GpuRequest(), 2, "4,5", [None, None]),  # not asked: the launcher's passes through
    ],
)
def test_gpus_are_the_first_of_the_launchers(
    request_: GpuRequest, tasks: int, visible: str, expected: List[Optional[str]]
) -> None:
    assert gpus(request_, tasks, CUDA_VISIBLE_DEVICES=visible) == expected


def test_names_of_one_maker_go_into_its_variable_alone() -> None:
    found = gpu_variables(GpuRequest(1), 1, {CUDA: "GPU-aa"})
    assert found.variables == [
        {CUDA: "GPU-aa", "SLURM_STEP_GPUS": "GPU-aa", "SLURM_GPUS_ON_NODE": "1"}
    ]
    assert {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} <= set(found.hidden)


@pytest.mark.parametrize(
    ("request_", "environ", "message"),
    [
        (
            GpuRequest(3),
            {CUDA: "0,1"},
            "3 GPUs are asked for, but CUDA_VISIBLE_DEVICES=0,1 names 2",
        ),
        (GpuRequest(per_task=2), {CUDA: "0,1"}, "4 GPUs are asked for"),
        (GpuRequest(1), {CUDA: ""}, "1 GPUs are asked for, but CUDA_VISIBLE_DEVICES= names 0"),
        (GpuRequest(3, per_task=1), {}, "--gpus makes 3, --gpus-per-task makes 2 GPUs for 2 tasks"),
        (GpuRequest(2, per_node=1), {}, "expected the same number. Leave all but one out."),
        (GpuRequest(5), {}, "5 GPUs are asked for, but the driver shows 4."),
    ],
)
def test_more_gpus_than_there_are(
    request_: GpuRequest, environ: Dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_resolver.local.gpus.count_with_driver", lambda: 4)
    with pytest.raises(GpuError) as caught:
        gpu_variables(request_, 2, environ)
    assert message in str(caught.value)


def test_where_nothing_can_be_asked_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_resolver.local.gpus.count_with_driver", lambda: None)
    found = gpu_variables(GpuRequest(2), 1, {})
    assert found.variables[0][CUDA] == "0,1"
    assert [text.split(" (")[0] for text in found.warnings] == [
        "cannot see whether this machine has 2 GPUs"
    ]
    monkeypatch.setattr("slurm_resolver.local.gpus.count_with_driver", lambda: 2)
    assert not gpu_variables(GpuRequest(2), 1, {}).warnings


def test_a_binding_that_leaves_a_task_none_says_so() -> None:
    found = gpu_variables(GpuRequest(2, bind="per_task:1"), 3, {CUDA: "4,5"})
    assert [one[CUDA] for one in found.variables] == ["4", "5", "4"]
    [warning] = found.warnings
    assert warning.startswith("--gpu-bind per_task:1 leaves task 2 none of the step's 2 GPUs;")
    found = gpu_variables(GpuRequest(2, bind="per_task:2"), 1, {CUDA: "4,5"})
    assert (found.variables[0][CUDA], found.warnings) == ("4,5", [])


CORES = {0: (0, 4), 1: (1, 5), 4: (0, 4), 5: (1, 5), 6: (6,)}


@pytest.mark.parametrize(
    ("option", "tasks", "each", "expected", "shown"),
    [
        (None, 2, None, None, None),
        (None, 2, 2, [(0, 1), (4, 5)], "quiet,mask_cpu:0x3,0x30"),
        (None, 3, 2, None, None),  # not enough
        ("none", 2, 2, None, "quiet,none"),
        ("rank", 2, None, [(0,), (1,)], "quiet,rank"),
        ("threads", 3, None, [(0,), (1,), (4,)], "quiet,mask_cpu:0x1,0x2,0x10"),
        ("v,threads", 1, 2, [(0, 1)], "verbose,mask_cpu:0x3"),
        ("cores", 2, None, [(0, 4), (1, 5)], "quiet,mask_cpu:0x11,0x22"),
        ("cores", 2, 2, [(0, 4), (1, 5)], "quiet,mask_cpu:0x11,0x22"),
        ("cores", 1, 3, [(0, 4, 1, 5)], "quiet,mask_cpu:0x33"),
        ("map_cpu:5,0x1", 3, None, [(5,), (1,), (5,)], "quiet,map_cpu:5,1"),
        ("map_cpu:0*2,1", 3, None, [(0,), (0,), (1,)], "quiet,map_cpu:0,0,1"),
        ("verbose,mask_cpu:0x30,3", 2, None, [(4, 5), (0, 1)], "verbose,mask_cpu:30,3"),
    ],
)
def test_cpu_binding(
    option: Optional[str],
    tasks: int,
    each: Optional[int],
    expected: Optional[List[Tuple[int, ...]]],
    shown: Optional[str],
) -> None:
    bound = bind_cpus(option, tasks, each, [0, 1, 4, 5], CORES.__getitem__)
    assert bound.cpus == expected
    assert bound.variables.get("SLURM_CPU_BIND") == shown


CPU_BINDINGS = ["none", "rank", "threads", "map_cpu:1,0", "mask_cpu:0x2,0x1", "mask_cpu:3,1"]
CPU_BINDINGS += ["map_cpu:0*2,1", "quiet,map_cpu:1", "verbose,threads"]


@pytest.mark.slurm
def test_cpu_binding_is_the_real_sruns(tmp_path: Path) -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs the CPUs 0 and 1")
    show = "cat /proc/self/status; env | grep CPU_BIND"

    def told(text: str) -> Dict[str, str]:
        pairs = (re.split("[:=]\\s*", line, maxsplit=1) for line in text.splitlines())
        return {k: v for k, v in pairs if "CPU_BIND" in k or k == "Cpus_allowed_list"}

    conf = ["TaskPlugin=task/affinity", "SelectTypeParameters=CR_CPU"]
    directory = Path(tempfile.mkdtemp(prefix="cpu"))
    try:
        with SlurmCluster([Node("n8", cpus=2)], directory, extra_conf=conf) as slurm:
            for binding in CPU_BINDINGS:
                command = ["-n2", "--cpu-bind", binding, "-o", f"{tmp_path}/%t"]
                slurm.run(["srun", *command, "sh", "-c", show])
                theirs = [told((tmp_path / rank).read_text()) for rank in ("0", "1")]
                done = run("run", *command, "--", "sh", "-c", show)
                assert [told((tmp_path / rank).read_text()) for rank in ("0", "1")] == theirs
                assert (binding.startswith("verbose")) == ("is bound to CPU" in done.stderr)
    except SlurmUnavailable as error:
        slurm_or_skip(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
