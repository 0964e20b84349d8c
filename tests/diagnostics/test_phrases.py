"""`explain` finds kinds of messages by rules, in whatever words they come; none in good runs."""

from __future__ import annotations

import ast
import io
import re

import pytest
from explained import explained
from folders import ROOT
from phrases import logs_of_phrases, told_by_phrases

from slurm_resolver.diagnostics.known_messages import CAUSES, MESSAGES
from slurm_resolver.diagnostics.log_starts import read_starts

PHRASES = logs_of_phrases()
TOLD = told_by_phrases()


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases(phrase: str) -> None:
    """The first failure and the causes are told, or that nothing failed."""
    log = PHRASES[phrase]
    expected = tuple(TOLD[phrase])
    starts = read_starts(io.BytesIO("\n".join(log).encode()))
    findings = explained(log)
    told = [f"{one.id} at {one.address}" for one in findings]
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
            if MESSAGES[finding.id].kind in CAUSES:
                assert f"{finding.id} at {finding.address}".startswith(expected)


def warnings_of_the_package() -> list[str]:
    """Returns the texts of the package's warnings, with 7 for each value in them."""
    texts = []
    for path in (ROOT / "slurm_resolver").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls:
            if getattr(call.func, "id", "") in ("warn", "warn_once"):
                (text, *_) = call.args
                parts = getattr(text, "values", [text])
                words = [str(getattr(part, "value", 7)) for part in parts]
                texts.append(re.sub(r"%\S+|<ast[^>]*>", "7", "".join(words)))
    return [text for text in texts if len(text) > 20]


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "3: WARNING:slurm_resolver:{}",
        "W1129 01:33:57 1 a.py:1] {}",
    ],
)
def test_warnings_of_the_package_are_no_failure(form: str) -> None:
    warnings = warnings_of_the_package()
    assert len(warnings) > 15
    for text in warnings:
        (start,) = read_starts(io.BytesIO(form.format(text).encode()))
        assert not start.has_failed, text
