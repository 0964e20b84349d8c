"""Measures what more workers save: the CPU time of each worker, and the time, of the same `fit`.

One process trains alone. Then `slurm-resolver run` starts workers on this machine, which train on
the same global batches. Ratios are to the process that trains alone, with the same library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import report
from real_slurm import ENVIRONMENT

TASK = [sys.executable, "-W", "ignore", str(report.FOLDER / "scaling_task.py")]
RUN = [sys.executable, "-m", "slurm_resolver", "run", "--no-label"]
# What is trained, as in scaling_task.py.
PARTS = {
    "jpeg:keras": "JPEG files, a map that decodes them",
    "folder:keras": "image_dataset_from_directory",
    "tfrecord:keras": "JPEG images in TFRecord files",
    "arrays:keras": "arrays",
    "arrays:mean": "arrays, own train_step: a mean",
    "arrays:comparing": "arrays, own contrastive train_step",
    "sleep:keras": "rows that sleep",
    "step:keras": "nearly nothing, one step",
    "steps:keras": "nearly nothing, 201 steps",
}
# These two tell what a fit and each step cost beside reading and computing.
LITTLE = ("step:keras", "steps:keras")
FILES, FEW_FILES = 3072, 64  # of the fit that is measured, and of the first one
# As in a photograph, details of each size have the same contrast, and a file has 0.6 bytes for each
# pixel, which is the average of ImageNet. With fewer details, decoding is faster.
SIZE = 512
DETAILS = (4, 8, 16, 32, 64, 128, 256)  # how many of one size there are along a side
CONTRAST = 18
CLASSES, SHARDS = 4, 8


class Way(NamedTuple):
    """A strategy that trains parts, each with a policy of tf.data's automatic sharding."""

    name: str
    parts: list[str]


# Only datasets of files can be split by files: for others, TensorFlow's AUTO is DATA.
WAYS = {
    "keras": Way("this package", [f"{part}:AUTO" for part in PARTS]),
    "tf_keras": Way(
        "TensorFlow's class",
        [
            "jpeg:keras:DATA",
            "folder:keras:DATA",
            "tfrecord:keras:DATA",
            "tfrecord:keras:AUTO",
            "tfrecord:keras:FILE",
            "arrays:keras:AUTO",
        ],
    ),
}
# One worker is of interest for this package only; 0 is the process alone.
COUNTS_OF_TENSORFLOW = (0, 2, 4)


class Taken(NamedTuple):
    """Seconds of a fit: CPU time of the busiest worker, and the time of the slowest."""

    cpu: float
    wall: float


Results = dict[str, dict[str, dict[int, Taken]]]  # by library, part and number of workers


def main() -> None:
    """Publishes a table of CPU times, and a table of times."""
    parser = report.make_parser(__doc__, counts=[1, 2, 4, 8], of="workers")
    kinds = list(dict.fromkeys(part.split(":")[0] for part in PARTS))
    parser.add_argument(
        "--data", nargs="*", default=kinds, metavar="KIND", help=f"kinds of data {kinds}"
    )
    args = parser.parse_args()
    results: Results = {library: defaultdict(dict) for library in WAYS}
    with TemporaryDirectory(dir="/tmp") as folder:
        make_images(Path(folder))
        for library, way in WAYS.items():
            for workers in [0, *args.counts]:
                parts = [part for part in way.parts if part.split(":")[0] in args.data]
                if not parts or (library == "tf_keras" and workers not in COUNTS_OF_TENSORFLOW):
                    continue
                for part, taken in measure(library, workers, folder, parts).items():
                    results[library][part][workers] = taken
    shown = [draw(results["keras"], write=args.write), *tables(results, args.counts)]
    report.publish("scaling", "\n\n".join(shown), write=args.write)


def make_images(folder: Path) -> None:
    """Writes the same JPEG images as files in a folder for each class, and as TFRecord files."""
    import tensorflow as tf

    def image(number: int) -> bytes:
        pixels = tf.fill((SIZE, SIZE, 3), 128.0)
        for size in DETAILS:
            noise = tf.random.stateless_normal((size, size, 3), seed=(number, size))
            pixels += CONTRAST * tf.image.resize(noise, (SIZE, SIZE), "bicubic")
        pixels = tf.cast(tf.clip_by_value(pixels, 0, 255), tf.uint8)
        return bytes(tf.io.encode_jpeg(pixels).numpy())

    images = [image(number) for number in range(16)]
    for name, count in (("all", FILES), ("few", FEW_FILES)):
        for label in range(CLASSES):
            (folder / name / f"class{label}").mkdir(parents=True)
        writers = [
            tf.io.TFRecordWriter(str(folder / name / f"{shard}.tfrecord"))
            for shard in range(SHARDS)
        ]
        for number in range(count):
            content = images[number % len(images)]
            label = number % CLASSES
            (folder / name / f"class{label}" / f"{number:04}.jpg").write_bytes(content)
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writers[number % SHARDS].write(example.SerializeToString())
        for writer in writers:
            writer.close()


def measure(library: str, workers: int, folder: str, parts: list[str]) -> dict[str, Taken]:
    """Trains parts with workers, or in a process alone if their number is 0."""
    launcher = [*RUN, "-n", str(workers), "--"] if workers else []
    done = subprocess.run(
        [*launcher, *TASK, "workers" if workers else "alone", library, folder, *parts],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for part, cpu, wall in re.findall(r"seconds: (\S+) (\S+) (\S+)", done.stdout):
        found[part].append((float(cpu), float(wall)))
    return {part: Taken(*map(max, zip(*times))) for part, times in found.items()}


def tables(results: Results, counts: list[int]) -> list[str]:
    """Returns a table of CPU times, and one of times."""
    cpu = ["CPU time of a worker ÷ one process alone", *columns(counts), "one process, CPU s"]
    wall = ["time ÷ one process alone", *columns(counts), "one process, s"]
    rows_of_cpu = []
    rows_of_wall = []
    for library, way in WAYS.items():
        for part, taken in results[library].items():
            kind, step, policy = part.split(":")
            if f"{kind}:{step}" in LITTLE:
                continue
            named = way.name if library == "keras" else f"{way.name}, {policy}"
            name = f"{PARTS[f'{kind}:{step}']}: {named}"
            rows_of_cpu.append([name, *ratios({n: one.cpu for n, one in taken.items()}, counts)])
            rows_of_wall.append([name, *ratios({n: one.wall for n, one in taken.items()}, counts)])
    tables = [report.table(cpu, rows_of_cpu), report.table(wall, rows_of_wall)]
    own = results["keras"]
    first, all_steps = (own.get(f"{part}:AUTO", {}) for part in LITTLE)
    if first and all_steps:
        tables.append(table_of_overhead(first, all_steps, counts))
    return tables


def table_of_overhead(
    first: dict[int, Taken], all_steps: dict[int, Taken], counts: list[int]
) -> str:
    """Returns a table of what a fit and its steps cost, if there is nearly nothing to compute.

    Args:
        first: by the number of workers, of a fit with one step; 0 is one process alone.
        all_steps: the same with 201 steps.
        counts: the numbers of workers.
    """
    runs = [0, *counts]
    of_fit = [f"{1000 * first[n].cpu:.0f}" for n in runs]
    of_step = [f"{5 * (all_steps[n].cpu - first[n].cpu):.1f}" for n in runs]
    rows = [["a fit of one step", *of_fit], ["each further step", *of_step]]
    return report.table(["CPU time, ms", "one process", *columns(counts)], rows)


def draw(results: dict[str, dict[int, Taken]], *, write: bool) -> str:
    """Draws the CPU times of this package's workers, except where rows sleep."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for part, taken in results.items():
        kind, step, _ = part.split(":")
        counts = sorted(set(taken) - {0})
        if kind not in ("sleep", "step", "steps"):
            ratio = [taken[count].cpu / taken[0].cpu for count in counts]
            lines[PARTS[f"{kind}:{step}"]] = [float(count) for count in counts], ratio
            lines["1 ÷ workers"] = [float(count) for count in counts], [1 / n for n in counts]
    labels = ("workers", "CPU time of a worker ÷ one process alone")
    return report.plot("scaling", lines, labels, write=write)


def columns(counts: list[int]) -> list[str]:
    """Returns the headings of the columns of so many workers."""
    return ["1 worker" if count == 1 else f"{count} workers" for count in counts]


def ratios(seconds: dict[int, float], counts: list[int]) -> list[str]:
    """Returns the ratios to one process alone, and its seconds."""
    alone = seconds[0]
    found = [f"{seconds[count] / alone:.2f}" if count in seconds else "–" for count in counts]
    return [*found, f"{alone:.2f}"]


if __name__ == "__main__":
    main()
