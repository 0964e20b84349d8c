"""Measures how far sending the gradients overlaps computing them.

Two workers on two hosts train dense layers with `fit`. A step cannot be faster than the longer one
of computing, which each worker does alone on its rows, and of sending, which is a sum of tensors as
large as the gradients. Gradients go in buckets: with one bucket for all of them, nothing is sent
before the last gradient is there.

The forward pass has no gradients to send. It is about a third of computing, so a step in which
everything else overlaps takes at least a third of computing, and all of sending: 4/3 of the longer
of the two if these take exactly as long as each other.

It needs the package, TensorFlow and a real Slurm.
"""

from __future__ import annotations

import itertools
import statistics

import report
from hosts import HOSTS, start_hosts

TASK = report.FOLDER / "overlap_task.py"
WORKERS = 2
BUCKET = 25 * 2**20
WHAT = {
    "computing": BUCKET,
    "sending": BUCKET,
    "step": BUCKET,
    "step with one bucket": 2**40,
}
STEPS = ("step", "step with one bucket")


def main() -> None:
    """Measures the parts of a step and the step in turn, and publishes the results."""
    parser = report.make_parser(__doc__, counts=[1000], of="Mbit/s of the links", rounds=3)
    parser.add_argument("--layers", type=int, default=8, help="dense layers [%(default)s]")
    parser.add_argument("--units", type=int, default=2048, help="of each layer [%(default)s]")
    text = "rows of each worker in a step [%(default)s]"
    parser.add_argument("--rows", type=int, nargs="+", default=[550, 1000], help=text)
    args = parser.parse_args()
    rows_of_table = []
    with start_hosts(WORKERS * len(WHAT)) as hosts:
        for mbit, rows in itertools.product(args.counts, args.rows):
            print(f"{mbit} Mbit/s, {rows} rows …", flush=True)
            sizes = {"layers": args.layers, "units": args.units, "rows": rows}
            variants = {
                what: {"what": what, "bytes_per_pack": bucket, **sizes}
                for what, bucket in WHAT.items()
            }
            options = [f"--nodelist={','.join(HOSTS[:WORKERS])}", "--ntasks-per-node=1"]
            with hosts.step(options, TASK, WORKERS, variants) as step:
                hosts.limit_links(mbit)
                measured = step.measure_in_turn(3, args.rounds)
                hosts.limit_links(None)
            seconds = {what: [one.seconds for one in results] for what, results in measured.items()}
            pairs = list(zip(seconds["computing"], seconds["sending"]))
            ratios = [
                [one / other for one, other in pairs],
                *([one / max(pair) for one, pair in zip(seconds[what], pairs)] for what in STEPS),
            ]
            medians = [f"{statistics.median(each):.2f}" for each in (*seconds.values(), *ratios)]
            rows_of_table.append([f"{mbit:,}", f"{rows:,}", *medians])
    headings = [
        "Mbit/s",
        "rows",
        *(f"{what}, s" for what in WHAT),
        "computing ÷ sending",
        "step ÷ longer part",
        "with one bucket",
    ]
    gradients = f"{args.layers * args.units**2 * 4 / 1e6:.0f} MB of gradients"
    parts = [
        f"Two workers, {gradients} in {args.layers} layers, medians of {args.rounds} rounds:",
        report.table(headings, rows_of_table),
    ]
    report.publish("overlap", "\n\n".join(parts), write=args.write)


if __name__ == "__main__":
    main()
