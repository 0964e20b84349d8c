"""The preflight of a step: everything that tasks can find out before TensorFlow starts.

Three meetings: all are there; all listen at their own ports; all have asked their peers. The
meeting point judges, and every task gets the results.
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
    COMPARED,
    agreement_facts,
    disagreement,
    task_names,
    tensorflow_version,
)
from slurm_resolver.preflight.job_checks import check_job_settings
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
_MOST_NAMES = 256
_CLOCK_SECONDS = 1.0


def check_step(cluster: Cluster, timeout: float) -> List[Result]:
    """Runs all checks of a step; every task must call it, and gets the same results.

    Raises:
        RendezvousError: where the tasks do not meet at all.
    """
    own, rendezvous = cluster.task, cluster.rendezvous
    assert own is not None
    assert rendezvous is not None
    names = task_names(cluster)

    def gather(purpose: str, note: Note, decide: Any = None) -> Dict[str, Any]:
        decide = decide or (lambda notes: {})
        return meet(rendezvous, f"check {purpose}", names, note, decide, timeout)

    note = {**agreement_facts(cluster), **_software_facts(), **_local_facts(cluster)}
    if len(cluster.tasks) > 1:
        gather("presence", {})
    listener = Listener(own.rank, int(own.address.rpartition(":")[2]))
    try:
        if len(cluster.tasks) > 1:
            gather("listening", {})
        note["port_taken"] = listener.problem
        note.update(_ask_peers(cluster))
        # One asks for all: a thousand tasks would be a burden to Slurm's controller.
        note["job_settings"] = check_job_settings(cluster.step) if own.rank == 0 else []
        if len(cluster.tasks) == 1:
            return _results({0: note}, cluster, names)
        answer = gather("results", note, lambda notes: {"results": _results(notes, cluster, names)})
    finally:
        listener.close()
    return [Result(*result) for result in answer["results"]]


def check_here() -> List[Result]:
    """Runs the checks that one machine can do without a step."""
    note = _software_facts()
    name = socket.gethostname()
    failed = unresolved_hosts([name])
    driver = count_driver_gpus()
    return [
        Result("names", *((FAILED, f"{name}: {failed[name]}") if failed else (OK, name))),
        _tensorflow(tensorflow_version()),
        _keras({0: note}, ["this machine"]),
        _proxies({0: note}, ["this machine"]),
        Result(
            "gpus",
            SKIPPED if driver is None else OK,
            "no NVIDIA driver can be asked (pip install nvidia-ml-py)"
            if driver is None
            else f"the driver shows {driver}",
        ),
        *check_job_settings(SlurmStep.read()),
        Result("step", SKIPPED, "start this command with srun to check a step's tasks together"),
    ]


def _software_facts() -> Note:
    keras = "0"
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        keras = importlib.metadata.version("keras")
    legacy = _setting("TF_USE_LEGACY_KERAS").lower() in ("1", "true")
    return {
        "keras3": int(keras.partition(".")[0]) >= 3 and not legacy,
        "proxies": [n for n in ("grpc_proxy", "https_proxy", "http_proxy") if _setting(n)],
        "no_proxy": bool(_setting("no_grpc_proxy") or _setting("no_proxy")),
    }


def _setting(name: str) -> str:
    return os.environ.get(name, "") or os.environ.get(name.upper(), "")


def _local_facts(cluster: Cluster) -> Note:
    assert cluster.task is not None
    own, gpus, step = cluster.task, cluster.gpus, cluster.step
    # A cgroup numbers each task's devices from 0; then only the step's own numbers tell them apart.
    if gpus and step.step_gpus is not None and len(step.step_gpus.split(",")) == len(gpus):
        gpus = tuple(step.step_gpus.split(","))
    # Slurm's word for this task's place, not the cluster's: the two are to be compared.
    local_rank = own.local_rank if step.local_rank is None else step.local_rank
    return {"devices": gpus, "place": [step.node_name or own.node, local_rank]}


def _ask_peers(cluster: Cluster) -> Note:
    assert cluster.task is not None
    own, tasks = cluster.task, cluster.tasks
    asked = ranks_to_ask(own.rank, len(tasks))
    # All at once: where packets are dropped, each takes its full time.
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        found = pool.map(lambda rank: ask_rank(tasks[rank].address, rank), asked)
        answers: Dict[int, RankReply] = dict(zip(asked, found))
    neighbour = (own.rank + 1) % len(tasks)
    rate = trip = None
    if neighbour in answers and answers[neighbour].problem is None:
        trip = ask_rank(tasks[neighbour].address, neighbour).seconds
        rate = measure_bandwidth(tasks[neighbour].address, _BANDWIDTH_BYTES)
    hosts = list(dict.fromkeys(task.address.rpartition(":")[0] for task in tasks))
    stride = -(-len(hosts) // _MOST_NAMES)
    return {
        "unreached": {r: p.problem for r, p in answers.items() if p.problem is not None},
        "asked": len(answers),
        "round_trip": trip,
        "rate": rate,
        "clock": max(
            (p.clock_ahead for p in answers.values() if not p.problem), key=abs, default=0.0
        ),
        "unresolved_hosts": unresolved_hosts(hosts[::stride]) if own.local_rank == 0 else {},
    }


def _results(notes: Dict[int, Note], cluster: Cluster, names: Sequence[str]) -> List[Result]:
    tasks = cluster.tasks
    results = [Result("presence", OK, f"all {len(tasks)} tasks are there")]
    results.append(_layout(notes, cluster, names))
    results.append(_agreement(notes, names))
    unresolved_names = [
        f"{host} from {names[rank]}: {reason}"
        for rank, note in notes.items()
        for host, reason in note["unresolved_hosts"].items()
    ]
    hosts = len({task.node for task in tasks})
    results.append(
        result_of("names", unresolved_names, f"{hosts} host names resolve on every node")
    )
    taken = [f"{names[r]}: {n['port_taken']}" for r, n in notes.items() if n["port_taken"]]
    results.append(result_of("ports", taken, "every task can listen at its own port"))
    unreached = [
        f"{names[rank]} cannot reach {names[int(other)]} at {tasks[int(other)].address}: {problem}"
        for rank, note in notes.items()
        for other, problem in note["unreached"].items()
    ]
    asked = sum(note["asked"] for note in notes.values())
    results.append(result_of("reach", unreached, f"{asked} connections between the tasks"))
    results.append(_speed(notes))
    results.append(_gpus(notes, cluster))
    results.append(_tensorflow(notes[0]["tensorflow"]))
    results.append(_keras(notes, names))
    results.append(_proxies(notes, names))
    clock, rank = max((abs(note["clock"]), rank) for rank, note in notes.items())
    off = (
        [f"{names[rank]} sees a clock that is {clock:.1f} s off"] if clock > _CLOCK_SECONDS else []
    )
    results.append(result_of("clocks", off, f"within {clock * 1000:.0f} ms", WARNING))
    return results + [Result(*result) for result in notes[0]["job_settings"]]


def _layout(notes: Dict[int, Note], cluster: Cluster, names: Sequence[str]) -> Result:
    wrong = []
    for rank, note in notes.items():
        task = cluster.tasks[rank]
        if note["place"] != [task.node, task.local_rank]:
            there = f"{note['place'][0]}, local rank {note['place'][1]}"
            wrong.append(f"{names[rank]} really runs on {there}")
    return result_of("layout", wrong, f"{cluster.distribution}, from {cluster.layout_source}")


def _agreement(notes: Dict[int, Note], names: Sequence[str]) -> Result:
    for key, what in COMPARED:
        told = disagreement(notes, key, names)
        if told:
            return Result("agreement", FAILED, f"the tasks disagree on {what}: {told}")
    return Result("agreement", OK, "same cluster, same versions in every task")


def _speed(notes: Dict[int, Note]) -> Result:
    trips = [note["round_trip"] for note in notes.values() if note["round_trip"] is not None]
    rates = [(note["rate"], rank) for rank, note in notes.items() if note["rate"] is not None]
    if not trips or not rates:
        return Result("speed", SKIPPED, "no peer to measure")
    slowest, rank = min(rates)
    return Result(
        "speed",
        OK,
        f"round trip {statistics.median(trips) * 1e6:.0f} µs; between neighbours "
        f"{statistics.median(rate for rate, _ in rates) / 1e6:.0f} MB/s, the slowest "
        f"{slowest / 1e6:.0f} MB/s from rank {rank}",
    )


def _gpus(notes: Dict[int, Note], cluster: Cluster) -> Result:
    users: Dict[Tuple[str, str], List[int]] = {}
    for rank, note in notes.items():
        for device in note["devices"] or ():
            users.setdefault((cluster.tasks[rank].node, device), []).append(rank)
    shared = [
        f"GPU {device} of {node} is taken by the ranks {', '.join(map(str, ranks))}"
        for (node, device), ranks in users.items()
        if len(ranks) > 1
    ]
    if not users:
        return Result("gpus", SKIPPED, "no task has any, as far as the environment tells")
    return result_of("gpus", shared, f"{len(users)}, each with one task", WARNING)


def _tensorflow(version: Optional[str]) -> Result:
    if version is None:
        return Result(
            "tensorflow", FAILED, "not installed: pip install 'slurm_resolver[tensorflow]'"
        )
    return Result("tensorflow", OK, version)


def _keras(notes: Dict[int, Note], names: Sequence[str]) -> Result:
    new = [names[rank] for rank, note in notes.items() if note["keras3"]]
    detail = (
        "tf.keras is Keras 3, whose fit() works under no multi-worker strategy: use tf_keras, or "
        "write the training loop"
    )
    return Result("keras", WARNING, detail) if new else Result("keras", OK, "fit() can be used")


def _proxies(notes: Dict[int, Note], names: Sequence[str]) -> Result:
    caught = [
        f"{names[rank]}: {', '.join(note['proxies'])} set, which gRPC would use for its peers; "
        "unset them, or name the nodes in no_proxy"
        for rank, note in notes.items()
        if note["proxies"] and not note["no_proxy"]
    ]
    return result_of("proxies", caught[:1], "none that would catch gRPC", WARNING)
