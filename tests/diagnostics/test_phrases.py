"""`explain` finds kinds of messages by rules, in whatever words they come; none in good runs."""

from __future__ import annotations

import io

import pytest
from explained import explained
from phrases import phrases

from slurm_resolver.diagnostics.known_messages import CAUSES
from slurm_resolver.diagnostics.log_starts import read_starts

PHRASES = phrases()


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases(phrase: str) -> None:
    """The first failure and the causes are told, or that nothing failed."""
    log, lines = PHRASES[phrase]
    expected = tuple(lines)
    starts = read_starts(io.BytesIO("\n".join(log).encode()))
    findings = explained(log)
    told = [f"{one.known.id} at {one.address}" for one in findings]
    last = [start for start in starts if start is starts[-1] or not start.continues]
    if not any(start.has_failed for start in last):
        told.append("no failure")
    first = starts[-1].first()
    if first:
        told.append(" ".join(f"first {first.task}: {first.line}".split()))
    for one in expected:
        assert any(text.startswith(one) for text in told), told
    # No other cause is told beside those.
    if not all(one.startswith(("first ", "no failure")) for one in expected):
        for finding in findings:
            if finding.known.kind in CAUSES:
                assert f"{finding.known.id} at {finding.address}".startswith(expected)
