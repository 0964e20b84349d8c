"""`slurm-resolver status`: what each worker of a running step does."""

from __future__ import annotations

import json
import os
import secrets
from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any

from slurm_resolver.cli.options import OptionAdder, number_type
from slurm_resolver.cluster.addresses import identity_of
from slurm_resolver.cluster.ports import derive_service_port
from slurm_resolver.coordination import ServiceAddress
from slurm_resolver.coordination.progress import Report
from slurm_resolver.coordination.secret import VARIABLE
from slurm_resolver.coordination.usage import BETWEEN, DATA, advise, describe, share_of, slowest
from slurm_resolver.coordination.wire import NO_ANSWER, Message, Process, open_connection
from slurm_resolver.errors import LaunchError, RendezvousError
from slurm_resolver.log import print_line
from slurm_resolver.slurm.ancestors import read_proc
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.scontrol import (
    RUNNING_STATES,
    UNSET,
    Fields,
    JobRef,
    own_job,
    ref_of,
    show_config,
    show_jobs,
    show_nodes,
    show_steps,
)
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.whole_number import LAST_PORT
from slurm_resolver.wording import aligned, shorten

DESCRIPTION = """\
Shows for each worker of a running step: epoch, step, what it does, milliseconds per step, and the
shares of time spent waiting for data and between steps. Below, it says where the time of this
training went, and what to do about the largest loss. Run it on a node of the job. For a job without
such a step, it says what Slurm knows."""

EPILOG = """\
exit status: 0; 1 if no coordination service answers; 2 if usage or environment is wrong.

examples:
  srun --jobid 42 --overlap -n 1 slurm-resolver status 42
  watch -n 10 srun --jobid 42 --overlap -n 1 slurm-resolver status 42
  srun --jobid 42 --overlap -n 1 slurm-resolver status 42 --json"""

Worker = dict[str, Any]  # a `Report`, with rank and name

# The columns of the table, and what each has of a worker.
_COLUMNS = {
    "worker": "{name}",
    "epoch": "{epoch}",
    "step": "{step}",
    "stage": "{stage}",
    "doing": "{phase}",
    "ms per step": "{ms:.1f}",
    "data": "{data:.0%}",
    "between": "{between:.0%}",
    "reported": "{silent:.0f} s ago",
}
_NUMBERS = (1, 2, 5, 6, 7, 8)  # the columns that are aligned right

_NO_REPORT = (
    "no worker reports yet: only slurm_resolver.MultiWorkerMirroredStrategy and ResumableLoop do"
)
_MOST_REASONS = 3  # why no service answers


def add_arguments(add: OptionAdder) -> None:
    """Adds this subcommand's arguments."""
    add.parser.add_argument(
        "step",
        nargs="?",
        metavar="JOBID[_TASK][.STEP]",
        help="default: this job, and its newest step that answers",
    )
    add("--json", "print JSON")
    add(
        "--port PORT",
        "needed if the program sets port_base: port_base plus the largest task count on any node",
        type=number_type(1, LAST_PORT),
    )


def main(args: Namespace) -> int:
    """Prints the status; returns 1 if no service answers."""
    own = SlurmStep.read()
    job_id, _, step_id = (args.step or "").partition(".")
    if not job_id and not own.job_id:
        raise LaunchError("no job: give its id, as in slurm-resolver status 42")
    try:
        slurm_job = choose_job(show_jobs(JobRef(job_id))) if job_id else own_job(own)[1]
        addresses = list(_addresses(slurm_job, step_id, own, args.port))
    except OSError as error:
        raise LaunchError(f"job {job_id or own.job_label}: {error}") from None
    secret = find_secret(slurm_job)
    if secret:
        os.environ.setdefault(VARIABLE, secret)
    reasons: dict[str, None] = {}  # in their order, each once
    for address in addresses:
        try:
            answer = _ask(address)
        except (OSError, RendezvousError) as error:
            reasons[str(error)] = None
        else:
            _print(answer, args.json)
            return 0
    print_line(_explain(slurm_job, addresses, reasons), "slurm-resolver status")
    return 1


def _explain(
    slurm_job: Fields, addresses: Sequence[ServiceAddress], reasons: Collection[str]
) -> str:
    """Returns why no service answers: the job's state, or the reason at each address."""
    state = describe_state(slurm_job)
    if NO_ANSWER in reasons:
        return f"job {ref_of(slurm_job)}: local rank 0 on {addresses[0].node} {NO_ANSWER}"
    if state:
        return state
    why = shorten([*reasons], _MOST_REASONS) or "srun has started nothing"
    return (
        f"no coordination service answers in a step of job {ref_of(slurm_job)} ({why}): the "
        "program has not created a strategy of slurm_resolver, trains alone, or has ended. If it "
        "sets port_base, add --port with port_base plus the largest task count on any node."
    )


def describe_state(slurm_job: Fields) -> str:
    """Returns the state of a job (`show_job`) whose processes do not run; '' if they may."""
    state = slurm_job["JobState"]
    if state in RUNNING_STATES and state not in ("CONFIGURING", "STOPPED", "SUSPENDED"):
        return ""
    reason = slurm_job.get("Reason", "")
    because = "" if reason in UNSET else f" ({reason})"
    job_id = ref_of(slurm_job)
    return f"job {job_id} is {state}{because}; scontrol show job {job_id} says more"


def choose_job(jobs: Sequence[Fields]) -> Fields:
    """Returns the one job that an id means, of all that Slurm shows for it.

    The id of a job array means its only task, or the only one that runs; that of a heterogeneous
    job, its first component.

    Raises:
        LaunchError: for the id of an array where another number of tasks runs.
    """
    array = jobs[0].get("ArrayJobId")
    if not array or len(jobs) == 1:
        return jobs[0]
    running = [job for job in jobs if job["JobState"] in RUNNING_STATES]
    if len(running) == 1:
        return running[0]
    raise LaunchError(
        f"job {array} is an array, and {len(running)} of its tasks run: give the id of one, such "
        f"as {array}_1; squeue -j {array} shows them"
    )


def find_secret(slurm_job: Fields) -> str:
    """Returns the secret of a job whose batch file made one, which its processes here have.

    It returns "" if this user can read none of the job's processes, or if they have no secret.
    """
    ids = {slurm_job["JobId"], slurm_job.get("HetJobId")}
    for process in filter(str.isdecimal, os.listdir("/proc")):
        lines = read_proc(f"/proc/{process}/environ").split("\0")
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        if values.get("SLURM_JOB_ID") in ids and VARIABLE in values:
            return values[VARIABLE]
    return ""


def _addresses(
    slurm_job: Fields, step_id: str, own: SlurmStep, given_port: int | None
) -> Iterator[ServiceAddress]:
    """Yields the addresses where the service of a step may listen, newest step first.

    Raises:
        OSError: if Slurm does not answer.
    """
    cluster = own.cluster_name or show_config().get("ClusterName")
    job_id = slurm_job.get("HetJobId", slurm_job["JobId"])
    steps = []
    for fields in show_steps(slurm_job):
        name = fields.get("StepId", "").rpartition(".")[2]
        if name.isdigit() and step_id in ("", name):
            steps.append((int(name), fields))
    # The first node of a heterogeneous step is that of one of its components.
    for number, fields in sorted(steps, key=itemgetter(0), reverse=True):
        step = SlurmStep(
            cluster_name=cluster,
            job_id=job_id,
            step_id=str(number),
            restart_count=int(slurm_job.get("Restarts") or 0),
        )
        node = expand_hostlist(fields["NodeList"])[0]
        host = show_nodes("NodeAddr", node).get(node, node)
        # By default the last reserved port is left over; the layout, which decides, is not known
        # here. The first one is always a task's.
        reserved = SlurmStep.reserved_ports.parse(fields.get("ResvPorts", "")) or ()
        ports = [*reversed(reserved[1:]), derive_service_port(step)]
        for port in [given_port] if given_port else ports:
            yield ServiceAddress(host, port, node, identity_of(step), 0, 0, False)


def _ask(address: ServiceAddress) -> Message:
    """Returns what a service knows of the workers; raises as `open_connection`."""
    observer = Process(rank=0, role="observer", number=secrets.token_hex(8), pid=0)
    connection, answer = open_connection(address, observer)
    connection.socket.close()
    return answer


def _print(answer: Message, as_json: bool) -> None:
    workers: list[Worker] = answer["workers"]
    reports = {worker["name"]: _report_of(worker) for worker in workers}
    silent = [f"{who}, does not answer: stopped, or hanging in C code" for who in answer["silent"]]
    slow = None if silent else slowest(reports)
    if as_json:
        ranks = [worker["rank"] for worker in workers if worker["name"] == slow]
        shown = {"workers": workers, "slowest": ranks[0] if ranks else None, "silent": silent}
        print(json.dumps(shown))
        return
    lines = [_NO_REPORT]
    if workers:
        lines = [table(workers), describe(reports), *advise(reports)]
    print("\n".join(filter(None, [*lines, *silent])))


def _report_of(worker: Worker) -> Report:
    return Report(**{field: worker[field] for field in Report._fields})


def table(workers: list[Worker]) -> str:
    """Returns a line for each worker, below the headings."""
    rows = []
    for worker in workers:
        report = _report_of(worker)
        shares = {"data": share_of(report, DATA), "between": share_of(report, BETWEEN)}
        rows.append([cell.format(**worker, **shares) for cell in _COLUMNS.values()])
    return "\n".join(aligned([[*_COLUMNS], *rows], _NUMBERS))
