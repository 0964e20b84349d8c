"""The blocks of code in README and the guides."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

from folders import ROOT

GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *GUIDES,
        ROOT / "benchmarks" / "README.md",
        *ROOT.glob("examples/**/README.md"),
    ]
)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Block(NamedTuple):
    """A block of a page: its language, such as sh, and its text."""

    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Returns the blocks of a page, in order, also those in its lists."""
    pattern = re.compile(r"^( *)```(\S*).*?\n(.*?)^\1```$", re.M | re.S)
    found = pattern.findall(page.read_text(encoding="utf-8"))
    return [Block(language, textwrap.dedent(text)) for _, language, text in found]


def texts_of(page: Path, language: str) -> list[str]:
    """Returns the text of each block of a page in this language."""
    return [block.text for block in blocks_of(page) if block.language == language]
