"""The checks of a step, before TensorFlow starts.

The tasks meet twice: when they listen at their ports, and when they have asked each other. Then
each task has the notes of all tasks, and computes the same results.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from slurm_resolver.cluster.addresses import Task
from slurm_resolver.cluster.alone import advise_on_lonely_step
from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.coordination import named
from slurm_resolver.coordination.client import connect
from slurm_resolver.coordination.secret import NONE, find_means
from slurm_resolver.preflight.cpu_check import cpu_problem
from slurm_resolver.preflight.import_check import check_imports, seconds_to_read
from slurm_resolver.preflight.result import FAILED, OK, SKIPPED, WARNING, Result, result_of
from slurm_resolver.preflight.version_check import cuda_problem, find_keras, tensorflow_problem
from slurm_resolver.start.keras_version import find_tensorflow_version
from slurm_resolver.start.probe import find_unreached, listening, tasks_to_ask
from slurm_resolver.start.ready import agreement_facts, find_disagreement
from slurm_resolver.start.transport import TaskDevices, find_transport, task_devices
from slurm_resolver.wording import counted, shorten

# Names that do not resolve, dropped packets and a busy controller take time.
_PROBING_SECONDS = 40.0


def check_step(cluster: Cluster, timeout: float) -> list[Result]:
    """Runs all checks of a step, with the same problems in every task.

    All tasks must call this within `timeout` seconds. The checks may then take longer.

    Raises:
        RendezvousError: if the tasks do not meet.
    """
    service = cluster.service
    assert service
    tasks = cluster.tasks
    own = tasks[service.rank]
    uses_gpus = bool(cluster.gpus)
    client = connect(service, cluster.name_of)
    with listening(own) as port_taken:
        cpus = client.gather("the checks", sorted(os.sched_getaffinity(0)), timeout)
        asked = tasks_to_ask(service.rank, tasks)
        unreached = sorted(
            f"cannot reach {cluster.name_of(rank)} at {tasks[rank].address}: "
            f"{error}{service.remedy}"
            for rank, error in find_unreached(asked).items()
        )
        keras_problem, keras = find_keras()
        # What this task sends to the others; a problem is '' if there is none.
        note = {
            "facts": agreement_facts(cluster),
            "devices": task_devices(cluster, len(cluster.gpus or ())) if uses_gpus else None,
            # One task of each node is enough.
            "imports": None if own.local_rank else seconds_to_read(),
            "presence": advise_on_lonely_step(cluster.step),
            "ports": port_taken,
            "reach": shorten(unreached, 4, "; "),
            "tensorflow": tensorflow_problem(),
            "keras": keras_problem,
            "gpus": cluster.gpu_decision.conflict or (cuda_problem() if uses_gpus else ""),
            "cpus": cpu_problem(
                cluster.step,
                [of_task for rank, of_task in cpus.items() if tasks[rank].node == own.node],
                uses_gpus,
            ),
        }
        notes = client.gather("the exchange of results", note, _PROBING_SECONDS)

    def merged(id: str, ok: str, status: str = WARNING) -> Result:
        """Returns one result of all tasks, which names those with a problem."""
        problems = {rank: note[id] for rank, note in notes.items() if note[id]}
        return result_of(id, named(problems, cluster.name_of), ok, status)

    gpus = merged("gpus", "")
    if not gpus.is_bad:
        gpus = check_gpus(
            {
                rank: TaskDevices(*note["devices"])
                for rank, note in notes.items()
                if note["devices"]
            },
            tasks,
        )
    return [
        merged("presence", f"{counted(len(tasks), 'task')} present"),
        # What a task's variables say of its place has been compared with the layout.
        Result("layout", OK, f"{cluster.layout.distribution}, from {cluster.layout.source}"),
        merged("ports", "all are free", FAILED),
        merged("reach", f"each task reaches {counted(len(asked), 'other')}", FAILED),
        _check_secret(),
        merged("tensorflow", find_tensorflow_version() or "of another build", FAILED),
        merged("keras", keras),
        gpus,
        merged("cpus", "the tasks may use those that they were granted"),
        check_imports(
            {tasks[rank].node: note["imports"] for rank, note in notes.items() if note["imports"]}
        ),
        result_of(
            "agreement",
            [find_disagreement(notes, cluster)],
            "same cluster, same versions in every task",
            FAILED,
        ),
    ]


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
        f"rank {rank}": of_task
        for rank, of_task in devices.items()
        if tasks[rank].job != "evaluator"
    }
    if len(training) < 2 or any(task.job == "ps" for task in tasks):
        return Result("gpus", OK, use)
    _, sentence, remedy = find_transport(training)
    return result_of("gpus", [remedy and f"{sentence}: {remedy}"], f"{use}; {sentence}")
