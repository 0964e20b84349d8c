"""What two teams of one step took and sent, with links of several rates, and the table of it."""

from __future__ import annotations

import statistics
from typing import Dict, List, NamedTuple, Optional, Sequence

import report
from hosts import Measured, Step


class Comparison(NamedTuple):
    """One layout.

    `measured` is by rate in Mbit/s, None being no limit, and then by team: this resolver's choice,
    and the peer's.
    """

    label: str
    measured: Dict[Optional[int], Dict[str, List[Measured]]]

    @property
    def teams(self) -> List[str]:
        """Their names, the peer's last."""
        return list(self.measured[None])

    def busiest(self, team: str) -> float:
        """Bytes that the busiest host sends in a step."""
        return statistics.median(max(one.sent.values()) for one in self.measured[None][team])

    def mean(self, team: str) -> float:
        """Bytes that a host sends in a step, the mean of all hosts."""
        means = [statistics.mean(one.sent.values()) for one in self.measured[None][team]]
        return statistics.median(means)


def compare(label: str, step: Step, rates: Sequence[int], rounds: int) -> Comparison:
    """Lets the teams of a step take turns: with no limit on the links, then with each."""
    measured = {}
    for rate in [None, *rates]:
        step.hosts.limit(rate)
        measured[rate] = step.compare(times=2 if rate is None else 1, rounds=rounds)
    step.hosts.limit(None)
    return Comparison(label, measured)


def seconds_tables(
    heading: str, compared: Sequence[Comparison], rates: Sequence[int], rounds: int
) -> List[str]:
    """A line and a table for each rate, and for no limit."""
    parts = []
    for rate in [*rates, None]:
        links = "no limit on the links" if rate is None else f"links of {rate:,} Mbit/s"
        parts.append(f"Seconds of a step with {links}, medians of {rounds} rounds:")
        parts.append(_seconds_table(heading, compared, rate))
    return parts


def _seconds_table(heading: str, compared: Sequence[Comparison], rate: Optional[int]) -> str:
    """Beside the seconds, those the busiest link needs for its bytes, and how busy the CPUs were.

    So it shows what limits a step: the links, or the CPUs that do the work of all hosts.
    """
    rows, headings = [], [heading]
    for one in compared:
        own, peer = (one.measured[rate][team] for team in one.teams)
        ratio = statistics.median(b.seconds / a.seconds for a, b in zip(own, peer))
        headings, cells = [heading, f"{one.teams[1]} ÷ {one.teams[0]}"], [f"{ratio:.2f}"]
        for team, taken in zip(one.teams, (own, peer)):
            headings += [f"{team}, s", "link alone, s", "CPUs busy"]
            alone = "–" if rate is None else f"{one.busiest(team) * 8e-6 / rate:.3f}"
            busy = statistics.median(each.busy for each in taken)
            seconds = statistics.median(each.seconds for each in taken)
            cells += [f"{seconds:.3f}", alone, f"{busy:.0%}"]
        rows.append([one.label, *cells])
    return report.table(headings, rows)
