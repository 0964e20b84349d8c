"""What each worker is doing: finds stuck workers, and answers `slurm-resolver status`.

A worker is in a stage (training, validation), in an epoch and a step of it, and in a phase: what it
does there. It makes a `Report` of that every 5 s. Workers wait for each other in each step, so that
a stuck one stops all: a stall. When no step ends for too long, the service's `Monitor` tells all
tasks which workers are behind: the others wait for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from slurm_resolver.coordination import TaskName
from slurm_resolver.coordination.wire import Message, Process, Send
from slurm_resolver.wording import ranges_of, shorten

# Phases. Those in _PATIENT may take _PATIENCE times as long, as they do on a good run.
IDLE = "outside of fit, evaluate and predict"
PREPARING = "preparing"
COMPILING = "compiling"
START = "in a callback, or at the start of its data"
FIRST = "in the first step"
DATA = "waiting for data"
STEP = "in the step"
CALLBACK = "in a callback"
SAVING = "saving"
MEETING = "waiting for all to call it"
_PATIENT = (
    PREPARING,
    COMPILING,
    FIRST,
    SAVING,
)
_PATIENCE = 12
# stages; others are "evaluate" and "predict"
TRAINING = "training"
VALIDATION = "validation"

_REPORT_SECONDS = 5.0
_REPEAT_SECONDS = 300.0
_MOST_NAMES = 5
_MOST_TRACEBACKS = 8
_PLURALS = {"is": "are", "has": "have", "waits": "wait"}


class Report(NamedTuple):
    """The progress of a worker, as it reports it."""

    stage: str = ""  # "" outside of `fit`, `evaluate` and `predict`
    epoch: int = 0  # counted from 1
    step: int = 0  # counted from 1; 0 before the first one
    begun: int = 0  # the number of steps of all stages
    phase: str = IDLE
    age: float = 0.0  # seconds since the phase began
    ms: float = 0.0  # the median duration of a step; 0 if unknown
    waiting: float = 0.0  # the share of this epoch spent waiting for data
    outside: float = 0.0  # the share of this epoch spent between steps
    silent: float = 0.0  # seconds since the report came; `age` includes them
    # This epoch so far: how many steps have begun, and how many seconds by what was done in them.
    steps: int = 0
    seconds: Mapping[str, float] = {}
    whole: bool = False  # whether this worker produces all rows of the data, not only its own

    def where(self, with_epoch: bool = True) -> str:
        """Returns the step it is in, such as "in step 812 of epoch 3"."""
        text = f"in step {self.step}" if self.step else "before step 1"
        if self.stage != TRAINING:
            text += " of the validation" if self.stage == VALIDATION else f" of {self.stage}"
        fits = self.stage in (TRAINING, VALIDATION)
        return f"{text} of epoch {self.epoch}" if with_epoch and fits else text


Reports = Mapping[TaskName, Report]


def report_seconds(limit: float) -> float:
    """Returns the seconds between two reports of a worker."""
    return min(_REPORT_SECONDS, limit / 4) if limit else _REPORT_SECONDS


def find_stall(workers: Reports, limit: float, silence: float) -> list[TaskName]:
    """Returns the workers that the others wait for if none has done anything for too long.

    They are those that have not reported for `silence` seconds, or are in the earliest step; all
    workers if that is unknown. Without a stall it returns [].
    """
    reports = workers.values()
    phases = {report.phase for report in reports}
    if phases == {IDLE}:
        return []
    behind = [task for task, report in workers.items() if report.silent > silence]
    if not behind:
        least = min(report.begun for report in reports)
        late = [task for task, report in workers.items() if report.begun == least]
        waits = {STEP, MEETING}
        if len(late) == len(workers) and phases - {IDLE, *waits}:
            waits.add(IDLE)
        behind = [task for task in late if workers[task].phase not in waits] or late
    # An idle worker may prepare its data for long before a fit, but not while the others train.
    if MEETING in phases or any(workers[task].phase in _PATIENT for task in behind):
        limit *= _PATIENCE
    limit = max(limit, *(report.ms / 100 for report in reports))  # 10 steps
    return behind if min(report.age for report in reports) > limit else []


def describe_stall(workers: Reports, behind: Sequence[TaskName], silence: float) -> str:
    """Returns the line that every task logs."""
    with_epoch = len({report.epoch for report in workers.values()}) > 1
    # by whether they are behind, and what they do: a verb and the rest
    groups = defaultdict(list)
    for task, report in workers.items():
        is_behind = task in behind
        where = report.where(with_epoch)
        verb = "is"
        does = f"{where}, {report.phase}"
        if report.silent > silence:
            verb = "has"
            does = f"not reported for {report.silent:.0f} s; the last report was {where}"
        elif report.phase == STEP:
            verb = "is" if is_behind else "waits"
            does = where
        elif report.phase in (IDLE, PREPARING):
            does = report.phase
        groups[is_behind, verb, does].append(task)
    begin = f"no step for {min(report.age for report in workers.values()):.0f} s: "
    first = workers[behind[0]]
    in_step = len(groups) == 1 and first.phase == STEP and first.silent <= silence
    if in_step and len(behind) > 1:
        nodes = list(dict.fromkeys(task.node for task in behind))
        return (
            f"{begin}{_group(behind)} wait for each other {first.where()}, in its collective "
            f"operations, on {shorten(nodes, _MOST_NAMES)}. Look at the network between these "
            "nodes, and at their GPUs (nvidia-smi, dmesg)"
        )
    parts = []
    for (is_behind, verb, does), tasks in sorted(groups.items(), key=lambda group: group[0][0]):
        names = shorten([*map(str, tasks)], _MOST_NAMES) if is_behind else _group(tasks)
        parts.append(f"{names} {verb if len(tasks) == 1 else _PLURALS[verb]} {does}")
    return begin + "; ".join(parts)


def _group(tasks: Sequence[TaskName]) -> str:
    """Returns tasks by their jobs and ids, such as "chief 0, workers 0 to 6"."""
    texts = []
    for job in dict.fromkeys(task.job for task in tasks):
        ids = [task.task_id for task in tasks if task.job == job]
        noun = job if len(ids) == 1 else f"{job}s"
        texts.append(f"{noun} {' and '.join(ranges_of(ids))}")
    return ", ".join(texts).replace("-", " to ")


class Monitor:
    """The service's knowledge of the workers; it runs in the service's thread."""

    # the seconds without a step that make a stall; 0 for never
    _limit = 0.0
    # when the last stall was reported, and whether it has not ended
    _told_at = float("-inf")
    _is_stalled = False

    def __init__(self, send: Send) -> None:
        self._send = send
        # by rank: when the last report came, whose it is, and the report
        self._reports: dict[int, tuple[float, TaskName, Report]] = {}
        # the last tick, and the first one after this process was stopped
        self._ticked_at = monotonic()
        self._awake_at = self._ticked_at

    def message(self, process: Process, message: Message) -> None:
        """Takes a worker's report."""
        self._limit = message["limit"]
        task = TaskName(process.rank, *message["task"])
        self._reports[process.rank] = (monotonic(), task, Report(*message["progress"]))

    def ended(self, process: Process) -> None:
        """Forgets a worker."""
        self._reports.pop(process.rank, None)

    def tick(self, now: float) -> None:
        """Reports a stall, and its end. The service calls it several times a second."""
        seconds = report_seconds(self._limit)
        silence = 3 * seconds
        if now - self._ticked_at > seconds:  # this process was stopped, not the others
            self._awake_at = now
        self._ticked_at = now
        if not (self._limit and self._reports) or now - self._awake_at < 2 * seconds:
            return
        workers = self._workers(now)
        behind = find_stall(workers, self._limit, silence)
        if behind and now - self._told_at > _REPEAT_SECONDS:
            ranks = [task.rank for task in behind]
            # A stopped process cannot end itself. If one is silent, all that are behind are.
            is_stopped = workers[behind[0]].silent > silence
            self._send(
                None,
                {
                    "stall": describe_stall(workers, behind, silence),
                    "behind": [] if self._is_stalled else ranks[:_MOST_TRACEBACKS],
                    "end": [*self._reports] if is_stopped else ranks,
                },
            )
            self._told_at = now
            self._is_stalled = True
        elif not behind and self._is_stalled:
            self._is_stalled = False
            self._send(None, {"stall": "steps advance again", "behind": [], "end": []})

    def status(self) -> Message:
        """Returns what `slurm-resolver status` shows."""
        return {
            "workers": [
                {"rank": task.rank, "name": str(task), **report._asdict()}
                for task, report in sorted(self._workers(monotonic()).items())
            ]
        }

    def _workers(self, now: float) -> Reports:
        """Returns the last reports, with their ages by now."""
        return {
            task: report._replace(age=round(report.age + now - at, 1), silent=round(now - at, 1))
            for at, task, report in self._reports.values()
        }
