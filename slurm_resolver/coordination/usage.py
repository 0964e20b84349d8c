"""Where the time of a training went, and what to do about the largest loss.

Each worker counts the seconds of its training by cause, in the `seconds` of its `Report`. Workers
wait for each other in every step, so that one that is slow for any cause costs the others time: for
them it is WAITING.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from operator import attrgetter, itemgetter
from statistics import mean, median_low

from slurm_resolver.coordination.progress import Report
from slurm_resolver.wording import brief, counted

# Causes, in the words of messages. Where COMPUTING and WAITING are not told apart, it is STEPS.
START = "start"
COMPUTING = "computing"
WAITING = "waiting for other workers and sending"
STEPS = "steps"
DATA = "waiting for data"
BETWEEN = "between steps"
SAVING = "saving"
VALIDATION = "validation"
# In these, a worker does not wait for the others. STEPS are left out: it may wait in them.
_BUSY = (
    DATA,
    BETWEEN,
    SAVING,
    COMPUTING,
)

_SHOWN = 0.005  # shares below this one are left out
_SLOWER = 0.05  # the slowest worker loses this much less of its time to the others
# A loss is worth a remedy from this share of the time on, and from so many seconds.
_LOSS = 0.2
_LOST_SECONDS = 10.0

_REMEDIES = {
    DATA: (
        "end the dataset with prefetch(tf.data.AUTOTUNE), and give each task more CPUs "
        "(docs/data.md)"
    ),
    WAITING: (
        "a step is short for this network: larger batches, fewer workers, or NCCL over a faster "
        "network (docs/gpus.md)"
    ),
    BETWEEN: (
        "callbacks, the start of the data in each epoch, and other code between the steps: run it "
        "less often"
    ),
    SAVING: "save less often, or to a faster file system (docs/fault_tolerance.md)",
    VALIDATION: "validate less often (validation_freq), or in larger batches",
}
# What to do about the one worker for which the others wait.
_REMEDIES_OF_ONE = {
    **_REMEDIES,
    DATA: "its node reads or decodes more slowly: compare its disk and CPUs with the others'",
    COMPUTING: (
        "look for other processes on its node (top) and for GPUs that are throttled "
        "(nvidia-smi -q -d PERFORMANCE), or leave the node out (--exclude)"
    ),
}
_WHOLE_STEPS = (
    "every worker computed whole batches, so that more workers are not faster: the line with "
    '"cannot be split" says why (docs/keras.md)'
)

Workers = Mapping[str, Report]  # by name

# The lines that a training prints at its end, after a rank or a time.
LINE = re.compile(r"slurm_resolver: (usage of (?:fit|the loop): .+)")


def summarize(what: str, workers: Workers, nodes: int) -> list[str]:
    """Returns the lines for the end of a training; none if it had no step.

    Args:
        what: has ended: "fit" or "the loop".
        workers: of the training.
        nodes: on how many nodes they run.
    """
    line = describe(workers, nodes)
    return [f"usage of {what}: {text}" for text in (line, *advise(workers))] if line else []


def describe(workers: Workers, nodes: int = 0) -> str:
    """Returns a line with where the time of a training went: the mean of its workers' shares.

    It is "" before the end of the first step.

    Args:
        workers: of the training.
        nodes: on how many nodes they run; 0 if that is not known.
    """
    reports = workers.values()
    most = max(reports, key=attrgetter("steps"), default=Report())
    if not most.steps:
        return ""
    shares = sorted(shares_of(*reports).items(), key=itemgetter(1), reverse=True)
    parts = [f"{cause} {share:.0%}" for cause, share in shares if share >= _SHOWN]
    memory = max(report.gpu_memory for report in reports)
    if memory:
        parts.append(f"GPU memory at most {memory / 2**30:.1f} GiB")
    busy = [report.gpu_busy for report in reports if report.gpu_busy is not None]
    if busy:
        parts.append(f"GPUs busy {mean(busy):.0%} of the time")
    slow = slowest(workers)
    if slow:
        parts.append(f"slowest: {slow}")
    pace = f", {most.ms:.1f} ms a step (median)" if most.ms else ""  # of one step, it is not known
    place = f" on {counted(nodes, 'node')}" if nodes else ""
    return (
        f"{counted(most.epochs, 'epoch')}, {counted(most.steps, 'step')} in "
        f"{brief(seconds_of(workers))} s with {counted(len(workers), 'worker')}{place}{pace}: "
        f"{', '.join(parts)}"
    )


def advise(workers: Workers) -> list[str]:
    """Returns a line with the largest loss of time and its remedy, and one for what is undivided.

    A loss of less than a fifth of the time, or of a few seconds, is not worth a line.
    """
    lines = []
    slow = slowest(workers)
    # Where it is not known how long the others wait, they wait for the slowest one.
    waits_unseen = slow and STEPS in workers[slow].seconds
    shares = shares_of(*([workers[slow]] if waits_unseen else workers.values()))
    cause = max(_REMEDIES, key=shares.__getitem__)
    share = shares[cause]
    whole = [report.whole_data for report in workers.values() if report.whole_data]
    if share >= _LOSS and share * seconds_of(workers) >= _LOST_SECONDS:
        # A worker that waits nearly as long as the others waits for the network, as they do.
        is_slow = slow and (
            waits_unseen or (cause == WAITING and shares_of(workers[slow])[cause] < share / 2)
        )
        if is_slow and cause != VALIDATION:
            lines.append(_advise_of_one(workers, slow))
        elif cause != DATA or not whole:
            lines.append(f"{cause} takes {share:.0%} of the time: {_REMEDIES[cause]}")
    if whole:
        lines.append(
            f"each worker produced all rows of the data, and kept only its own: {whole[0]}. Put "
            "expensive work into a map directly before batch(n) (docs/data.md)"
        )
    if any(report.whole_steps for report in workers.values()):
        lines.append(_WHOLE_STEPS)
    return lines


def slowest(workers: Workers) -> str:
    """Returns the name of the worker for which the others wait; "" if none is clearly slower."""
    busy = {
        name: sum(shares_of(report)[cause] for cause in _BUSY) for name, report in workers.items()
    }
    slow = max(busy, key=busy.__getitem__, default="")
    if not slow or busy[slow] - median_low(busy.values()) < _SLOWER:
        return ""
    return slow


def seconds_of(workers: Workers) -> float:
    """Returns for how long the workers have trained."""
    return max((sum(report.seconds.values()) for report in workers.values()), default=0.0)


def shares_of(*reports: Report) -> Mapping[str, float]:
    """Returns which share of the workers' time had each cause: a mean; 0 for any other cause."""
    shares = defaultdict[str, float](float)
    for report in reports:
        total = sum(report.seconds.values()) or 1.0
        for cause, seconds in report.seconds.items():
            shares[cause] += seconds / total / len(reports)
    return shares


def _advise_of_one(workers: Workers, slow: str) -> str:
    """Returns what the slowest worker does for longer than the others, and the remedy."""
    own = shares_of(workers[slow])
    usual = shares_of(*[report for name, report in workers.items() if name != slow])
    cause = max(_BUSY, key=lambda cause: own[cause] - usual[cause])
    return (
        f"the others wait for {slow}: {cause} takes {own[cause]:.0%} of its time, and "
        f"{usual[cause]:.0%} of theirs: {_REMEDIES_OF_ONE[cause]}"
    )
