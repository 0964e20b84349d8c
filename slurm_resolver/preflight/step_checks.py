"""The checks of a step, before TensorFlow starts.

The tasks meet twice: when they listen at their ports, and when they have asked each other. Then
each task has the notes of all tasks, and computes the same results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.alone import advise_on_lonely_step
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import NONE, find_means
from slurm_resolver.preflight.cpu_check import CpuFacts, check_cpus, cpu_facts
from slurm_resolver.preflight.import_check import check_imports, seconds_to_read
from slurm_resolver.preflight.result import OK, SKIPPED, WARNING, Result, merge, result_of
from slurm_resolver.preflight.version_check import check_keras_version, check_tensorflow
from slurm_resolver.start.probe import find_unreached, listening, tasks_to_ask
from slurm_resolver.start.ready import agreement_facts, find_disagreement
from slurm_resolver.start.transport import TaskDevices, find_transport, task_devices
from slurm_resolver.wording import counted

# Names that do not resolve, dropped packets and a busy controller take time.
_PROBING_SECONDS = 40.0


def check_step(cluster: Cluster, timeout: float) -> list[Result]:
    """Runs all checks of a step, with the same results in every task.

    All tasks must call this within `timeout` seconds. The checks may then take longer.

    Raises:
        RendezvousError: if the tasks do not meet.
    """
    service = cluster.service
    assert service
    client = connect(service, cluster.name_of)
    with listening(cluster.tasks[service.rank]) as port_taken:
        client.gather("the checks", None, timeout)
        # What this task sends to the others.
        note = {
            "facts": agreement_facts(cluster),
            "results": _check_alone(cluster, service, port_taken),
            "cpus": cpu_facts(cluster.step, bool(cluster.gpus)),
            "gpus": task_devices(cluster, len(cluster.gpus)) if cluster.gpus else None,
            # One task of each node is enough.
            "imports": None if cluster.layout.local_rank_of[service.rank] else seconds_to_read(),
        }
        notes = client.gather("the exchange of results", note, _PROBING_SECONDS)
    results = merge({rank: note["results"] for rank, note in notes.items()}, cluster)
    if not results["gpus"].is_bad:
        results["gpus"] = check_gpus(
            {rank: TaskDevices(*note["gpus"]) for rank, note in notes.items() if note["gpus"]},
            cluster.tasks,
        )
    cpus = defaultdict(list)  # by node
    imports = {}
    for rank, note in notes.items():
        node = cluster.tasks[rank].node
        cpus[node].append(CpuFacts(*note["cpus"]))
        if note["imports"] is not None:
            imports[node] = note["imports"]
    return [
        *results.values(),
        check_cpus(cpus),
        check_imports(imports),
        result_of(
            "agreement",
            [find_disagreement(notes, cluster)],
            "same cluster, same versions in every task",
        ),
    ]


def _check_alone(cluster: Cluster, service: ServiceAddress, port_taken: str) -> list[Result]:
    """Returns the results of the checks that this task makes alone."""
    return [
        result_of(
            "presence",
            [advise_on_lonely_step(cluster.step)],
            f"{counted(len(cluster.tasks), 'task')} present",
            WARNING,
        ),
        # What a task's variables say of its place has been compared with the layout.
        Result("layout", OK, f"{cluster.layout.distribution}, from {cluster.layout.source}"),
        result_of("ports", [port_taken], "all are free"),
        _check_reach(cluster, service),
        _check_secret(),
        check_tensorflow(uses_gpus=bool(cluster.gpus)),
        check_keras_version(),
        result_of(
            "gpus",
            [cluster.gpu_decision.conflict],
            "as Slurm shows them",
            WARNING,
        ),
    ]


def _check_reach(cluster: Cluster, service: ServiceAddress) -> Result:
    asked = tasks_to_ask(service.rank, cluster.tasks)
    return result_of(
        "reach",
        sorted(
            f"cannot reach {cluster.name_of(rank)} at {cluster.tasks[rank].address}: "
            f"{error}{service.remedy}"
            for rank, error in find_unreached(asked).items()
        ),
        f"each task reaches {counted(len(asked), 'other')}",
    )


def _check_secret() -> Result:
    means = find_means()
    if means == NONE:  # which is no fault
        return Result(
            "secret",
            SKIPPED,
            "any user who can reach these nodes can connect in place of a task while the tasks "
            "start; to prevent it: "
            "export SLURM_RESOLVER_SECRET=$(openssl rand -hex 32) before srun",
        )
    return Result("secret", OK, f"the tasks recognize each other by {means}")


def check_gpus(devices: Mapping[int, TaskDevices], tasks: Sequence[Task]) -> Result:
    """Returns the result for the tasks that use GPUs, by rank.

    In a cluster with parameter servers, no task uses NCCL; nor does the evaluator.
    """
    if not devices:
        return Result("gpus", SKIPPED, "no task has any, according to its variables")
    use = f"{counted(len(devices), 'task')} with GPUs"
    training = {
        f"rank {rank}": task for rank, task in devices.items() if tasks[rank].job != "evaluator"
    }
    if len(training) < 2 or any(task.job == "ps" for task in tasks):
        return Result("gpus", OK, use)
    _, sentence, remedy = find_transport(training)
    return result_of(
        "gpus",
        [remedy and f"{sentence}: {remedy}"],
        f"{use}; {sentence}",
        WARNING,
    )
