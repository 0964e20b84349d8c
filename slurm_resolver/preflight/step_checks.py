"""The checks of a step: everything that the tasks can find out before TensorFlow starts.

The tasks meet three times: when all have come, when all listen at their ports, and when all have
asked each other. The meeting point computes the results, and every task gets them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import socket
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.preflight.agreement import (
    COMPARED_FACTS,
    agreement_facts,
    find_disagreement,
    task_names,
    tensorflow_version,
)
from slurm_resolver.preflight.job_checks import check_job_settings
from slurm_resolver.preflight.keras_version import keras_problem
from slurm_resolver.preflight.result import FAILED, OK, SKIPPED, WARNING, Result, result_of
from slurm_resolver.rendezvous.barrier import Note, meet
from slurm_resolver.rendezvous.probe import (
    Listener,
    RankReply,
    ask_rank,
    measure_bandwidth,
    ranks_to_ask,
    unresolved_hosts,
)
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.step import SlurmStep

_BANDWIDTH_BYTES = 16 * 2**20
_MAX_NAMES = 256  # host names that each node resolves
_MAX_CLOCK_SECONDS = 1.0  # that two clocks may differ


def check_step(cluster: Cluster, timeout: float) -> List[Result]:
    """Runs all checks of a step. Every task must call it, and gets the same results.

    Raises:
        RendezvousError: where the tasks do not meet at all.
    """
    task, rendezvous = cluster.task, cluster.rendezvous
    assert task is not None
    assert rendezvous is not None
    names = task_names(cluster)

    def gather(purpose: str, note: Note, decide: Any = None) -> Dict[str, Any]:
        decide = decide or (lambda notes: {})
        return meet(rendezvous, f"check {purpose}", names, note, decide, timeout)

    note = {**agreement_facts(cluster), **_software_facts(), **_local_facts(cluster)}
    if len(cluster.tasks) > 1:
        gather("presence", {})
    listener = Listener(task.rank, int(task.address.rpartition(":")[2]))
    try:
        if len(cluster.tasks) > 1:
            gather("listening", {})
        note["port_taken"] = listener.problem
        note.update(_ask_peers(cluster))
        # Only one task asks: a thousand questions would be a burden to Slurm's controller.
        note["job_settings"] = check_job_settings(cluster.step) if task.rank == 0 else []
        if len(cluster.tasks) == 1:
            return _results({0: note}, cluster, names)
        answer = gather("results", note, lambda notes: {"results": _results(notes, cluster, names)})
    finally:
        listener.close()
    return [Result(*result) for result in answer["results"]]


def check_here() -> List[Result]:
    """Runs the checks that this machine can do alone, outside a step."""
    note = _software_facts()
    name = socket.gethostname()
    failed = unresolved_hosts([name])
    gpus = count_driver_gpus()
    return [
        Result("names", *((FAILED, f"{name}: {failed[name]}") if failed else (OK, name))),
        _check_tensorflow(tensorflow_version()),
        _check_keras({0: note}),
        _check_proxies({0: note}, ["this machine"]),
        Result(
            "gpus",
            SKIPPED if gpus is None else OK,
            "no NVIDIA driver can be asked (pip install nvidia-ml-py)"
            if gpus is None
            else f"the driver shows {gpus}",
        ),
        *check_job_settings(SlurmStep.read()),
        Result("step", SKIPPED, "start this command with srun to check a step's tasks together"),
    ]


def _software_facts() -> Note:
    keras_version = "0"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        keras_version = importlib.metadata.version("keras")
    uses_tf_keras = _variable("TF_USE_LEGACY_KERAS").lower() in ("1", "true")
    return {
        "keras": "" if uses_tf_keras or keras_version < "3" else keras_version,
        "proxies": [n for n in ("grpc_proxy", "https_proxy", "http_proxy") if _variable(n)],
        "no_proxy": bool(_variable("no_grpc_proxy") or _variable("no_proxy")),
    }


def _variable(name: str) -> str:
    """Returns a variable that may be written in lower or upper case; '' if not set."""
    return os.environ.get(name, "") or os.environ.get(name.upper(), "")


def _local_facts(cluster: Cluster) -> Note:
    assert cluster.task is not None
    task, gpus, step = cluster.task, cluster.gpus, cluster.step
    # In a cgroup each task's devices are numbered from 0; SLURM_STEP_GPUS has their real numbers.
    if gpus and step.step_gpus is not None and len(step.step_gpus.split(",")) == len(gpus):
        gpus = tuple(step.step_gpus.split(","))
    # Where Slurm's variables say that this task runs; it is compared with the cluster.
    local_rank = task.local_rank if step.local_rank is None else step.local_rank
    return {"devices": gpus, "place": [step.node_name or task.node, local_rank]}


def _ask_peers(cluster: Cluster) -> Note:
    assert cluster.task is not None
    task, tasks = cluster.task, cluster.tasks
    asked = ranks_to_ask(task.rank, len(tasks))
    # All at the same time: where packets are dropped, each question takes its full timeout.
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        answers = pool.map(lambda rank: ask_rank(tasks[rank].address, rank), asked)
        replies: Dict[int, RankReply] = dict(zip(asked, answers))
    neighbour = (task.rank + 1) % len(tasks)
    bytes_per_second = round_trip = None
    if neighbour in replies and replies[neighbour].problem is None:
        round_trip = ask_rank(tasks[neighbour].address, neighbour).seconds
        bytes_per_second = measure_bandwidth(tasks[neighbour].address, _BANDWIDTH_BYTES)
    hosts = list(dict.fromkeys(task.address.rpartition(":")[0] for task in tasks))
    stride = -(-len(hosts) // _MAX_NAMES)
    return {
        "unreached": {r: p.problem for r, p in replies.items() if p.problem is not None},
        "asked": len(replies),
        "round_trip": round_trip,
        "bytes_per_second": bytes_per_second,
        "clock": max(
            (p.clock_ahead for p in replies.values() if not p.problem), key=abs, default=0.0
        ),
        "unresolved_hosts": unresolved_hosts(hosts[::stride]) if task.local_rank == 0 else {},
    }


def _results(notes: Dict[int, Note], cluster: Cluster, names: Sequence[str]) -> List[Result]:
    tasks = cluster.tasks
    results = [Result("presence", OK, f"all {len(tasks)} tasks have come")]
    results.append(_check_layout(notes, cluster, names))
    results.append(_check_agreement(notes, names))
    unresolved = [
        f"{host} from {names[rank]}: {reason}"
        for rank, note in notes.items()
        for host, reason in note["unresolved_hosts"].items()
    ]
    hosts = len({task.node for task in tasks})
    results.append(result_of("names", unresolved, f"{hosts} host names resolve on every node"))
    taken = [f"{names[r]}: {n['port_taken']}" for r, n in notes.items() if n["port_taken"]]
    results.append(result_of("ports", taken, "every task can listen at its own port"))
    unreached = [
        f"{names[rank]} cannot reach {names[int(other)]} at {tasks[int(other)].address}: {problem}"
        for rank, note in notes.items()
        for other, problem in note["unreached"].items()
    ]
    asked = sum(note["asked"] for note in notes.values())
    results.append(result_of("reach", unreached, f"{asked} connections between the tasks"))
    results.append(_check_speed(notes))
    results.append(_check_gpus(notes, cluster))
    results.append(_check_tensorflow(notes[0]["tensorflow"]))
    results.append(_check_keras(notes))
    results.append(_check_proxies(notes, names))
    clock, rank = max((abs(note["clock"]), rank) for rank, note in notes.items())
    problems = []
    if clock > _MAX_CLOCK_SECONDS:
        problems.append(f"{names[rank]} sees a clock that is {clock:.1f} s off")
    results.append(result_of("clocks", problems, f"within {clock * 1000:.0f} ms", WARNING))
    return results + [Result(*result) for result in notes[0]["job_settings"]]


def _check_layout(notes: Dict[int, Note], cluster: Cluster, names: Sequence[str]) -> Result:
    wrong = []
    for rank, note in notes.items():
        task = cluster.tasks[rank]
        if note["place"] != [task.node, task.local_rank]:
            place = f"{note['place'][0]}, local rank {note['place'][1]}"
            wrong.append(f"{names[rank]} really runs on {place}")
    return result_of("layout", wrong, f"{cluster.distribution}, from {cluster.layout_source}")


def _check_agreement(notes: Dict[int, Note], names: Sequence[str]) -> Result:
    for key, what in COMPARED_FACTS:
        difference = find_disagreement(notes, key, names)
        if difference:
            return Result("agreement", FAILED, f"the tasks disagree on {what}: {difference}")
    return Result("agreement", OK, "same cluster, same versions in every task")


def _check_speed(notes: Dict[int, Note]) -> Result:
    trips = [note["round_trip"] for note in notes.values() if note["round_trip"] is not None]
    rates = [
        (note["bytes_per_second"], rank)
        for rank, note in notes.items()
        if note["bytes_per_second"] is not None
    ]
    if not trips or not rates:
        return Result("speed", SKIPPED, "no connection to another task could be measured")
    slowest, rank = min(rates)
    return Result(
        "speed",
        OK,
        f"round trip {statistics.median(trips) * 1e6:.0f} µs; between neighbours "
        f"{statistics.median(rate for rate, _ in rates) / 1e6:.0f} MB/s, the slowest "
        f"{slowest / 1e6:.0f} MB/s from rank {rank}",
    )


def _check_gpus(notes: Dict[int, Note], cluster: Cluster) -> Result:
    ranks_by_gpu: Dict[Tuple[str, str], List[int]] = {}
    for rank, note in notes.items():
        for device in note["devices"] or ():
            ranks_by_gpu.setdefault((cluster.tasks[rank].node, device), []).append(rank)
    shared = [
        f"GPU {device} of {node} is used by the ranks {', '.join(map(str, ranks))}"
        for (node, device), ranks in ranks_by_gpu.items()
        if len(ranks) > 1
    ]
    if not ranks_by_gpu:
        return Result("gpus", SKIPPED, "no task has any, as far as the environment tells")
    return result_of("gpus", shared, f"{len(ranks_by_gpu)}, each used by one task", WARNING)


def _check_tensorflow(version: Optional[str]) -> Result:
    if version is None:
        return Result(
            "tensorflow", FAILED, "not installed: pip install 'slurm_resolver[tensorflow]'"
        )
    return Result("tensorflow", OK, version)


def _check_keras(notes: Dict[int, Note]) -> Result:
    versions = sorted({note["keras"] for note in notes.values() if note["keras"]})
    problems = [keras_problem(version) for version in versions if keras_problem(version)]
    uses = "fit() can be used"
    if versions:
        uses = (
            f"Keras {', '.join(versions)}: fit() under slurm_resolver.MultiWorkerMirroredStrategy; "
            "for parameter servers tf_keras, or a loop of your own"
        )
    return result_of("keras", problems[:1], uses, WARNING)


def _check_proxies(notes: Dict[int, Note], names: Sequence[str]) -> Result:
    problems = [
        f"{names[rank]}: {', '.join(note['proxies'])} set, which gRPC would use between the tasks; "
        "unset them, or name the nodes in no_proxy"
        for rank, note in notes.items()
        if note["proxies"] and not note["no_proxy"]
    ]
    return result_of("proxies", problems[:1], "none that gRPC would use", WARNING)
