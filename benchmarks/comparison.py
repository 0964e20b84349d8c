"""Compares two variants of a step at several link rates, and makes tables of the results."""

from __future__ import annotations

import statistics
from typing import Dict, List, NamedTuple, Optional, Sequence

import report
from hosts import Measured, Step


class Comparison(NamedTuple):
    """What was measured with one layout of the tasks.

    `measured` has the rates in Mbit/s as keys, and None for links without a limit. Its values have
    the variants as keys: this resolver's choice first, then the one that it is compared with.
    """

    label: str
    measured: Dict[Optional[int], Dict[str, List[Measured]]]

    @property
    def variants(self) -> List[str]:
        """The names of the two variants."""
        return list(self.measured[None])

    def busiest(self, variant: str) -> float:
        """Returns the bytes that the busiest host sends in a step."""
        return statistics.median(max(one.sent.values()) for one in self.measured[None][variant])

    def mean(self, variant: str) -> float:
        """Returns the bytes that a host sends in a step, as the mean of all hosts."""
        means = [statistics.mean(one.sent.values()) for one in self.measured[None][variant]]
        return statistics.median(means)


def compare(label: str, step: Step, rates: Sequence[int], rounds: int) -> Comparison:
    """Measures the variants of a step without a limit on the links, and then at each rate."""
    measured = {}
    for rate in [None, *rates]:
        step.hosts.limit_links(rate)
        measured[rate] = step.measure_in_turn(times=2 if rate is None else 1, rounds=rounds)
    step.hosts.limit_links(None)
    return Comparison(label, measured)


def seconds_tables(
    heading: str, comparisons: Sequence[Comparison], rates: Sequence[int], rounds: int
) -> List[str]:
    """Returns a caption and a table for each rate, and for links without a limit."""
    parts = []
    for rate in [*rates, None]:
        links = "no limit on the links" if rate is None else f"links of {rate:,} Mbit/s"
        parts.append(f"Seconds of a step with {links}, medians of {rounds} rounds:")
        parts.append(_seconds_table(heading, comparisons, rate))
    return parts


def _seconds_table(heading: str, comparisons: Sequence[Comparison], rate: Optional[int]) -> str:
    """Returns the seconds of a step, and what limits it.

    "Link alone" is the time that the busiest link needs for its bytes. If a step takes longer and
    the CPUs are busy, they are the limit: they do the work of all hosts.
    """
    rows, headings = [], [heading]
    for comparison in comparisons:
        ours, other = comparison.variants
        measured = comparison.measured[rate]
        pairs = zip(measured[ours], measured[other])
        ratio = statistics.median(theirs.seconds / own.seconds for own, theirs in pairs)
        headings, cells = [heading, f"{other} ÷ {ours}"], [f"{ratio:.2f}"]
        for variant in (ours, other):
            headings += [f"{variant}, s", "link alone, s", "CPUs busy"]
            alone = "–" if rate is None else f"{comparison.busiest(variant) * 8e-6 / rate:.3f}"
            busy = statistics.median(one.busy for one in measured[variant])
            seconds = statistics.median(one.seconds for one in measured[variant])
            cells += [f"{seconds:.3f}", alone, f"{busy:.0%}"]
        rows.append([comparison.label, *cells])
    return report.table(headings, rows)
