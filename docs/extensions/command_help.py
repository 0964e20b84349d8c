"""The directive `command-help`, which shows the --help of a command of `slurm-resolver`."""

from __future__ import annotations

import os
import re
import textwrap
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from slurm_resolver.cli import COMMANDS, main

WIDTH = 88  # characters, which the pages show without a scroll bar


class CommandHelp(SphinxDirective):
    """Shows the help of the named command, or of `slurm-resolver` itself without a name."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns the command's help as a block of text."""
        words = [*self.arguments, "--help"]
        text = help_of(words)
        return [nodes.literal_block(text, text, language="text")]


def help_of(words: list[str]) -> str:
    """Returns the output of `slurm-resolver` with these arguments."""
    import contextlib
    import io

    if words[0] not in (*COMMANDS, "--help"):
        raise ValueError(f"{words[0]!r}: expected one of {', '.join(COMMANDS)}")
    printed = io.StringIO()
    os.environ.update(COLUMNS=str(WIDTH), NO_COLOR="1")
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(words)
    text = re.sub(r"(?:^[^ \n].*\n)+", _filled, printed.getvalue(), flags=re.M)
    return re.sub(rf"^ .{{{WIDTH},}}$", _folded, text, flags=re.M)


def _filled(paragraph: re.Match[str]) -> str:
    """Returns a paragraph with shorter lines; the terminal shows it as it is written."""
    return textwrap.fill(paragraph[0], WIDTH, break_on_hyphens=False) + "\n"


def _folded(command: re.Match[str]) -> str:
    """Returns a command line of an example as two lines."""
    first, _, rest = command[0].rpartition(" -- ")
    return f"{first} -- \\\n      {rest}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
