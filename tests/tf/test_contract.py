"""The resolver keeps the contract of TensorFlow's SlurmClusterResolver on every TensorFlow."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from captured import Logged, Patch
from kinds import Strings
from local_run import captured, in_step

import slurm_resolver as sr
from slurm_resolver import SlurmClusterResolver
from slurm_resolver.cluster.options import ClusterOptions


def as_dict(resolver: Any) -> dict[str, Strings]:
    return dict(resolver.cluster_spec().as_dict())


def test_the_options_are_those_of_the_resolver() -> None:
    of_tensorflow = {"auto_set_gpu", "rpc_layer"}  # not of the cluster
    inside = {"until"}  # no caller of the package sets it
    arguments = set(inspect.signature(SlurmClusterResolver).parameters)
    assert set(ClusterOptions._fields) - inside == arguments - of_tensorflow


def test_print_shows_the_cluster(slurm: Any) -> None:
    slurm(1, "1(x3)", 3, CUDA_VISIBLE_DEVICES="0")
    resolver = SlurmClusterResolver(local=False)
    assert isinstance(resolver, tf.distribute.cluster_resolver.ClusterResolver)
    # TensorFlow would take these attributes for a port to bind and a TPU
    assert not hasattr(resolver, "port")
    assert not hasattr(resolver, "tpu_hardware_feature")
    assert str(resolver) == str(resolver.cluster)
    assert "t02n41     1      0  worker 1  t02n41:8888  (this task)" in str(resolver)
    line = "rank 1 of 3 is worker 1 on t02n41, port 8888, GPUs 0"
    assert repr(resolver) == f"<SlurmClusterResolver: {line}>"


def test_the_log_has_one_line_a_task_and_none_unless_asked(slurm: Any) -> None:
    slurm(1, "1(x3)", 3, CUDA_VISIBLE_DEVICES="0")
    make = "import slurm_resolver as sr; sr.SlurmClusterResolver(); sr.SlurmClusterResolver()"
    logged = {}
    for level in ("INFO", "WARNING"):
        logged[level] = re.findall(
            r".*slurm_resolver:.*",
            captured(
                [
                    sys.executable,
                    "-c",
                    f"import logging; logging.basicConfig(level=logging.{level}); {make}",
                ],
                status=0,
            ).stderr,
        )
    line = "rank 1 of 3 is worker 1 on t02n41, port 8888, GPUs 0"
    assert logged == {"INFO": [f"INFO:slurm_resolver:{line}"], "WARNING": []}


@pytest.mark.parametrize(
    "tasks_per_node",
    [
        1,
        {
            "t02n13": 1,
            "t02n41": 1,
            "t02n43": 1,
        },
    ],
)
def test_all_arguments_positionally(slurm: Any, tasks_per_node: Any) -> None:
    slurm(2, None, 3)
    resolver = SlurmClusterResolver(
        {"ps": 1, "worker": 2},
        2222,
        4,
        2,
        tasks_per_node,
        False,
        "grpc+verbs",
    )
    assert as_dict(resolver) == {"ps": ["t02n13:2222"], "worker": ["t02n41:2222", "t02n43:2222"]}
    assert resolver.master() == "grpc+verbs://t02n43:2222"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert resolver.num_accelerators() == {"GPU": 2}


def test_master_follows_the_settable_attributes(slurm: Any) -> None:
    slurm(0, "1(x3)", 3)
    resolver = SlurmClusterResolver({"ps": 1, "worker": 2})
    # known before the first call of cluster_spec()
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)
    assert resolver.master() == "grpc://t02n13:8888"
    resolver.task_type = "worker"
    resolver.task_id = 1
    assert resolver.get_task_info() == ("worker", 1)
    assert resolver.master() == "grpc://t02n43:8888"
    resolver.rpc_layer = "ab"
    assert resolver.rpc_layer == "ab"
    assert resolver.master("ps", 0) == "ab://t02n13:8888"
    assert resolver.master("ps", 0, rpc_layer="test") == "test://t02n13:8888"
    resolver.rpc_layer = None
    assert resolver.master("ps", 0) == "t02n13:8888"


@pytest.mark.parametrize(
    ("visible", "auto", "after", "count"),
    [
        ("4,5", True, "5", 1),
        ("4,5", False, "4,5", 2),
        ("NoDevFiles", True, "NoDevFiles", 0),
        ("MIG-a,MIG-b,MIG-c,MIG-d", False, "MIG-a,MIG-b,MIG-c,MIG-d", 1),  # CUDA shows only one
    ],
)
def test_num_accelerators_is_what_this_process_will_see(
    slurm: Any, visible: str, auto: bool, after: str, count: int
) -> None:
    slurm(1, "2(x2),1", 5, CUDA_VISIBLE_DEVICES=visible)
    resolver = SlurmClusterResolver(auto_set_gpu=auto)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == after
    assert resolver.num_accelerators() == ({"GPU": count} if count else {})


@pytest.fixture
def has_gpus(monkeypatch: Patch) -> Any:
    """Makes TensorFlow report GPUs, because this machine may have none."""
    from tensorflow.python.eager import context

    def has(looked: bool, visible: int = 4, count: int = 4) -> None:
        gpus = [f"/physical_device:GPU:{i}" for i in range(count)]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus[:visible])
        monkeypatch.setattr(context.context(), "_physical_devices", gpus if looked else None)

    return has


def test_devices_that_tensorflow_has_seen_already_are_warned_of(
    slurm: Any, has_gpus: Any, monkeypatch: Patch, caplog: Logged
) -> None:
    slurm(1, "2(x2),1", 5, CUDA_VISIBLE_DEVICES="0,1,2,3")
    has_gpus(looked=False)
    assert SlurmClusterResolver(gpu_jobs=["worker"]).num_accelerators() == {"GPU": 2}
    assert caplog.text == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    has_gpus(looked=True)
    resolver = SlurmClusterResolver()
    assert "CUDA_VISIBLE_DEVICES=2,3 comes too late" in caplog.text
    assert resolver.gpus == ("2", "3")
    assert resolver.num_accelerators() == {"GPU": 4}  # the GPUs that the process really sees


def test_gpus_that_the_program_has_hidden_do_not_count(
    slurm: Any, has_gpus: Any, caplog: Logged
) -> None:
    """A program that selects its GPUs itself by SLURM_LOCALID gets no warning."""
    slurm(1, "2(x2),1", 5, CUDA_VISIBLE_DEVICES="0,1,2,3")
    has_gpus(looked=True, visible=3)
    assert SlurmClusterResolver().num_accelerators() == {"GPU": 3}
    assert caplog.text == ""


def test_ranks_keep_tensorflows_indices_where_that_is_asked_for(slurm: Any) -> None:
    """By default, twelve workers on two nodes are numbered for the ring."""
    slurm(0, "6(x2)", 12, SLURM_STEP_NODELIST="t02n[13,41]")
    expected = (
        tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=6, gpus_per_task=1, auto_set_gpu=False
        )
        .cluster_spec()
        .as_dict()
    )
    assert as_dict(SlurmClusterResolver(worker_order="rank")) == expected
    by_ring = as_dict(SlurmClusterResolver())["worker"]
    assert sorted(by_ring) == sorted(expected["worker"])
    assert [by_ring[i][:6] for i in (0, 1, 10, 11, 2, 3)] == ["t02n13"] * 6


def test_the_evaluator_is_outside_the_spec_and_has_a_master(slurm: Any) -> None:
    slurm(1, "1(x3)", 3)
    resolver = SlurmClusterResolver(
        {
            "chief": 1,
            "evaluator": 1,
            "worker": 1,
        }
    )
    assert list(as_dict(resolver)) == ["chief", "worker"]
    assert resolver.get_task_info() == ("evaluator", 0)
    assert resolver.master() == "grpc://t02n41:8888"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_STEP_NODELIST", "n[1-2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(3)"),
        ("SLURM_PROCID", "first"),
    ],
)
def test_a_bad_variable_is_a_value_error_and_a_runtime_error(
    slurm: Any, monkeypatch: Patch, name: str, value: str
) -> None:
    """TensorFlow's resolver raises ValueError; except clauses for both types keep working."""
    slurm(0, "1(x3)", 3)
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="nvalid"):
        tf.distribute.cluster_resolver.SlurmClusterResolver(gpus_per_node=1)
    for kind in (ValueError, RuntimeError, sr.UnreadableValueError):
        with pytest.raises(kind, match=name):
            SlurmClusterResolver()


@pytest.mark.parametrize(
    ("tasks_per_node", "message"),
    [
        (0, "tasks_per_node has . counts and 0 tasks, .* 1 or more"),
        (2, "has 3 nodes .* tasks_per_node has 3 counts and 6 tasks, .*NUM_TASKS=3"),
        *(
            (value, f"tasks_per_node={value!r}: expected a whole number of tasks")
            for value in ({}, "2", {"t02n13": "2"})
        ),
    ],
)
def test_tasks_per_node_that_makes_no_sense(slurm: Any, tasks_per_node: Any, message: str) -> None:
    slurm(0, None, 3)
    with pytest.raises(sr.LayoutError, match=message):
        SlurmClusterResolver(tasks_per_node=tasks_per_node)


def test_private_methods_of_tensorflows_resolver_are_refused(slurm: Any) -> None:
    class Ranked(SlurmClusterResolver):
        def _resolve_own_rank(self) -> int:
            return 1

    slurm(1, "1(x3)", 3)
    with pytest.raises(sr.LayoutError, match="Ranked has _resolve_own_rank, which only"):
        Ranked()


def test_without_slurm_tensorflow_trains_locally() -> None:
    assert tf.distribute.MultiWorkerMirroredStrategy(
        cluster_resolver=SlurmClusterResolver()
    ).num_replicas_in_sync == max(1, len(tf.config.list_physical_devices("GPU")))


def test_switched_off_it_trains_alone_wherever_it_is(slurm: Any, monkeypatch: Patch) -> None:
    outside = SlurmClusterResolver()
    slurm(1, "1(x3)", 3)
    for resolver in (
        outside,
        SlurmClusterResolver({"ps": 1, "worker": 2}, local=True),
    ):
        assert as_dict(resolver) == {}
        assert (resolver.get_task_info(), resolver.master()) == ((None, None), "")
    monkeypatch.setenv("SLURM_RESOLVER", "off")
    assert as_dict(SlurmClusterResolver(tasks_per_node=1)) == {}
    monkeypatch.setenv("SLURM_RESOLVER", "on")
    assert len(as_dict(SlurmClusterResolver())["worker"]) == 3


def test_switched_off_a_strategy_trains_alone_in_a_step() -> None:
    program = "import slurm_resolver as sr; print(sr.MultiWorkerMirroredStrategy().workers.names)"
    environ = {**os.environ, "SLURM_RESOLVER": "off"}
    command = in_step("-n2 --no-label", sys.executable, "-c", program)
    assert captured(command, status=0, env=environ).stdout == "[]\n[]\n"


def test_a_cluster_with_parameter_servers_has_no_mirrored_strategy(slurm: Any) -> None:
    slurm(1, "1(x3)", 3)
    with pytest.raises(sr.JobsError, match=r"MultiWorkerMirroredStrategy .* with the job ps"):
        sr.MultiWorkerMirroredStrategy(SlurmClusterResolver({"ps": 1, "worker": -1}))


def test_a_model_of_keras_2_is_refused_in_its_fit(tmp_path: Path) -> None:
    """The Keras inside the oldest TensorFlow, and tf_keras."""
    keras = pytest.importorskip("keras" if tf.__version__.startswith("2.15.") else "tf_keras")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse")
    backup = sr.BackupAndResume(str(tmp_path))
    with pytest.raises(
        sr.ResumeError,
        match=r"fit of \S*keras\S*\.Sequential; expected a model of Keras 3. .*ResumableLoop in",
    ):
        model.fit(
            tf.zeros([2, 1]),
            tf.zeros([2, 1]),
            callbacks=[backup],
            verbose=0,
        )
