"""Prints a digest of the code whose speed `resolution.py` measures.

That benchmark writes the digest beside its tables, and a test fails when the code has changed
since. Comments, docstrings and other texts do not count, so that a better message needs no new
figures; nor does the history of commits, which a rebase changes. The digest is the same in all
versions of Python.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1] / "slurm_resolver"


def measured_code() -> str:
    """Returns the digest of `slurm/`, `cluster/` and the resolver."""
    modules = [
        *sorted(_PACKAGE.glob("slurm/*.py")),
        *sorted(_PACKAGE.glob("cluster/*.py")),
        _PACKAGE / "tf" / "resolver.py",
    ]
    digest = hashlib.sha256()
    for module in modules:
        tree = ast.parse(module.read_text(encoding="utf-8"))
        digest.update(" ".join(_words(tree)).encode())
    return digest.hexdigest()[:12]


def _words(part: object) -> Iterator[str]:
    """Returns a syntax tree as words; `ast.dump` differs by the version of Python."""
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        yield "text"
    elif isinstance(part, ast.AST):
        yield type(part).__name__
        for name, value in ast.iter_fields(part):
            if value is not None and value != []:  # newer versions have more fields
                yield name
                yield from _words(value)
    elif isinstance(part, list):
        for each in part:
            yield from _words(each)
        yield "end"
    else:
        yield repr(part)


if __name__ == "__main__":
    print(measured_code())
