"""The GPUs that a task takes, and the variables that it sets if it shares a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Optional
from unittest import mock

import pytest
from captured import Logged, Patch
from hypothesis import given
from hypothesis import strategies as st
from kinds import Counts, Fields, Strings, Texts
from recorded_steps import Recording, recordings
from task_variables import TASK

import slurm_resolver as sr
from slurm_resolver.cluster import task_gpus
from slurm_resolver.cluster.options import ClusterOptions
from slurm_resolver.cluster.task_gpus import (
    TaskGpus,
    apply_gpus,
    gpus_on_node,
)
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.slurm.variable_types import parse_gpu_binding

Devices = Optional[tuple[str, ...]]


def on_node(
    step: SlurmStep,
    local_rank: int,
    tasks: int,
    *explicit: int | None,
    users: Sequence[int] | None = None,
) -> TaskGpus:
    """Returns the GPUs of a task on a node with this many tasks, of which `users` use GPUs."""
    per_node, per_task = (*explicit, None, None)[:2]
    options = ClusterOptions(gpus_per_node=per_node, gpus_per_task=per_task)
    return gpus_on_node(
        step,
        local_rank,
        users or range(tasks),
        options,
    )


def decide(
    visible: str | None,
    local_rank: int = 0,
    tasks: int = 1,
    *explicit: int | None,
    users: Sequence[int] | None = None,
    allow_growth: str | None = None,
    **more: Any,
) -> TaskGpus:
    """Returns the GPUs of a task that sees these devices, with other values of its step."""
    return on_node(
        SlurmStep(
            rank=local_rank,
            cuda_devices=visible,
            allow_growth=allow_growth,
            **more,
        ),
        local_rank,
        tasks,
        *explicit,
        users=users,
    )


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: Patch) -> None:
    monkeypatch.setattr(task_gpus, "count_driver_gpus", lambda: None)


@pytest.mark.parametrize(
    ("visible", "local_rank", "tasks", "more", "devices"),
    [
        (None, 0, 1, {}, None),
        ("-1", 0, 1, {}, ()),
        ("0,-1,1", 0, 1, {}, ("0",)),  # CUDA stops at the first invalid device
        (
            "4,5",
            0,
            1,
            {"gpus_on_node": 2},
            ("4", "5"),
        ),  # the only task of a node
        (
            "4,5",
            1,
            2,
            {"gpus_on_node": 2},
            ("5",),
        ),
        (
            "1",
            1,
            2,
            {"gpus_on_node": 2},
            ("1",),
        ),  # bound by Slurm
        # srun passes on the variables of a batch script, even to nodes without GPUs
        (
            "0,1",
            0,
            1,
            {"het_size": 2, "job_gpus": "0,1"},
            (),
        ),
        (
            "0,1",
            0,
            1,
            {
                "het_size": 2,
                "job_gpus": "0,1",
                "gpus_on_node": 2,
            },
            ("0", "1"),
        ),
        (
            "0,1",
            0,
            1,
            {"het_size": 2},
            ("0", "1"),
        ),  # Slurm manages no GPUs
        # bindings that srun was told are kept
        (
            "0,1",
            1,
            2,
            {"gpus_on_node": 2, "gpu_binding": parse_gpu_binding("gpu:mask_gpu:0x3,0xf")},
            ("0", "1"),
        ),
        (
            "0,1",
            1,
            2,
            {"gpus_on_node": 2, "gpu_binding": parse_gpu_binding("gpu:closest")},
            ("1",),
        ),
    ],
)
def test_what_slurm_granted(
    visible: str | None,
    local_rank: int,
    tasks: int,
    more: Fields,
    devices: Devices,
) -> None:
    gpus = decide(
        visible,
        local_rank,
        tasks,
        **more,
    )
    assert gpus.devices == devices
    if devices == ():
        assert gpus.settings.get("CUDA_VISIBLE_DEVICES", visible) in ("", "-1")


@pytest.mark.parametrize(
    ("visible", "step_gpus", "told"),  # what the second of four tasks sees
    [
        ("0", "0,1,2,3", "something sets CUDA_VISIBLE_DEVICES"),
        ("0,1,2,3", "1", "something sets CUDA_VISIBLE_DEVICES"),
        (
            None,
            "2",
            "_STEP_GPUS=2, but CUDA_VISIBLE_DEVICES is not set: this task .* Keep what srun",
        ),
        (
            "-1",
            None,
            "SLURM_GPUS_ON_NODE=4 .* CUDA_VISIBLE_DEVICES=: this .* start with srun --gpus-per-",
        ),
        ("0,1,2,3", "0,1,2,3", ""),
        ("1", "0,1,2,3", ""),
        ("0", "2", ""),
        ("GPU-3", "2", ""),
    ],
)
def test_a_variable_that_slurm_has_not_set(
    visible: str | None, step_gpus: str | None, told: str, caplog: Logged
) -> None:
    conflict = decide(
        visible,
        1,
        4,
        step_gpus=step_gpus,
        gpus_on_node=4,
    ).conflict
    assert bool(conflict) == bool(told)
    assert re.search(told, conflict)
    assert conflict in caplog.text


@pytest.mark.parametrize(
    ("visible", "explicit", "devices"),
    [
        (
            None,
            (4, 2),
            ("2", "3"),
        ),
        (
            None,
            (4, None),
            ("2", "3"),
        ),
        ("4,5", (None, 1), ("5",)),
        ("4,5", (2, 0), ()),
        ("1", (2, 1), ("1",)),  # bound by Slurm
    ],
)
def test_explicit_counts_as_tensorflow(
    visible: str | None, explicit: tuple[int, int], devices: Devices
) -> None:
    assert (
        decide(
            visible,
            1,
            2,
            *explicit,
        ).devices
        == devices
    )


def test_a_variable_that_slurm_has_not_set_is_told_beside_explicit_counts() -> None:
    gpus = decide("0", 1, 2, None, 1, step_gpus="0,1", gpus_on_node=2)
    assert "SLURM_STEP_GPUS=0,1: something sets CUDA_VISIBLE_DEVICES" in gpus.conflict
    assert gpus.source == "CUDA_VISIBLE_DEVICES, which Slurm did not set this way"


@pytest.mark.parametrize(
    ("visible", "tasks", "source"),
    [
        (None, 1, "CUDA_VISIBLE_DEVICES is not set"),
        ("", 1, "CUDA_VISIBLE_DEVICES shows none"),
        ("4,5", 1, "CUDA_VISIBLE_DEVICES, the only task on the node that uses GPUs"),
        ("4,5", 2, "CUDA_VISIBLE_DEVICES split by SLURM_LOCALID"),
    ],
)
def test_the_source_of_the_gpus(visible: str | None, tasks: int, source: str) -> None:
    assert decide(visible, 0, tasks).source == source


@pytest.mark.parametrize(
    ("visible", "explicit", "on_node", "message"),
    [
        (
            None,
            (2, 2),
            None,
            "gpus_per_node=2 and gpus_per_task=2 do not fit: .* 2 tasks of this",
        ),
        ("0,1", (8, 4), None, "CUDA_VISIBLE_DEVICES=0,1, and 2 tasks"),
        ("0,1", (8, 4), 2, "gpus_per_node=8 .* do not fit: SLURM_GPUS_ON_NODE=2"),
        *(
            ("0,1", explicit, None, f"={explicit[0]!r} and .*={explicit[1]!r} do not.* Give whole")
            for explicit in ((-1, None), ("2", None), (True, None), (None, 1.0))
        ),
        ("0,1,2", (), 2, "CUDA_VISIBLE_DEVICES=0,1,2 shows 3 GPUs, but SLURM_GPUS_ON_NODE=2"),
        ("0,,1", (), None, "CUDA_VISIBLE_DEVICES='0,,1': '' is not a device"),
        ("0,1,0", (), None, "'0' is not a device, or named twice"),
    ],
)
def test_bad_input(
    visible: str | None,
    explicit: tuple[Any, ...],
    on_node: int | None,
    message: str,
) -> None:
    with pytest.raises(sr.GpuError, match=message):
        decide(
            visible,
            0,
            2,
            *explicit,
            gpus_on_node=on_node,
        )


@given(st.integers(1, 16), st.integers(1, 20), st.data())
def test_a_split_uses_every_device_evenly_among_those_who_use_any(
    number: int, tasks: int, data: st.DataObject
) -> None:
    users = sorted(data.draw(st.sets(st.integers(0, tasks - 1), min_size=1), label="users"))
    granted = [f"GPU-{i}" for i in range(number)]
    names = ",".join(granted)
    parts = [
        decide(
            names,
            i,
            tasks,
            users=users,
        ).devices
        for i in range(tasks)
    ]
    for local_rank, part in enumerate(parts):
        assert (part == ()) == (local_rank not in users)
    taken = [part or () for local_rank, part in enumerate(parts) if local_rank in users]
    assert {device for part in taken for device in part} == set(granted)
    sizes = [len(part) for part in taken]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    if len(users) <= number:
        assert [device for part in taken for device in part] == granted  # disjoint, in order


@pytest.mark.parametrize(
    ("visible", "tasks", "told"),
    [
        ("0,1,2", 2, "2 tasks share the node's 3 GPUs; start one for each GPU: TensorFlow's st"),
        ("0", 2, "2 tasks share the node's 1 GPU; start one for each GPU"),
        ("0,1,2,3", 2, ""),
        ("0,1,2", 1, ""),
    ],
)
def test_unequal_shares_are_told(visible: str, tasks: int, told: str, caplog: Logged) -> None:
    decide(visible, 0, tasks)
    assert told in caplog.text
    assert bool(told) == bool(caplog.text)


CUDA = "CUDA_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"


@pytest.mark.parametrize("names", [[CUDA], [ROCR], [CUDA, ROCR]])
@pytest.mark.parametrize(
    "explicit",
    [
        (),
        (4, 2),
    ],
)
def test_every_variable_that_slurm_sets_is_narrowed_once(
    names: Strings, explicit: tuple[int, ...]
) -> None:
    environ = {"SLURM_PROCID": "1", **dict.fromkeys(names, "4,5,6,7")}
    for _ in range(3):  # also in a second resolver or a child process
        step = SlurmStep.read(environ)
        gpus = on_node(
            step,
            1,
            2,
            *explicit,
        )
        apply_gpus(gpus, step, environ)
        assert gpus.devices == ("6", "7")
        assert {environ[name] for name in names} == {"6,7"}


def test_the_mark_of_another_task_counts_for_nothing() -> None:
    environ = {"SLURM_PROCID": "0", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    step = SlurmStep.read(environ)
    apply_gpus(on_node(step, 0, 2), step, environ)
    environ["SLURM_PROCID"] = "1"  # a step started from that task
    assert on_node(SlurmStep.read(environ), 1, 2).devices == ("5",)


def test_without_variables_the_driver_is_asked(monkeypatch: Patch) -> None:
    monkeypatch.setattr(task_gpus, "count_driver_gpus", lambda: 4)
    assert [decide(None, i, 2).devices for i in range(2)] == [("0", "1"), ("2", "3")]
    assert decide(None, 1, 2).settings == {"CUDA_VISIBLE_DEVICES": "2,3"}
    alone = decide(None, 0, 1)
    assert (alone.devices, alone.settings) == (
        ("0", "1", "2", "3"),
        {CUDA: "0,1,2,3"},
    )
    # as 22.05 with --gpu-bind=none, if all of the driver's GPUs are granted
    assert decide(None, 1, 2, gpus_on_node=4).devices == ("2", "3")


def test_a_grant_without_names_is_left_alone_and_told(monkeypatch: Patch, caplog: Logged) -> None:
    monkeypatch.setattr(task_gpus, "count_driver_gpus", lambda: 8)
    gpus = decide(None, 1, 2, gpus_on_node=2)
    assert (gpus.devices, gpus.settings) == (None, {})
    assert "SLURM_STEP_GPUS=, but CUDA_VISIBLE_DEVICES is not set: this task" in caplog.text


@pytest.mark.parametrize(
    ("has_driver", "number"),
    [
        (True, 3),
        (False, None),
    ],
)
def test_the_driver_is_asked_through_its_library(
    monkeypatch: Patch, has_driver: bool, number: int | None
) -> None:
    """A stand-in replaces nvidia-ml-py, because this machine may have no GPU."""
    library = mock.Mock(NVMLError=KeyError)
    library.nvmlDeviceGetCount.return_value = 3
    library.nvmlInit.side_effect = None if has_driver else KeyError
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert count_driver_gpus() == number


@pytest.mark.parametrize(
    ("jobs", "gpu_jobs", "without"),
    [
        ({"chief": 1, "worker": 3}, None, set()),
        ({"chief": 1, "worker": 2, "ps": 1}, None, {"ps", "chief"}),
        ({"worker": 4}, [], {"worker"}),
        ({"worker": 3, "ps": 1}, ["evaluator", "worker"], {"ps"}),  # evaluator has no task
    ],
)
def test_which_jobs_use_no_gpu(jobs: Counts, gpu_jobs: Any, without: Any) -> None:
    clusters = [
        sr.resolve(jobs, gpu_jobs=gpu_jobs, environ={**TASK, "SLURM_PROCID": str(rank)})
        for rank in range(4)
    ]
    assert {c.task.job for c in clusters if c.task and c.gpus == ()} == without


WITH_GPUS = [
    r
    for r in recordings()
    if r.is_step and any("CUDA_VISIBLE_DEVICES" in t or "SLURM_GPUS_ON_NODE" in t for t in r.tasks)
]


@pytest.mark.parametrize("recording", WITH_GPUS, ids=lambda recording: recording.name)
def test_the_recorded_tasks_of_a_node_share_what_slurm_shows_them(recording: Recording) -> None:
    """Each node uses all granted GPUs, and tasks share a GPU only if they must."""
    nodes: dict[str, list[Texts]] = {}
    for task in recording.tasks:
        nodes.setdefault(task["SLURMD_NODENAME"], []).append(task)
    for tasks in nodes.values():
        shown = {task.get("CUDA_VISIBLE_DEVICES") for task in tasks}
        found = [
            on_node(SlurmStep.read(task), int(task["SLURM_LOCALID"]), len(tasks)).devices
            for task in tasks
        ]
        if None in shown:  # unset before 26.05 with --gpu-bind=none, or without a grant
            assert shown == {None}
            assert found == [None] * len(tasks)
            continue
        for task, gpus in zip(tasks, found):
            assert gpus
            assert set(gpus) <= set(task["CUDA_VISIBLE_DEVICES"].split(","))
            if re.search("single|per_task|map|mask", task.get("SLURMD_TRES_BIND", "")):
                assert gpus == tuple(task["CUDA_VISIBLE_DEVICES"].split(","))
        taken = [device for gpus in found for device in gpus or ()]
        granted = {device for value in shown for device in (value or "").split(",")}
        assert set(taken) == granted
        if len(shown) == 1 and len(granted) >= len(tasks) and "map" not in recording.command:
            assert len(taken) == len(granted)


# The devices shown to the tasks of a node, further options, the devices that each task takes, and
# whether slices stay unused.
FOUR = "MIG-a,MIG-b,MIG-c,MIG-d"
SLICES: dict[str, tuple[str, Fields, list[tuple[str, ...]], bool]] = {
    "one each": (
        "MIG-a,MIG-b",
        {},
        [("MIG-a",), ("MIG-b",)],
        False,
    ),
    "two each": (
        FOUR,
        {},
        [("MIG-a",), ("MIG-c",)],
        True,
    ),
    "beside whole GPUs": (
        "GPU-1,MIG-a,GPU-2",
        {},
        [("GPU-1", "GPU-2")],
        True,
    ),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_process_uses_one_slice(name: str, caplog: Logged) -> None:
    visible, more, taken, unused = SLICES[name]
    gpus = [
        decide(
            visible,
            rank,
            len(taken),
            **more,
        )
        for rank in range(len(taken))
    ]
    assert [one.devices for one in gpus] == taken
    assert ("several MIG slices each" in caplog.text) == unused
    for one in gpus:
        environ = {"CUDA_VISIBLE_DEVICES": visible}
        apply_gpus(one, SlurmStep(rank=0), environ)
        assert environ["CUDA_VISIBLE_DEVICES"] == ",".join(one.devices or ())


# The devices shown to the tasks of a node, which tasks share their GPU, and further options.
MEMORY: dict[str, tuple[str, Sequence[bool], Fields]] = {
    "one each": ("0,1", [False, False], {}),
    "two on one": ("0", [True, True], {}),
    "three on two": ("0,1", [True, True, True], {}),
    "one of two uses it": (
        "0",
        [False, False],
        {"users": [1]},
    ),
    "closest, possibly shared with another task": (
        "0,1",
        [True, True],
        {"gpu_binding": parse_gpu_binding("gpu:closest"), "gpus_on_node": 4},
    ),
    "two per GPU, bound": (
        "1",
        [True, True, True, True],
        {"gpu_binding": parse_gpu_binding("gpu:single:2")},
    ),
    "the user wants all of the memory": ("0", [False, False], {"allow_growth": "false"}),
    "shards, as Slurm shares a GPU among jobs": ("0", [True], {"shards_on_node": "2"}),
}


@pytest.mark.parametrize("name", MEMORY)
def test_tasks_that_share_a_gpu_take_the_memory_that_they_need(name: str, caplog: Logged) -> None:
    visible, shares, more = MEMORY[name]
    for rank, growth in enumerate(shares):
        gpus = decide(
            visible,
            rank,
            len(shares),
            **more,
        )
        environ: Texts = {}
        apply_gpus(gpus, SlurmStep(rank=rank), environ)
        assert environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == ("true" if growth else None), rank
    assert ("TF_FORCE_GPU_ALLOW_GROWTH=true is set, as" in caplog.text) == any(shares)
