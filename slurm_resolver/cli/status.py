"""`slurm-resolver status`: what each worker of a running step does."""

from __future__ import annotations

import json
from argparse import Namespace

from slurm_resolver.coordination.progress import Report
from slurm_resolver.coordination.usage import (
    BETWEEN,
    DATA,
    Workers,
    advise,
    describe,
    shares_of,
    slowest,
)
from slurm_resolver.coordination.wire import Message
from slurm_resolver.diagnostics.running_job import ask_service
from slurm_resolver.errors import LaunchError
from slurm_resolver.slurm.step_variables import SlurmStep
from slurm_resolver.wording import aligned

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


OPTIONS = {
    "step JOBID[_TASK][.STEP]": "default: this job, and its newest step that answers",
    "--json": "print JSON",
    "--port PORT": (
        "needed if the program sets port_base: port_base plus the largest task count on any node"
    ),
}


def main(args: Namespace) -> int:
    """Prints the status."""
    job_id, _, step_id = (args.step or "").partition(".")
    job_id = job_id or SlurmStep.read().job_id
    if not job_id:
        raise LaunchError("no job: give its id, as in slurm-resolver status 42")
    answer = ask_service(job_id, step_id, args.port)
    workers: list[Message] = answer["workers"]
    reports = {
        worker["name"]: Report(**{field: worker[field] for field in Report._fields})
        for worker in workers
    }
    silent = [f"{who}, does not answer: stopped, or hanging in C code" for who in answer["silent"]]
    if args.json:
        slow = None if silent else slowest(reports)
        rank_of = {worker["name"]: worker["rank"] for worker in workers}
        print(json.dumps({"workers": workers, "slowest": rank_of.get(slow), "silent": silent}))
        return 0
    lines = [table(reports), describe(reports), *advise(reports)] if workers else [_NO_REPORT]
    print("\n".join(filter(None, [*lines, *silent])))
    return 0


def table(workers: Workers) -> str:
    """Returns a line for each worker, below the headings."""
    rows = [[*_COLUMNS]]
    for name, report in workers.items():
        shares = shares_of(report)
        values = {
            **report._asdict(),
            "name": name,
            "data": shares[DATA],
            "between": shares[BETWEEN],
        }
        rows.append([cell.format(**values) for cell in _COLUMNS.values()])
    return "\n".join(aligned(rows, _NUMBERS))
