"""`explain` finds kinds of messages by rules, in whatever words they come; none in good runs."""

from __future__ import annotations

import pytest
from explained import last_start
from phrases import phrases

from slurm_resolver.diagnostics.known_messages import CAUSES

PHRASES = phrases()


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases(phrase: str) -> None:
    """The first failure and the causes are told, or that nothing failed."""
    log, lines = PHRASES[phrase]
    expected = tuple(lines)
    start = last_start(log)
    findings = start.findings()
    told = [f"{finding.known.id} at {finding.address}" for finding in findings]
    if not start.has_failed:
        told.append("no failure")
    first = start.first()
    if first:
        told.append(" ".join(f"first {first.task}: {first.line}".split()))
    for line in expected:
        assert any(text.startswith(line) for text in told), told
    # No other cause is told beside those.
    if not all(line.startswith(("first ", "no failure")) for line in expected):
        for finding in findings:
            if finding.known.kind in CAUSES:
                assert f"{finding.known.id} at {finding.address}".startswith(expected)
