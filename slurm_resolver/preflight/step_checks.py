"""The checks of a step, before TensorFlow starts.

The tasks meet twice: when they listen at their ports, and when they have asked each other. Then
each task has the notes of all tasks, and computes the same results.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, Optional

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import MEANS, find_means
from slurm_resolver.preflight.cpu_check import CpuFacts, check_cpus, cpu_facts
from slurm_resolver.preflight.job_checks import advise_on_lonely_step, check_job
from slurm_resolver.preflight.keras_version import check_versions
from slurm_resolver.preflight.probe import ask_rank, listening
from slurm_resolver.preflight.ready import Note, agreement_facts, find_disagreement
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result, merge, result_of
from slurm_resolver.preflight.transport import TaskDevices, check_driver, check_gpus, task_devices
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.wording import counted

_MAX_ASKED = 64  # tasks of which each asks all others
# Names that do not resolve, dropped packets and a busy controller take time.
_PROBING_SECONDS = 40.0


def check_step(cluster: Cluster, timeout: float) -> List[Result]:
    """Runs all checks of a step. Every task must call this, and gets the same results.

    All tasks have to call this within `timeout` seconds. The checks may then take longer.

    Raises:
        RendezvousError: if the tasks do not meet.
    """
    task, service = cluster.task, cluster.service
    assert task is not None
    assert service is not None
    client = None
    if len(cluster.tasks) > 1:
        client = connect(service, cluster.name_of)
    with listening(task.rank, task.address) as port_taken:
        if client is not None:
            client.gather("check: presence", None, timeout)
        own = _check_alone(cluster, port_taken)
        gpus = task_devices(cluster, len(cluster.gpus)) if cluster.gpus else None
        note: Note = {
            **agreement_facts(cluster),
            "own": [result for result in own if result.is_bad],
            "cpus": cpu_facts(cluster.step, task.rank, gpus is not None),
            "gpus": gpus,
            # One task asks: a thousand would burden Slurm's controller.
            "job": check_job(cluster.step) if task.rank == 0 else [],
        }
        notes = [note]
        if client is not None:
            notes = client.gather("check: results", note, _PROBING_SECONDS)
    return _results(dict(enumerate(notes)), own, cluster)


def check_here() -> List[Result]:
    """Runs the checks that need no step."""
    gpus = count_driver_gpus()
    driver = "no NVIDIA driver can be asked" if gpus is None else f"the driver shows {gpus}"
    advice = (
        "no step was checked: start this command with srun, like the training, to check all of its "
        "tasks together"
    )
    return [
        *check_versions(),
        _check_proxies(),
        Result("gpus", SKIPPED if gpus is None else OK, driver),
        *check_job(SlurmStep.read()),
        Result("step", WARNING, advice),
    ]


def _check_alone(cluster: Cluster, port_taken: Optional[str]) -> List[Result]:
    """Returns the results of the checks that this task makes alone."""
    task, tasks = cluster.task, cluster.tasks
    assert task is not None
    # In a large step each asks the ranks at the distances 0, 1, 2, 4, …
    far = [0, *(1 << power for power in range((len(tasks) - 1).bit_length()))]
    distances = far if len(tasks) > _MAX_ASKED else range(len(tasks))
    asked = [(task.rank + distance) % len(tasks) for distance in distances]
    unresolved, unreached = [], []

    def ask(rank: int) -> None:
        address = tasks[rank].address
        try:
            ask_rank(address, rank)
        except socket.gaierror as error:
            unresolved.append(f"{address.rpartition(':')[0]}: {error}")
        except OSError as error:
            unreached.append(f"cannot reach {cluster.name_of(rank)} at {address}: {error}")

    # All at the same time: each question whose packets are dropped takes its full timeout.
    with ThreadPoolExecutor(len(asked)) as pool:
        list(pool.map(ask, asked))
    hosts = {tasks[rank].address.rpartition(":")[0] for rank in asked}
    others = counted(len(asked) - 1, "other")
    means = find_means()
    protection = f"the tasks recognize each other by {MEANS[means]}"
    if means == "none":
        protection = "any user of these nodes can connect to the tasks while they start"
    return [
        check_layout(cluster),
        result_of("names", set(unresolved), f"{counted(len(hosts), 'host name')} resolved"),
        result_of("ports", [port_taken or ""], "all are free"),
        result_of("reach", sorted(unreached), f"each task reaches {others}"),
        # A step without a secret is no fault.
        Result("secret", SKIPPED if means == "none" else OK, protection),
        *check_versions(uses_gpus=bool(cluster.gpus)),
        _check_proxies(),
        check_driver(cluster),
    ]


def check_layout(cluster: Cluster) -> Result:
    """Compares the cluster with this task's place in Slurm's variables."""
    task, step = cluster.task, cluster.step
    assert task is not None
    node = step.node_name or task.node
    local_rank = task.local_rank if step.local_rank is None else step.local_rank
    wrong = ""
    if (node, local_rank) != (task.node, task.local_rank):
        wrong = f"really runs on {node}, local rank {local_rank}"
    return result_of("layout", [wrong], f"{cluster.distribution}, from {cluster.layout_source}")


def _check_proxies() -> Result:
    def is_set(name: str) -> bool:
        return bool(os.environ.get(name) or os.environ.get(name.upper()))

    names = [name for name in ("grpc_proxy", "https_proxy", "http_proxy") if is_set(name)]
    problem = ""
    if names and not is_set("no_grpc_proxy") and not is_set("no_proxy"):
        problem = (
            f"{', '.join(names)} set, which gRPC would use between the tasks; unset them, or name "
            "the nodes in no_proxy"
        )
    return result_of("proxies", [problem], "none that gRPC would use", WARNING)


def _results(notes: Mapping[int, Any], own: List[Result], cluster: Cluster) -> List[Result]:
    tasks = cluster.tasks
    cpus: Dict[str, List[CpuFacts]] = {}
    bad: Dict[str, Dict[int, Result]] = {}
    for rank, note in notes.items():
        cpus.setdefault(tasks[rank].node, []).append(CpuFacts(*note["cpus"]))
        for result in note["own"]:
            bad.setdefault(result[0], {})[rank] = Result(*result)
    devices = {rank: TaskDevices(*note["gpus"]) for rank, note in notes.items() if note["gpus"]}
    come = f"all {len(tasks)} tasks have come" if len(tasks) > 1 else "the only task has come"
    advice = advise_on_lonely_step(cluster.step)
    disagreement = find_disagreement(notes, cluster)
    merged = [merge(bad[one.id], cluster) if one.id in bad else one for one in own]
    return [
        Result("presence", WARNING if advice else OK, advice or come),
        result_of("agreement", disagreement, "same cluster, same versions in every task"),
        *merged[:-1],
        check_cpus(cpus),
        merged[-1] if merged[-1].is_bad else check_gpus(devices, tasks),
        *(Result(*result) for result in notes[0]["job"]),
    ]
