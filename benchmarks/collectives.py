"""Compares two orders of the workers by the bytes and the time of an all-reduce.

On four hosts, the workers of `MultiWorkerMirroredStrategy` reduce a tensor. The resolver numbers
them for the ring or by rank; both orders are measured in turn. A step is one all-reduce.

The bytes are those that the hosts' interfaces count. These interfaces send up to 64 kB with one
header. On a real wire, and under the limits that tc sets here, headers add another 4 to 5 %.

It needs the package, TensorFlow and a real Slurm.
"""

from __future__ import annotations

import random
from typing import Dict, List, Sequence, Tuple

import report
from comparison import Comparison, compare, seconds_tables
from hosts import HOSTS, memory_shortage, start_hosts

DISTRIBUTIONS = ["block", "cyclic", "plane", "arbitrary"]
ORDERS = ["ring", "rank"]
TASK = report.FOLDER / "collectives_task.py"
Comparisons = Dict[Tuple[int, str], Comparison]  # by the number of workers and the distribution


def srun_options(workers: int, distribution: str) -> List[str]:
    """Returns the options that put the same number of workers on every host."""
    per_host = workers // len(HOSTS)
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


def bytes_table(comparisons: Comparisons, size: int) -> str:
    """Returns a table of what the busiest host sends in each order, and of the optimum."""
    rows = []
    for (workers, _), one in comparisons.items():
        best = optimum(workers)
        sent = [one.busiest(order) / size for order in ORDERS]
        ratios = [f"{each / best:.3f}" for each in sent]
        rows.append([one.label, *ratios, *(f"{each:.2f}" for each in sent), f"{best:.2f}"])
    headings = ["workers", *(f"{order} ÷ optimum" for order in ORDERS), *ORDERS, "optimum"]
    return report.table(headings, rows)


def draw(comparisons: Comparisons, size: int, *, write: bool) -> str:
    """Plots what the busiest host sends by the number of workers.

    Rank order has a line for each distribution; ring order has one for the worst distribution.
    """
    lines: Dict[str, Tuple[List[float], List[float]]] = {}
    worst: Dict[int, float] = {}
    for (workers, distribution), one in comparisons.items():
        xs, ys = lines.setdefault(f"{distribution}, by rank", ([], []))
        xs.append(workers)
        ys.append(one.busiest("rank") / size / optimum(workers))
        ring = one.busiest("ring") / size / optimum(workers)
        worst[workers] = max(ring, worst.get(workers, 0))
    lines["ring order, the worst of all"] = (list(worst), list(worst.values()))
    labels = ("workers on 4 hosts", "sent by the busiest host ÷ optimum")
    return report.plot("collectives", lines, labels, write=write)


def measure(
    workers: Sequence[int], distributions: Sequence[str], size: int, rates: List[int], rounds: int
) -> Tuple[Comparisons, List[str]]:
    """Returns the comparisons, and a sentence for each number of workers that was left out."""
    comparisons, notes = {}, []
    variants = {order: {"size": size, "worker_order": order} for order in ORDERS}
    with start_hosts() as hosts:
        for count in workers:
            shortage = memory_shortage(count)
            if shortage is not None:
                notes.append(f"Not measured: {shortage}")
                continue
            for distribution in distributions:
                label = f"{count}, {distribution}"
                print(f"{label} …", flush=True)
                options = srun_options(count, distribution)
                with hosts.step(options, TASK, count, variants) as step:
                    comparisons[count, distribution] = compare(label, step, rates, rounds)
    return comparisons, notes


def main() -> None:
    """Measures every layout, and publishes the results."""
    parser = report.make_parser(__doc__, rounds=3)
    parser.add_argument(
        "--workers", default="8,16,24", help="numbers of workers, multiples of 4 [%(default)s]"
    )
    parser.add_argument(
        "--distributions",
        default=",".join(DISTRIBUTIONS),
        help="distributions of Slurm [%(default)s]",
    )
    parser.add_argument("--mbit", default="1000,100", help="rates of the links [%(default)s]")
    parser.add_argument(
        "--bytes", type=int, default=8_000_000, help="size of the tensor [%(default)s]"
    )
    args = parser.parse_args()
    workers = [int(each) for each in args.workers.split(",")]
    distributions = args.distributions.split(",")
    rates = [int(rate) for rate in args.mbit.split(",") if rate]
    if any(each < 4 or each % len(HOSTS) for each in workers):
        parser.error(f"--workers {args.workers}: expected multiples of {len(HOSTS)}")
    if not set(distributions) <= set(DISTRIBUTIONS):
        parser.error(f"--distributions {args.distributions}: expected {', '.join(DISTRIBUTIONS)}")
    comparisons, notes = measure(workers, distributions, args.bytes, rates, args.rounds)
    if not comparisons:
        raise SystemExit("\n".join(notes))
    tensor = f"All-reduces of {args.bytes / 1e6:g} MB"
    text = [
        f"{tensor}, equal numbers of workers on 4 hosts; plane is plane=2.",
        "Bytes that the busiest host sends in an all-reduce, in units of the tensor's size:",
        bytes_table(comparisons, args.bytes),
        draw(comparisons, args.bytes, write=args.write),
        *seconds_tables("workers", list(comparisons.values()), rates, args.rounds),
        *notes,
    ]
    report.publish("collectives", "\n\n".join(text), write=args.write)


if __name__ == "__main__":
    main()
