"""How a benchmark tells its results: tables, plots, and their place in benchmarks/README.md."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
PLOTS = HERE / "plots"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a Markdown table; its first column to the left, the others to the right."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def plot(
    name: str,
    lines: Mapping[str, Tuple[Sequence[float], Sequence[float]]],
    labels: Tuple[str, str],
    draw: Optional[Callable[[Any], None]] = None,
    *,
    write: bool,
) -> str:
    """Draws a line for each name, the x and the y of its points; returns Markdown that shows it.

    `draw` gets the axes at the end, for scales and what else a plot may want. Without `write`
    nothing is drawn, as README.md shows the plot that is there.
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
    if draw is not None:
        draw(axes)
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / f"{name}.png", dpi=100, metadata={"Software": None})
    plt.close(figure)
    return f"![{labels[1]} by {labels[0]}](plots/{name}.png)"


def publish(name: str, text: str, *, write: bool) -> None:
    """Prints the results; writes them between README.md's two marks of this name if asked to."""
    print(text.strip(), flush=True)
    if not write:
        return
    readme = README.read_text(encoding="utf-8")
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    if len(marks.findall(readme)) != 1:
        raise SystemExit(f"{README} has no marks <!-- {name} --> and <!-- /{name} -->")
    filled = marks.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", readme)
    README.write_text(filled, encoding="utf-8")


def parser(description: Optional[str]) -> argparse.ArgumentParser:
    """Returns a parser with the option that all benchmarks have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--write", action="store_true", help="put the results into README.md")
    return made
