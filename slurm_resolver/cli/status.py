"""`slurm-resolver status`: what each worker of a running step does."""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from slurm_resolver.cli.options import OptionAdder
from slurm_resolver.cli.screen import reader_has_ended
from slurm_resolver.cluster.addresses import identity_of
from slurm_resolver.cluster.ports import derive_service_port
from slurm_resolver.coordination import ServiceAddress, wire
from slurm_resolver.coordination.progress import IDLE
from slurm_resolver.coordination.wire import Message, Process, WireError, encode, open_connection
from slurm_resolver.errors import LaunchError, RendezvousError
from slurm_resolver.log import print_line
from slurm_resolver.slurm.hostlist import expand_hostlist
from slurm_resolver.slurm.scontrol import (
    RUNNING_STATES,
    Fields,
    JobRef,
    own_job,
    ref_of,
    show_config,
    show_jobs,
    show_nodes,
    show_steps,
)
from slurm_resolver.slurm.step import SlurmStep
from slurm_resolver.wording import aligned, shorten

DESCRIPTION = """\
Shows for each worker of a running step: epoch, step, what it does, milliseconds per step, and the
shares of time spent waiting for data and between steps. Below, it says where the time of an epoch
goes. Run it on a node of the job. For a job without such a step, it says what Slurm knows."""

EPILOG = """\
exit status: 0; 1 if no coordination service answers; 2 if usage or environment is wrong.

examples:
  srun --jobid 42 --overlap -n 1 slurm-resolver status 42
  srun --jobid 42 --overlap -n 1 --pty slurm-resolver status 42 --watch
  srun --jobid 42 --overlap -n 1 slurm-resolver status 42 --json"""

Worker = dict[str, Any]  # a `Report`, with rank and name

_WATCH_SECONDS = 5.0  # the workers report as often
_CLEAR = "\x1b[H\x1b[2J"  # clears a terminal
_SILENT_SECONDS = 20.0  # a worker without a report for this long is marked
_SLOWER = 0.05  # the slowest worker spends this much more of its time outside of steps
_WAITING = 0.2  # from this share on, waiting for data is worth a remedy
_MOST_NAMES = 20  # tasks of a job array that a message names

# What Slurm's states of a job mean, and its reasons why a job is pending. {0} is the id of the job,
# other fields are those of `scontrol show job`.
_STATES = {
    "SUSPENDED": "all its processes are stopped; scontrol resume {0} lets them continue",
    "STOPPED": "all its processes are stopped; scancel --signal=CONT {0} lets them continue",
    "CONFIGURING": "Slurm is preparing its nodes",
    "COMPLETING": "it has ended, and Slurm is waiting for its last processes on {NodeList}",
    "SPECIAL_EXIT": "it is held; scontrol release {0} lets it start",
    "JobHeldUser": "it is held; scontrol release {0} lets it start",
    "JobHeldAdmin": "an administrator holds it: ask the site",
    "Dependency": "it is waiting for another job; squeue -o %E -j {0} shows which",
    "DependencyNeverSatisfied": "it can never start: its dependency can no longer be satisfied",
    "BeginTime": "it may start at {StartTime}: it asked for a start time, or was requeued",
}


def add_arguments(add: OptionAdder) -> None:
    """Adds this subcommand's arguments."""
    add.parser.add_argument(
        "step",
        nargs="?",
        metavar="JOBID[_TASK][.STEP]",
        help="default: this job, and its newest step that answers",
    )
    add("--json", "print JSON")
    add("--watch", "print it every 5 s until the step ends; a terminal shows it in place")
    add(
        "--port PORT",
        "needed if the program sets port_base: port_base plus the largest task count on any node",
        type=int,
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
    job_id = ref_of(slurm_job)
    reason = ""
    for address in addresses:
        try:
            workers = _ask(address)["workers"]
            break
        except RendezvousError as error:  # the service answers, but the secret is missing
            reason = f" ({error})"
        except (OSError, WireError) as error:
            reason = reason or f" ({address.host}:{address.port}: {error})"
    else:
        text = describe_job(job_id, slurm_job) or (
            f"no coordination service answers in a step of job {job_id}"
            f"{reason}: the program has not created a strategy of slurm_resolver, trains alone, or "
            "has ended. If it sets port_base, add --port with port_base plus the largest task "
            "count on any node."
        )
        print_line(text, "slurm-resolver status")
        return 1
    with suppress(OSError, WireError, KeyboardInterrupt):  # the step has ended
        while True:
            _print(workers, args.json)
            if not args.watch or reader_has_ended():
                break
            time.sleep(_WATCH_SECONDS)
            workers = _ask(address)["workers"]
            print(_CLEAR if sys.stdout.isatty() and not args.json else "", end="")
    return 0


def choose_job(jobs: list[Fields]) -> Fields:
    """Returns the one job that an id means, of all that Slurm shows for it.

    The id of a job array means its only task, or the only one that runs; that of a heterogeneous
    job, its first component.

    Raises:
        LaunchError: for the id of an array where another number of tasks runs.
    """
    array = jobs[0].get("ArrayJobId")
    running = [job for job in jobs if job["JobState"] in RUNNING_STATES]
    if array and len(running) == 1:
        return running[0]
    if array and len(jobs) > 1:
        # Slurm shows the newest task first, and those that wait together as one: 3-9%2.
        tasks = [f"{array}_{job['ArrayTaskId']} is {job['JobState']}" for job in reversed(jobs)]
        raise LaunchError(
            f"job {array} is an array: give one of its tasks: {shorten(tasks, _MOST_NAMES)}"
        )
    return jobs[0]


def _print(workers: list[Worker], as_json: bool) -> None:
    slow = slowest(workers)
    if as_json:
        print(json.dumps({"workers": workers, "slowest": slow and slow["rank"]}), flush=True)
        return
    if not workers:
        print(
            "no worker reports yet: only slurm_resolver.MultiWorkerMirroredStrategy and "
            "ResumableLoop do",
            flush=True,
        )
        return
    lines = [describe_epoch(slow or workers[0]), advise(workers)]
    if slow:
        lines.append(
            f"slowest: {slow['name']}, which spends {min(1.0, _outside_of_steps(slow)):.0%} of its "
            "time outside of steps"
        )
    below = "\n".join(filter(None, lines))
    print(table(workers) + (f"\n\n{below}" if below else ""), flush=True)


def describe_epoch(worker: Worker) -> str:
    """Returns what a worker has spent this epoch with so far; '' before its first step."""
    spent = sorted(worker["seconds"].items(), key=lambda item: -item[1])
    total = sum(worker["seconds"].values())
    if not worker["steps"]:
        return ""
    shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in spent)
    return (
        f"this epoch: {total:.1f} s, {1000 * total / worker['steps']:.1f} ms per step: {shares}"
        f" ({worker['name']})"
    )


def advise(workers: list[Worker]) -> str:
    """Returns what to do if all workers wait for data for long; else ''."""
    share = min(float(worker["waiting"]) for worker in workers)
    if share < _WAITING:
        return ""
    remedy = "end the dataset with prefetch(tf.data.AUTOTUNE), and give each task more CPUs"
    if any(worker["whole"] for worker in workers):
        remedy = "each worker produces all rows; expensive work belongs in a map before batch(n)"
    return f"data: all workers wait for it {share:.0%} of the time: {remedy} (docs/data.md)"


def describe_job(job_id: str, slurm_job: Fields) -> str:
    """Returns why no step of a job (`show_job`) can answer, as Slurm says it; '' if one may."""
    state = slurm_job.get("JobState", "")
    reason = slurm_job.get("Reason", "None")
    if state == "PENDING":
        state += f" ({reason})"
        known = ""
        if slurm_job.get("StartTime", "Unknown") != "Unknown":
            known = "Slurm expects it to start at {StartTime}"
        meaning = _STATES.get(reason, known)
    else:
        meaning = _STATES.get(state, "it has ended, with exit status {ExitCode}")
        if state in RUNNING_STATES and state not in _STATES:
            return ""
    meaning = meaning.format(job_id, **slurm_job)
    return f"job {job_id} is {state}" + (f": {meaning}" if meaning else "")


def _addresses(
    slurm_job: Fields, step_id: str, own: SlurmStep, given_port: int | None
) -> Iterator[ServiceAddress]:
    """Yields the addresses where the service of a step may listen, newest step first.

    Raises:
        OSError: if Slurm does not answer.
    """
    cluster = own.cluster_name or show_config().get("ClusterName")
    job_id = slurm_job.get("HetJobId", slurm_job["JobId"])
    numbered = defaultdict(list)
    for fields in show_steps(slurm_job):
        name = fields.get("StepId", "").rpartition(".")[2]
        if name.isdigit() and step_id in ("", name):
            numbered[int(name)].append(fields)
    for number, records in sorted(numbered.items(), reverse=True):
        if (own.job_id, own.step_id, step_id) == (job_id, str(number), ""):
            continue  # the step that this command runs in
        step = SlurmStep(
            cluster_name=cluster,
            job_id=job_id,
            step_id=str(number),
            restart_count=int(slurm_job.get("Restarts") or 0),
        )
        nodes = [node for fields in records for node in expand_hostlist(fields["NodeList"])]
        ports = [given_port or derive_service_port(step)]
        if "HetJobId" not in slurm_job:
            nodes = nodes[:1]  # else the first of all components' nodes, in an order of Slurm's own
            # By default the last reserved port is left over; the layout, which decides, is not
            # known here. Heterogeneous steps do not use reserved ports.
            if not given_port:
                listed = SlurmStep.reserved_ports.parse(records[0].get("ResvPorts", "")) or ()
                ports = [*reversed(listed[1:]), *ports]
        hosts = show_nodes("NodeAddr", ",".join(nodes))
        for node in nodes:
            for port in ports:
                yield ServiceAddress(
                    hosts.get(node, node), port, node, identity_of(step), 0, 0, False
                )


def _ask(address: ServiceAddress) -> Message:
    """Returns what a service knows of the workers; raises as `open_connection`."""
    observer = Process(rank=0, role="observer", number=secrets.token_hex(8), pid=0)
    sock, lines, answer = open_connection(address, observer)
    with sock, lines:
        if "refused" in answer:
            raise WireError(str(answer["refused"]))
        sock.sendall(encode({}))
        return wire.read(lines)


def slowest(workers: list[Worker]) -> Worker | None:
    """Returns the worker that the others wait for; None if no worker is clearly slower.

    The workers wait for each other in a step. The slowest spends more time than the others waiting
    for data, or between steps.
    """
    if not workers:
        return None
    worst = max(workers, key=_outside_of_steps)
    slower = _outside_of_steps(worst) - statistics.median_low(map(_outside_of_steps, workers))
    return worst if slower >= _SLOWER else None


def _outside_of_steps(worker: Worker) -> float:
    """Returns the share of its time that a worker spends waiting for data, or between steps."""
    return float(worker["waiting"] + worker["outside"])


def table(workers: list[Worker]) -> str:
    """Returns a line for each worker, below the headings."""
    rows = [("worker", "epoch", "step", "doing", "ms per step", "data", "between")]
    for worker in workers:
        doing = "idle" if worker["phase"] == IDLE else str(worker["phase"])
        if worker["stage"] not in ("", "training") and worker["stage"] not in doing:
            doing = f"{worker['stage']}: {doing}"
        if worker["silent"] > _SILENT_SECONDS:
            doing = f"{doing}; no report for {worker['silent']:.0f} s"
        rows.append(
            (
                worker["name"],
                str(worker["epoch"] or "-"),
                str(worker["step"] or "-"),
                doing,
                f"{worker['ms']:.1f}" if worker["ms"] else "-",
                f"{worker['waiting']:.0%}",
                f"{worker['outside']:.0%}",
            )
        )
    return "\n".join(aligned(rows, numbers=(1, 2, 4, 5, 6)))
