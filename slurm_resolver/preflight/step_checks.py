"""The checks of a step: everything that the tasks can find out before TensorFlow starts.

The tasks meet three times: when all have come, when all listen at their ports, and when all have
asked each other; and up to twice more where a node seems slow. To measure their CPUs and GPUs they
meet as well, and begin together. The meeting point computes the results, and every task gets them.
"""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.cluster.meeting import meet
from slurm_resolver.preflight.agreement import (
    COMPARED_FACTS,
    agreement_facts,
    find_disagreement,
    task_names,
    tensorflow_version,
)
from slurm_resolver.preflight.cpu_check import check_cpus, cpu_facts
from slurm_resolver.preflight.gpu_check import check_gpus, gpu_facts
from slurm_resolver.preflight.gpu_state_check import find_gpu_faults, gpu_state_facts
from slurm_resolver.preflight.job_checks import check_job_settings
from slurm_resolver.preflight.keras_check import keras_facts, keras_result
from slurm_resolver.preflight.lonely_step import advise_on_lonely_step
from slurm_resolver.preflight.network_check import (
    ask_by_interfaces,
    check_interfaces,
    nccl_note,
    share_choices,
)
from slurm_resolver.preflight.result import FAILED, OK, SKIPPED, WARNING, Result, result_of
from slurm_resolver.preflight.speed_check import MAX_REPEATS, check_speed, measure_links
from slurm_resolver.preflight.work_check import check_work, measured_here
from slurm_resolver.preflight.work_speed import KINDS, measure_work
from slurm_resolver.rendezvous.gathering import Note
from slurm_resolver.rendezvous.probe import (
    Listener,
    RankReply,
    ask_rank,
    ranks_to_ask,
    unresolved_hosts,
)
from slurm_resolver.rendezvous.secret import describe_means
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.wording import counted

_MAX_NAMES = 256  # host names that each node resolves
_MAX_CLOCK_SECONDS = 1.0  # that two clocks may differ
# By how much tasks that have met once may come apart until the next meeting: what they do before
# listening takes no time, but names that do not resolve, dropped packets and a busy controller do.
_LISTENING_SECONDS = 5.0
_PROBING_SECONDS = 40.0
_WORKING_SECONDS = 300.0  # for CPUs and GPUs to be measured, which has TensorFlow start
_ANSWER = ("results", "slow", "slow_work")


def check_step(cluster: Cluster, timeout: float, speed: bool = False) -> List[Result]:
    """Runs all checks of a step. Every task must call it, and gets the same results.

    Args:
        cluster: the cluster that this task has resolved.
        timeout: seconds in which all tasks have to call it. What they then find out may take
            longer.
        speed: whether to measure the CPUs and GPUs as well.

    Raises:
        RendezvousError: where the tasks do not meet at all.
    """
    task, rendezvous = cluster.task, cluster.rendezvous
    assert task is not None
    assert rendezvous is not None
    names = task_names(cluster)
    until = time.monotonic() + timeout

    def gather(purpose: str, note: Note, least: float, decide: Any = None) -> Dict[str, Any]:
        decide = decide or (lambda notes: {})
        seconds = max(least, until - time.monotonic())
        return meet(rendezvous, f"check {purpose}", names, note, decide, seconds)

    nccl = nccl_note(cluster)
    chosen: Dict[str, Any] = {}  # by NCCL, on each node
    note = {**nccl, **agreement_facts(cluster), **_software_facts(), **_local_facts(cluster)}
    if len(cluster.tasks) > 1:
        gather("presence", {}, 0.0)
    listener = Listener(task.rank, int(task.address.rpartition(":")[2]))
    try:
        if len(cluster.tasks) > 1:
            shared = gather(
                "listening",
                nccl,
                _LISTENING_SECONDS,
                lambda notes: share_choices(notes, cluster),
            )
            chosen = shared["nccl"]
        note["port_taken"] = listener.problem
        note.update(_ask_peers(cluster, chosen))
        # Only one task asks: a thousand questions would be a burden to Slurm's controller.
        note["job_settings"] = check_job_settings(cluster.step) if task.rank == 0 else []
        if speed:
            if len(cluster.tasks) > 1:
                gather("working", {}, _PROBING_SECONDS)  # the network is measured by now
            measure_work(cluster, note, KINDS)
        if len(cluster.tasks) == 1:
            return _results({0: note}, cluster, names, chosen)[0]
        for repeat in range(MAX_REPEATS + 1):
            answer = gather(
                f"results {repeat}",
                note,
                _WORKING_SECONDS if speed else _PROBING_SECONDS,
                lambda notes: dict(zip(_ANSWER, _results(notes, cluster, names, chosen))),
            )
            slow_work = [kind for rank, kind in answer["slow_work"] if rank == task.rank]
            if not (answer["slow"] or answer["slow_work"]) or repeat == MAX_REPEATS:
                break
            if answer["slow"]:
                measure_links(cluster, note, answer["slow"])
            measure_work(cluster, note, slow_work)
    finally:
        listener.close()
    return [Result(*result) for result in answer["results"]]


def check_here(speed: bool = False) -> List[Result]:
    """Runs the checks that this machine can do alone, outside a step."""
    note = _software_facts()
    name = socket.gethostname()
    failed = unresolved_hosts([name])
    gpus = count_driver_gpus()
    return [
        Result("names", *((FAILED, f"{name}: {failed[name]}") if failed else (OK, name))),
        _check_tensorflow(tensorflow_version()),
        keras_result([note], tensorflow_version()),
        _check_proxies({0: note}, ["this machine"]),
        Result(
            "gpus",
            SKIPPED if gpus is None else OK,
            "no NVIDIA driver can be asked (pip install nvidia-ml-py)"
            if gpus is None
            else f"the driver shows {gpus}",
        ),
        *([measured_here()] if speed else []),
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
    return {"place": place, **cpu_facts(step), **gpu_facts(cluster), **gpu_state_facts(cluster)}


def _ask_peers(cluster: Cluster, chosen: Dict[str, Any]) -> Note:
    assert cluster.task is not None
    task, tasks = cluster.task, cluster.tasks
    asked = ranks_to_ask(task.rank, len(tasks))
    # All at the same time: where packets are dropped, each question takes its full timeout.
    with ThreadPoolExecutor(max(1, len(asked))) as pool:
        answers = pool.map(lambda rank: ask_rank(tasks[rank].address, rank), asked)
        replies: Dict[int, RankReply] = dict(zip(asked, answers))
    hosts = list(dict.fromkeys(task.address.rpartition(":")[0] for task in tasks))
    stride = -(-len(hosts) // _MAX_NAMES)
    note = {
        "unreached": {r: p.problem for r, p in replies.items() if p.problem is not None},
        "asked": len(replies),
        "clock": max(
            (p.clock_ahead for p in replies.values() if not p.problem), key=abs, default=0.0
        ),
        "unresolved_hosts": unresolved_hosts(hosts[::stride]) if task.local_rank == 0 else {},
    }
    note.update(ask_by_interfaces(cluster, replies, chosen))
    measure_links(cluster, note)
    return note


def _results(
    notes: Dict[int, Note], cluster: Cluster, names: Sequence[str], chosen: Dict[str, Any]
) -> Tuple[List[Result], List[str], List[Tuple[int, str]]]:
    """Returns the results, and what is to be measured again: nodes, and CPUs or GPUs of ranks."""
    tasks = cluster.tasks
    advice = advise_on_lonely_step(cluster.step)
    come = f"all {len(tasks)} tasks have come" if len(tasks) > 1 else "the only task has come"
    results = [Result("presence", WARNING if advice else OK, advice or come)]
    results.append(_check_layout(notes, cluster, names))
    results.append(_check_agreement(notes, names))
    unresolved = [
        f"{host} from {names[rank]}: {reason}"
        for rank, note in notes.items()
        for host, reason in note["unresolved_hosts"].items()
    ]
    hosts = len({task.node for task in tasks})
    results.append(
        result_of(
            "names",
            unresolved,
            f"{counted(hosts, 'host name')} resolve on every node"
            if hosts > 1
            else "the node's name resolves",
        )
    )
    taken = [f"{names[r]}: {n['port_taken']}" for r, n in notes.items() if n["port_taken"]]
    results.append(result_of("ports", taken, "every task can listen at its own port"))
    unreached = [
        f"{names[rank]} cannot reach {names[int(other)]} at {tasks[int(other)].address}: {problem}"
        for rank, note in notes.items()
        for other, problem in note["unreached"].items()
    ]
    asked = sum(note["asked"] for note in notes.values())
    results.append(
        result_of("reach", unreached, f"{counted(asked, 'connection')} between the tasks")
    )
    results.append(check_interfaces(notes, cluster, chosen))
    speed, slow = check_speed(notes, cluster)
    results.append(speed)
    work, slow_work = check_work(notes, cluster)
    results += work
    results.append(_check_secret())
    results.append(check_cpus(notes, [task.node for task in tasks]))
    results.append(check_gpus(notes, cluster, find_gpu_faults(notes, cluster)))
    results.append(_check_tensorflow(notes[0]["tensorflow"]))
    results.append(keras_result(list(notes.values()), notes[0]["tensorflow"]))
    results.append(_check_proxies(notes, names))
    clock, rank = max((abs(note["clock"]), rank) for rank, note in notes.items())
    problems = []
    if clock > _MAX_CLOCK_SECONDS:
        problems.append(f"{names[rank]} sees a clock that is {clock:.1f} s off")
    results.append(result_of("clocks", problems, f"within {clock * 1000:.0f} ms", WARNING))
    return results + [Result(*result) for result in notes[0]["job_settings"]], slow, slow_work


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


def _check_secret() -> Result:
    """Returns what keeps others from the tasks' meetings; that nothing does is no fault."""
    means, protection = describe_means()
    return Result("secret", OK if means else SKIPPED, protection)


def _check_tensorflow(version: Optional[str]) -> Result:
    if version is None:
        return Result(
            "tensorflow",
            FAILED,
            "not installed: load your site's module, or pip install 'tensorflow>=2.15' (without "
            "GPUs tensorflow-cpu)",
        )
    return Result("tensorflow", OK, version)


def _check_proxies(notes: Dict[int, Note], names: Sequence[str]) -> Result:
    problems = [
        f"{names[rank]}: {', '.join(note['proxies'])} set, which gRPC would use between the tasks; "
        "unset them, or name the nodes in no_proxy"
        for rank, note in notes.items()
        if note["proxies"] and not note["no_proxy"]
    ]
    return result_of("proxies", problems[:1], "none that gRPC would use", WARNING)
