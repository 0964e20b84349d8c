"""Asks the coordination service of a running job what its workers do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from glob import glob
from operator import itemgetter

from slurm_resolver.cluster.addresses import identity_of
from slurm_resolver.cluster.ports import derive_service_port
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.secret import VARIABLE
from slurm_resolver.coordination.wire import NO_ANSWER, Message, open_connection
from slurm_resolver.errors import LaunchError, RendezvousError
from slurm_resolver.slurm import scontrol
from slurm_resolver.slurm.ancestors import read_proc
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.scontrol import Fields, JobRef
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.wording import shorten

_MOST_REASONS = 3  # why no service answers
_NOT_AT_WORK = ("CONFIGURING", "STOPPED", "SUSPENDED")  # states of jobs that count as running


def ask_service(job_id: str, step_id: str, given_port: int | None) -> Message:
    """Returns what the service of a job's step answers to an observer: see `wire`.

    Args:
        job_id: of the job; that of a job array is the JobId of one of its tasks, which it means.
        step_id: "" for the newest step that answers.
        given_port: the service's port; None to find it.

    Raises:
        LaunchError: if Slurm does not know the job, or does not answer.
        RendezvousError: with the reason, if no service answers.
    """
    try:
        slurm_job = scontrol.show_job(JobRef(job_id))
        addresses = [*_find_addresses(slurm_job, step_id, given_port)]
    except OSError as error:
        raise LaunchError(f"job {job_id}: {error}") from None
    _take_secret(slurm_job)
    nodes: dict[str, str] = {}  # by the reason why no service answers there
    for address in addresses:
        try:
            connection, answer = open_connection(address, "observer")
        except (OSError, RendezvousError) as error:
            nodes[str(error)] = address.node
        else:
            connection.socket.close()
            return answer
    raise RendezvousError(explain_silence(slurm_job, nodes))


def explain_silence(slurm_job: Fields, nodes: Mapping[str, str]) -> str:
    """Returns why no service of a job (`show_job`) answers; `nodes` are where, by the reason."""
    job_id = scontrol.ref_of(slurm_job)
    state = slurm_job["JobState"]
    if state not in scontrol.RUNNING_STATES or state in _NOT_AT_WORK:
        reason = slurm_job.get("Reason", "")
        because = "" if reason in scontrol.UNSET else f" ({reason})"
        return f"job {job_id} is {state}{because}; scontrol show job {job_id} says more"
    if NO_ANSWER in nodes:
        return f"job {job_id}: local rank 0 on {nodes[NO_ANSWER]} {NO_ANSWER}"
    reasons = [f"{node}: {reason}" for reason, node in nodes.items()]
    why = shorten(reasons, _MOST_REASONS) or "srun has started nothing"
    return (
        f"no coordination service answers in a step of job {job_id} ({why}): the program has not "
        "created a strategy of slurm_resolver, trains alone, or has ended. If it sets port_base, "
        "add --port with port_base plus the largest task count on any node."
    )


def _take_secret(slurm_job: Fields) -> None:
    """Sets the secret of a job whose batch file made one, which its processes here have.

    It sets none if this user can read none of the job's processes, or if they have no secret.
    """
    ids = (slurm_job["JobId"], slurm_job.get("HetJobId", slurm_job["JobId"]))
    for path in glob("/proc/[0-9]*/environ"):
        variables = dict(line.partition("=")[::2] for line in read_proc(path).split("\0"))
        if variables.get("SLURM_JOB_ID") in ids and variables.get(VARIABLE):
            os.environ.setdefault(VARIABLE, variables[VARIABLE])
            return


def _find_addresses(
    slurm_job: Fields, step_id: str, given_port: int | None
) -> Iterator[ServiceAddress]:
    """Yields the addresses where the service of a step may listen, newest step first.

    Raises:
        OSError: if Slurm does not answer.
    """
    cluster = scontrol.show_config().get("ClusterName")
    # What srun has started, with the number of its step.
    steps = [
        (int(name), fields)
        for fields in scontrol.show_steps(slurm_job)
        for name in [fields.get("StepId", "").rpartition(".")[2]]
        if name.isdigit() and step_id in ("", name)
    ]
    # The first node of a heterogeneous step is that of one of its components.
    for number, fields in sorted(steps, key=itemgetter(0), reverse=True):
        step = SlurmStep(
            cluster_name=cluster,
            job_id=slurm_job.get("HetJobId", slurm_job["JobId"]),
            step_id=str(number),
            restart_count=int(slurm_job.get("Restarts") or 0),
        )
        node = expand_hostlist(fields["NodeList"])[0]
        host = scontrol.show_nodes("NodeAddr", node).get(node, node)
        # By default the last reserved port is left over; the layout, which decides, is not known
        # here. The first one is always a task's.
        reserved = SlurmStep.reserved_ports.parse(fields.get("ResvPorts", "")) or ()
        ports = [*reversed(reserved[1:]), derive_service_port(step)]
        for port in [given_port] if given_port else ports:
            yield ServiceAddress(
                host,
                port,
                node,
                identity_of(step),
                num_tasks=0,
                rank=-1,  # that of an observer
                hosts_service=False,
            )
