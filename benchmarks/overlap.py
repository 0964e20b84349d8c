"""Measures how far sending the gradients overlaps computing them.

Two workers on two hosts train dense layers with `fit`. A step cannot be faster than the longer one
of computing, which each worker does alone on its rows, and of sending, which is a sum of tensors as
large as the gradients. Gradients go in buckets: with one bucket for all of them, nothing is sent
before the last gradient is there.

It needs the package, TensorFlow and a real Slurm.
"""

from __future__ import annotations

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


def main() -> None:
    """Measures the parts of a step and the step in turn, and publishes the results."""
    parser = report.make_parser(__doc__, counts=[1000], of="Mbit/s of the links", rounds=3)
    parser.add_argument("--layers", type=int, default=8, help="dense layers [%(default)s]")
    parser.add_argument("--units", type=int, default=2048, help="of each layer [%(default)s]")
    text = "rows of each worker in a step [%(default)s]"
    parser.add_argument("--rows", type=int, default=550, help=text)
    args = parser.parse_args()
    rows_of_table = []
    with start_hosts(WORKERS * len(WHAT)) as hosts:
        for mbit in args.counts:
            print(f"{mbit} Mbit/s …", flush=True)
            sizes = {"layers": args.layers, "units": args.units, "rows": args.rows}
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
            least = [max(pair) for pair in zip(seconds["computing"], seconds["sending"])]
            ratios = [
                statistics.median(one / other for one, other in zip(seconds[what], least))
                for what in ("step", "step with one bucket")
            ]
            medians = [f"{statistics.median(each):.2f}" for each in seconds.values()]
            rows_of_table.append([f"{mbit:,}", *medians, *(f"{each:.2f}" for each in ratios)])
    headings = [
        "Mbit/s",
        *(f"{what}, s" for what in WHAT),
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
