"""Compares two variants of a step at several link rates, and makes tables of the results."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import report
from hosts import Measured, Step


class Comparison(NamedTuple):
    """The measurements of one layout of the tasks.

    Attributes:
        label: the layout.
        size: the bytes that a step computes with, which are the unit of `busiest` and `mean`.
        measured: the results by the rate in Mbit/s, or None for links without a limit, and then by
            the variant: this resolver's choice first, and then the other one.
    """

    label: str
    size: int
    measured: dict[int | None, dict[str, list[Measured]]]

    def busiest(self, variant: str) -> float:
        """Returns what the busiest host sends in a step."""
        return statistics.median(
            max(one.sent.values()) / self.size for one in self.measured[None][variant]
        )

    def mean(self, variant: str) -> float:
        """Returns what a host sends in a step, as the mean of all hosts."""
        return statistics.median(
            statistics.mean(one.sent.values()) / self.size for one in self.measured[None][variant]
        )


def add_options(parser: argparse.ArgumentParser, size: int) -> None:
    """Adds the options of `compare`."""
    text = "rates of the links [1000 100]"
    parser.add_argument("--mbit", type=int, nargs="*", default=[1000, 100], metavar="N", help=text)
    text = "bytes that a step computes with [%(default)s]"
    parser.add_argument("--bytes", type=int, default=size, metavar="N", help=text)


def compare(label: str, step: Step, args: argparse.Namespace) -> Comparison:
    """Measures the variants of a step without a limit on the links, and then at each rate."""
    measured = {}
    for rate in [None, *args.mbit]:
        step.hosts.limit_links(rate)
        measured[rate] = step.measure_in_turn(2 if rate is None else 1, args.rounds)
    step.hosts.limit_links(None)
    return Comparison(label, args.bytes, measured)


def seconds_tables(
    heading: str, comparisons: Sequence[Comparison], args: argparse.Namespace
) -> list[str]:
    """Returns a caption and a table for each rate, and for links without a limit."""
    parts = []
    for rate in [*args.mbit, None]:
        links = "no limit on the links" if rate is None else f"links of {rate:,} Mbit/s"
        parts.append(f"Seconds of a step with {links}, medians of {args.rounds} rounds:")
        parts.append(_seconds_table(heading, comparisons, rate))
    return parts


def _seconds_table(heading: str, comparisons: Sequence[Comparison], rate: int | None) -> str:
    """Returns a table of the seconds of a step, and of what limits it.

    "Link alone" is the time that the busiest link needs for its bytes. If a step takes longer and
    the CPUs are busy, they are the limit: they do the work of all hosts.
    """
    rows, headings = [], [heading]
    for comparison in comparisons:
        measured = comparison.measured[rate]
        (ours, own_results), (other, other_results) = measured.items()
        pairs = zip(own_results, other_results)
        ratio = statistics.median(theirs.seconds / own.seconds for own, theirs in pairs)
        headings, cells = [heading, f"{other} ÷ {ours}"], [f"{ratio:.2f}"]
        for variant, results in measured.items():
            headings += [f"{variant}, s", "link alone, s", "CPUs busy"]
            megabits = comparison.busiest(variant) * comparison.size * 8e-6
            alone = "–" if rate is None else f"{megabits / rate:.3f}"
            busy = statistics.median(one.busy for one in results)
            seconds = statistics.median(one.seconds for one in results)
            cells += [f"{seconds:.3f}", alone, f"{busy:.0%}"]
        rows.append([comparison.label, *cells])
    return report.table(headings, rows)
