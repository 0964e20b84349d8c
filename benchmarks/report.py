"""Makes tables and plots of a benchmark's results, and writes them to a page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

FOLDER = Path(__file__).resolve().parent
README = FOLDER / "README.md"
GUIDE = FOLDER.parent / "docs" / "many_nodes_at_once.md"
PLOTS = FOLDER / "plots"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a Markdown table whose first column is aligned left, and the others right."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def plot(
    name: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    labels: tuple[str, str],
    adjust: Callable[[Any], None] | None = None,
    *,
    write: bool,
) -> str:
    """Draws a plot, and returns the Markdown that shows it.

    Args:
        name: the name of the plot's file, without its suffix.
        lines: the x and the y values of each line, by its label in the legend.
        labels: the labels of the two axes.
        adjust: called with the finished axes, for example to change their scales.
        write: whether to draw. Otherwise the result is "".
    """
    if not write:
        return ""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for label, (xs, ys) in lines.items():
        axes.plot(xs, ys, marker="o", markersize=4, label=label)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    if adjust is not None:
        adjust(axes)
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / f"{name}.png", dpi=100, metadata={"Software": None})
    plt.close(figure)
    return f"![{labels[1]} by {labels[0]}](plots/{name}.png)"


def publish(name: str, text: str, *, write: bool, page: Path = README) -> None:
    """Prints the results; with `write`, also writes them between the marks of this name."""
    print(text.strip(), flush=True)
    if not write:
        return
    before = page.read_text(encoding="utf-8")
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    if len(marks.findall(before)) != 1:
        raise SystemExit(f"{page} needs the marks <!-- {name} --> and <!-- /{name} -->, once")
    filled = marks.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", before)
    page.write_text(filled, encoding="utf-8")


def make_parser(
    description: str | None, *, counts: Sequence[int] = (), of: str = "tasks", rounds: int = 0
) -> argparse.ArgumentParser:
    """Returns a parser with `--write`.

    With defaults for them, the parser also has the argument `counts`, which are numbers `of`
    something, and `--rounds`.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write the results to benchmarks/README.md"
    )
    if counts:
        text = f"numbers of {of} [{' '.join(map(str, counts))}]"
        parser.add_argument("counts", type=int, nargs="*", default=counts, metavar="N", help=text)
    if rounds:
        text = "number of rounds [%(default)s]"
        parser.add_argument("--rounds", type=int, default=rounds, help=text)
    return parser
