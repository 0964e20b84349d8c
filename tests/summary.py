"""Prints what `make test` has skipped and why, and a last line; reads the reports of pytest.

python tests/summary.py REPORT.xml...
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree


def summary(paths: Sequence[str]) -> str:
    """Returns a line for each reason for skipping tests, and one for the whole run."""
    tests = 0
    reasons: Counter[str] = Counter()
    for path in paths:
        for case in ElementTree.parse(path).iter("testcase"):
            tests += 1
            skipped = case.find("skipped")
            if skipped is not None:
                reasons[skipped.get("message", "")] += 1
    left_out = sum(reasons.values())
    lines = [f"skipped {count}: {reason}" for reason, count in reasons.most_common()]
    lines.append(
        f"make test passed: lint, types and {tests - left_out:,} tests; {left_out:,} were skipped"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary(sys.argv[1:]))
