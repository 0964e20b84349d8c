"""Links to a folder, as the examples' README has them, lead to the README of that folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List

from sphinx.application import Sphinx

_FOLDER = re.compile(r"(\]\()([^)#:]+)/\)")


def to_readme(app: Sphinx, docname: str, source: List[str]) -> None:
    """Replaces each such link in the page that is about to be read."""
    page = Path(app.env.doc2path(docname))

    def replaced(link: re.Match[str]) -> str:
        readme = page.parent / link[2] / "README.md"
        return f"{link[1]}{link[2]}/README.md)" if readme.exists() else link[0]

    source[0] = _FOLDER.sub(replaced, source[0])


def setup(app: Sphinx) -> Dict[str, Any]:
    """Makes Sphinx call it for every page."""
    app.connect("source-read", to_readme)
    return {"parallel_read_safe": True}
