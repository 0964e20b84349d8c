"""The checks of a step: everything that the tasks can find out before TensorFlow starts.

The tasks gather three times: when they have come, when they listen at their ports, and when they
have asked each other. Then each has the notes of all, and computes the same results.
"""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import describe_means
from slurm_resolver.preflight.agreement import (
    COMPARED_FACTS,
    NameOf,
    Note,
    agreement_facts,
    find_disagreement,
    tensorflow_version,
)
from slurm_resolver.preflight.cpu_check import check_cpus, cpu_facts
from slurm_resolver.preflight.gpu_check import check_gpus, gpu_facts
from slurm_resolver.preflight.job_checks import check_job_settings
from slurm_resolver.preflight.keras_check import keras_facts, keras_result
from slurm_resolver.preflight.lonely_step import advise_on_lonely_step
from slurm_resolver.preflight.probe import (
    Listener,
    RankReply,
    ask_rank,
    ranks_to_ask,
    unresolved_hosts,
)
from slurm_resolver.preflight.result import FAILED, OK, SKIPPED, WARNING, Result, result_of
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.wording import counted

_MAX_NAMES = 256  # host names that each node resolves
_MAX_CLOCK_SECONDS = 1.0  # that two clocks may differ
# How long tasks that have met may take until they meet again: to listen takes no time, but names
# that do not resolve, dropped packets and a busy controller do.
_LISTENING_SECONDS = 5.0
_PROBING_SECONDS = 40.0


def check_step(cluster: Cluster, timeout: float) -> List[Result]:
    """Runs all checks of a step. Every task must call it, and gets the same results.

    Args:
        cluster: the cluster that this task has resolved.
        timeout: seconds in which all tasks have to call it. What they then find out may take
            longer.

    Raises:
        RendezvousError: where the tasks do not meet at all.
    """
    task, service = cluster.task, cluster.service
    assert task is not None
    assert service is not None
    until = time.monotonic() + timeout
    note = {**agreement_facts(cluster), **_software_facts(), **_local_facts(cluster)}
    several = len(cluster.tasks) > 1
    if several:
        client = connect(service)
        client.name_of = cluster.name_of
        client.gather("check: presence", None, max(0.0, until - time.monotonic()))
    listener = Listener(task.rank, int(task.address.rpartition(":")[2]))
    try:
        if several:
            client.gather("check: listening", None, _LISTENING_SECONDS)
        note["port_taken"] = listener.problem
        note.update(_ask_peers(cluster))
        # Only one task asks: a thousand questions would be a burden to Slurm's controller.
        note["job_settings"] = check_job_settings(cluster.step) if task.rank == 0 else []
        notes = client.gather("check: results", note, _PROBING_SECONDS) if several else [note]
    finally:
        listener.close()
    return _results(dict(enumerate(notes)), cluster)


def check_here() -> List[Result]:
    """Runs the checks that this machine can do alone, outside a step."""
    note = _software_facts()
    name = socket.gethostname()
    failed = unresolved_hosts([name])
    gpus = count_driver_gpus()
    return [
        Result("names", *((FAILED, f"{name}: {failed[name]}") if failed else (OK, name))),
        _check_tensorflow(tensorflow_version()),
        keras_result([note], tensorflow_version()),
        _check_proxies({0: note}, lambda rank: "this machine"),
        Result(
            "gpus",
            SKIPPED if gpus is None else OK,
            "no NVIDIA driver can be asked (pip install nvidia-ml-py)"
            if gpus is None
            else f"the driver shows {gpus}",
        ),
        *check_job_settings(SlurmStep.read()),
        Result(
            "step",
            SKIPPED,
            "no step was checked, as this process is none of several tasks: start this command as "
            "the training is started, with srun, and all its tasks are checked together",
        ),
    ]


def _software_facts() -> Note:
    return {
        **keras_facts(),
        "proxies": [n for n in ("grpc_proxy", "https_proxy", "http_proxy") if _variable(n)],
        "no_proxy": bool(_variable("no_grpc_proxy") or _variable("no_proxy")),
    }


def _variable(name: str) -> str:
    """Returns a variable that may be written in lower or upper case; '' if not set."""
    return os.environ.get(name, "") or os.environ.get(name.upper(), "")


def _local_facts(cluster: Cluster) -> Note:
    assert cluster.task is not None
    task, step = cluster.task, cluster.step
    # Where Slurm's variables say that this task runs; it is compared with the cluster.
    local_rank = task.local_rank if step.local_rank is None else step.local_rank
    place = [step.node_name or task.node, local_rank]
    return {"place": place, **cpu_facts(step), **gpu_facts(cluster)}


def _ask_peers(cluster: Cluster) -> Note:
    assert cluster.task is not None
    task, tasks = cluster.task, cluster.tasks
    asked = ranks_to_ask(task.rank, len(tasks))
    # All at the same time: where packets are dropped, each question takes its full timeout.
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        answers = pool.map(lambda rank: ask_rank(tasks[rank].address, rank), asked)
        replies: Dict[int, RankReply] = dict(zip(asked, answers))
    hosts = list(dict.fromkeys(task.address.rpartition(":")[0] for task in tasks))
    stride = -(-len(hosts) // _MAX_NAMES)
    return {
        "unreached": {r: p.problem for r, p in replies.items() if p.problem is not None},
        "asked": len(replies),
        "clock": max(
            (p.clock_ahead for p in replies.values() if not p.problem), key=abs, default=0.0
        ),
        "unresolved_hosts": unresolved_hosts(hosts[::stride]) if task.local_rank == 0 else {},
    }


def _results(notes: Dict[int, Note], cluster: Cluster) -> List[Result]:
    tasks, name_of = cluster.tasks, cluster.name_of
    advice = advise_on_lonely_step(cluster.step)
    come = f"all {len(tasks)} tasks have come" if len(tasks) > 1 else "the only task has come"
    unresolved = [
        f"{host} from {name_of(rank)}: {reason}"
        for rank, note in notes.items()
        for host, reason in note["unresolved_hosts"].items()
    ]
    hosts = len({task.node for task in tasks})
    resolved = f"{counted(hosts, 'host name')} resolve on every node"
    taken = [f"{name_of(r)}: {n['port_taken']}" for r, n in notes.items() if n["port_taken"]]
    unreached = [
        f"{name_of(rank)} cannot reach {name_of(int(other))} at {tasks[int(other)].address}: "
        f"{problem}"
        for rank, note in notes.items()
        for other, problem in note["unreached"].items()
    ]
    asked = sum(note["asked"] for note in notes.values())
    clock, rank = max((abs(note["clock"]), rank) for rank, note in notes.items())
    clocks = [f"{name_of(rank)} sees a clock that is {clock:.1f} s off"]
    return [
        Result("presence", WARNING if advice else OK, advice or come),
        _check_layout(notes, cluster),
        _check_agreement(notes, cluster),
        result_of("names", unresolved, resolved if hosts > 1 else "the node's name resolves"),
        result_of("ports", taken, "every task can listen at its own port"),
        result_of("reach", unreached, f"{counted(asked, 'connection')} between the tasks"),
        _check_secret(),
        check_cpus(notes, [task.node for task in tasks]),
        check_gpus(notes, cluster),
        _check_tensorflow(notes[0]["tensorflow"]),
        keras_result(list(notes.values()), notes[0]["tensorflow"]),
        _check_proxies(notes, name_of),
        result_of(
            "clocks",
            clocks if clock > _MAX_CLOCK_SECONDS else [],
            f"within {clock * 1000:.0f} ms",
            WARNING,
        ),
        *(Result(*result) for result in notes[0]["job_settings"]),
    ]


def _check_layout(notes: Dict[int, Note], cluster: Cluster) -> Result:
    wrong = []
    for rank, note in notes.items():
        task = cluster.tasks[rank]
        if note["place"] != [task.node, task.local_rank]:
            place = f"{note['place'][0]}, local rank {note['place'][1]}"
            wrong.append(f"{cluster.name_of(rank)} really runs on {place}")
    return result_of("layout", wrong, f"{cluster.distribution}, from {cluster.layout_source}")


def _check_agreement(notes: Dict[int, Note], cluster: Cluster) -> Result:
    for key, what in COMPARED_FACTS:
        difference = find_disagreement(notes, key, cluster.name_of)
        if difference:
            return Result("agreement", FAILED, f"the tasks disagree on {what}: {difference}")
    return Result("agreement", OK, "same cluster, same versions in every task")


def _check_secret() -> Result:
    """Returns what keeps others from the tasks' meetings; that nothing does is no fault."""
    means, protection = describe_means()
    return Result("secret", SKIPPED if means == "none" else OK, protection)


def _check_tensorflow(version: Optional[str]) -> Result:
    if version is None:
        return Result(
            "tensorflow",
            FAILED,
            "not installed: load your site's module, or pip install 'tensorflow>=2.15' (without "
            "GPUs tensorflow-cpu)",
        )
    return Result("tensorflow", OK, version)


def _check_proxies(notes: Dict[int, Note], name_of: NameOf) -> Result:
    problems = [
        f"{name_of(rank)}: {', '.join(note['proxies'])} set, which gRPC would use between the "
        "tasks; unset them, or name the nodes in no_proxy"
        for rank, note in notes.items()
        if note["proxies"] and not note["no_proxy"]
    ]
    return result_of("proxies", problems[:1], "none that gRPC would use", WARNING)
