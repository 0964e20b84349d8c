"""Draws the pictures of README and the guides, which show the output of commands.

    python docs/pictures.py

The commands run in a terminal, on a real Slurm that the tests' helpers start. Rich converts the
output to SVG. tests/recipes/test_documentation.py compares the pictures with the current output.
"""

from __future__ import annotations

import html
import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
COLUMNS = 100
# README shows this picture, which a narrow screen must be able to show as well.
NARROW = {"show": 62}

_STEP = "srun -N2 --ntasks-per-node=4 -G8"
COMMANDS = {
    "show": f"{_STEP} slurm-resolver show",
    "check": f"{_STEP} slurm-resolver check --verbose",
    "explain": "slurm-resolver explain tests/data/logs/port-taken.log",
}
# Without a secret, and without munge, `check` would print how to create one.
ENVIRONMENT = {"SLURM_RESOLVER_SECRET": "only-those-who-read-this-know-it"}


def in_terminal(name: str) -> str:
    """Returns a command line that runs the command with that name in a terminal."""
    command = COMMANDS[name]
    terminal = f"env COLUMNS={NARROW.get(name, COLUMNS)} TERM=xterm-256color"
    srun, found, program = command.partition(" slurm-resolver ")
    if not found:
        return f"{terminal} {command}"
    return f"{srun} --pty {terminal} slurm-resolver {program}"


def draw(name: str, printed: str) -> str:
    """Returns the SVG of the output of the command with that name, including its colours."""
    columns = NARROW.get(name, COLUMNS)
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    lines = [line.rstrip() for line in printed.replace("\r", "").strip("\n").split("\n")]
    # An empty last line: the picture clips the last line at the bottom.
    console.print(Text.from_ansi("\n".join([*lines, ""])))
    svg = console.export_svg(title=f"$ {COMMANDS[name]}", theme=MONOKAI, unique_id=name)
    # A browser would download these fonts; the pictures must also work offline.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def text_of(svg: str) -> list[str]:
    """Returns the lines of text in a picture, the title first."""
    svg = svg.replace("&#160;", " ")
    title = re.findall(r"<text[^>]*-title\"[^>]*>(.*?)</text>", svg)
    piece = r"<text class=\"[^\"]*\" x=\"([\d.]+)\" y=\"([\d.]+)\"[^>]*>(.*?)</text>"
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(piece, svg):
        lines.setdefault(float(y), []).append((float(x), html.unescape(text)))
    texts = ["".join(text for _, text in sorted(line)) for _, line in sorted(lines.items())]
    return [html.unescape(" ".join(title)), *texts]


def main() -> None:
    """Runs all commands and writes their pictures."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    from slurm_cluster import SlurmCluster
    from slurm_conf import Node
    from slurm_fixture import started
    from slurm_installation import installations

    FOLDER.mkdir(exist_ok=True)
    nodes = [Node(f"n{number}", cpus=8, gpus=4) for number in range(8, 13)]
    with tempfile.TemporaryDirectory() as folder:
        cluster = SlurmCluster(nodes, Path(folder), installation=installations()[-1])
        with started(cluster):
            for name in COMMANDS:
                done = cluster.run(in_terminal(name), env=ENVIRONMENT, cwd=ROOT, status=None)
                (FOLDER / f"{name}.svg").write_text(draw(name, done.stdout), encoding="utf-8")


if __name__ == "__main__":
    main()
