"""Compares two orders of the workers by the bytes and the time of an all-reduce.

On four hosts, the workers of `MultiWorkerMirroredStrategy` reduce a tensor. The resolver numbers
them for the ring or by rank; both orders are measured in turn. A step is one all-reduce.

The bytes are those that the hosts' interfaces count. These interfaces send up to 64 kB with one
header. On a real wire, and under the limits that tc sets here, headers add another 4 to 5 %.

It needs the package, TensorFlow and a real Slurm.
"""

from __future__ import annotations

import random

import report
from comparison import Comparison, add_options, compare, seconds_tables
from hosts import HOSTS, start_hosts

DISTRIBUTIONS = ["block", "cyclic", "plane", "arbitrary"]
ORDERS = ["ring", "rank"]
TASK = report.FOLDER / "collectives_task.py"
Comparisons = dict[tuple[int, str], Comparison]  # by the number of workers and the distribution


def srun_options(per_host: int, distribution: str) -> list[str]:
    """Returns the options that put this many workers on every host."""
    if distribution == "arbitrary":
        names = HOSTS * per_host
        random.Random(1).shuffle(names)
        return ["--distribution=arbitrary", f"--nodelist={','.join(names)}"]
    value = "plane=2" if distribution == "plane" else distribution
    nodes = [f"--nodes={len(HOSTS)}", f"--ntasks-per-node={per_host}"]
    return [*nodes, f"--distribution={value}"]


def optimum(workers: int) -> float:
    """Returns the least that the busiest host can send, in units of the tensor's size."""
    return 2 * (workers - 1) / workers


def bytes_table(comparisons: Comparisons) -> str:
    """Returns a table of what the busiest host sends in each order, and of the optimum."""
    rows = []
    for (workers, _), one in comparisons.items():
        best = optimum(workers)
        sent = [one.busiest(order) for order in ORDERS]
        ratios = [f"{each / best:.3f}" for each in sent]
        rows.append([one.label, *ratios, *(f"{each:.2f}" for each in sent), f"{best:.2f}"])
    headings = ["workers", *(f"{order} ÷ optimum" for order in ORDERS), *ORDERS, "optimum"]
    return report.table(headings, rows)


def draw(comparisons: Comparisons, *, write: bool) -> str:
    """Plots what the busiest host sends by the number of workers.

    Rank order has a line for each distribution; ring order has one for the worst distribution.
    """
    lines: dict[str, tuple[list[float], list[float]]] = {}
    worst: dict[int, float] = {}
    for (workers, distribution), one in comparisons.items():
        xs, ys = lines.setdefault(f"{distribution}, by rank", ([], []))
        xs.append(workers)
        ys.append(one.busiest("rank") / optimum(workers))
        worst[workers] = max(one.busiest("ring") / optimum(workers), worst.get(workers, 0))
    lines["ring order, the worst of all"] = (list(worst), list(worst.values()))
    labels = ("workers on 4 hosts", "sent by the busiest host ÷ optimum")
    return report.plot("collectives", lines, labels, write=write)


def main() -> None:
    """Measures every layout, and publishes the results."""
    parser = report.make_parser(__doc__, counts=[2, 4, 6], of="workers on each host", rounds=3)
    parser.add_argument(
        "--distributions", nargs="*", default=DISTRIBUTIONS, choices=DISTRIBUTIONS, help="[all]"
    )
    add_options(parser, size=8_000_000)
    args = parser.parse_args()
    comparisons: Comparisons = {}
    variants = {order: {"size": args.bytes, "worker_order": order} for order in ORDERS}
    with start_hosts(max(args.counts) * len(HOSTS)) as hosts:
        for per_host in args.counts:
            workers = per_host * len(HOSTS)
            for distribution in args.distributions:
                label = f"{workers}, {distribution}"
                print(f"{label} …", flush=True)
                options = srun_options(per_host, distribution)
                with hosts.step(options, TASK, workers, variants) as step:
                    comparisons[workers, distribution] = compare(label, step, args)
    tensor = f"All-reduces of {args.bytes / 1e6:g} MB"
    text = [
        f"{tensor}, equal numbers of workers on 4 hosts; plane is plane=2.",
        "Bytes that the busiest host sends in an all-reduce, in units of the tensor's size:",
        bytes_table(comparisons),
        draw(comparisons, write=args.write),
        *seconds_tables("workers", list(comparisons.values()), args),
    ]
    report.publish("collectives", "\n\n".join(text), write=args.write)


if __name__ == "__main__":
    main()
