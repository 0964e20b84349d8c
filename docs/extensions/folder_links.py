"""Changes links to a folder, as in examples/README.md, to links to that folder's README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_FOLDER = re.compile(r"(\]\()([^)#:]+)/\)")


def to_readme(app: Sphinx, docname: str, source: list[str]) -> None:
    """Changes the links of a page before Sphinx parses it."""
    page = Path(app.env.doc2path(docname))

    def replaced(link: re.Match[str]) -> str:
        readme = page.parent / link[2] / "README.md"
        return f"{link[1]}{link[2]}/README.md)" if readme.exists() else link[0]

    source[0] = _FOLDER.sub(replaced, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the function that changes the links."""
    app.connect("source-read", to_readme)
    return {"parallel_read_safe": True}
