"""What a collective costs the network in the ring's order, against rank order and the optimum.

Run it with the package, TensorFlow and a real Slurm installed. On four hosts with a network each,
the workers of a `MultiWorkerMirroredStrategy` reduce a tensor, numbered by the resolver and by
rank in turn. A step is one all-reduce.

The bytes are all that the hosts' interfaces counted meanwhile. These pass on up to 64 kB at a time
with one header; on a wire, and under the limits that tc sets here, headers are another 4 to 5 %.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import report
from comparison import Comparison, compare, seconds_tables
from hosts import HOSTS, Hosts, lacking_memory

DISTRIBUTIONS = ["block", "cyclic", "plane", "arbitrary"]
ORDERS = ["ring", "rank"]
TASK = Path(__file__).resolve().parent / "collectives_task.py"
Measurements = Dict[Tuple[int, str], Comparison]


def options(hosts: Hosts, workers: int, distribution: str) -> Tuple[List[str], Dict[str, str]]:
    """srun's options and variables; as many workers on every host."""
    if distribution == "arbitrary":
        names = HOSTS * (workers // len(HOSTS))
        random.Random(1).shuffle(names)
        return ["--distribution=arbitrary"], hosts.hostfile(names)
    how = "plane=2" if distribution == "plane" else distribution
    each = workers // len(HOSTS)
    words = [f"--nodes={len(HOSTS)}", f"--ntasks-per-node={each}", f"--distribution={how}"]
    return words, {}


def optimum(workers: int) -> float:
    """What has to leave the busiest host in any order, in sizes of the tensor."""
    return 2 * (workers - 1) / workers


def bytes_table(measured: Measurements, size: int) -> str:
    """The busiest host in each order, against the optimum."""
    rows = []
    for (workers, _), one in measured.items():
        best = optimum(workers)
        sent = [one.busiest(order) / size for order in ORDERS]
        ratios = [f"{each / best:.3f}" for each in sent]
        rows.append([one.label, *ratios, *(f"{each:.2f}" for each in sent), f"{best:.2f}"])
    headings = ["workers", *(f"{order} ÷ optimum" for order in ORDERS), *ORDERS, "optimum"]
    return report.table(headings, rows)


def draw(measured: Measurements, size: int, *, write: bool) -> str:
    """The busiest host by the workers: each distribution by rank, the worst in ring order."""
    lines: Dict[str, Tuple[List[float], List[float]]] = {}
    worst: Dict[int, float] = {}
    for (workers, distribution), one in measured.items():
        xs, ys = lines.setdefault(f"{distribution}, by rank", ([], []))
        xs.append(workers)
        ys.append(one.busiest("rank") / size / optimum(workers))
        own = one.busiest("ring") / size / optimum(workers)
        worst[workers] = max(own, worst.get(workers, 0))
    lines["ring order, the worst of all"] = (list(worst), list(worst.values()))
    labels = ("workers on 4 hosts", "sent by the busiest host ÷ optimum")
    return report.plot("collectives", lines, labels, write=write)


def measure(
    workers: Sequence[int], distributions: Sequence[str], size: int, rates: List[int], rounds: int
) -> Tuple[Measurements, List[str]]:
    """Returns what was measured, and a line for each number of workers that was not."""
    measured, notes = {}, []
    teams = {order: {"size": size, "worker_order": order} for order in ORDERS}
    with Hosts() as hosts:
        for count in workers:
            lack = lacking_memory(count)
            if lack is not None:
                notes.append(f"Not measured: {lack}")
                continue
            for distribution in distributions:
                label = f"{count}, {distribution}"
                print(f"{label} …", flush=True)
                words, environment = options(hosts, count, distribution)
                with hosts.step(words, TASK, count, teams, environment) as step:
                    measured[count, distribution] = compare(label, step, rates, rounds)
    return measured, notes


def main() -> None:
    """Measures every layout, and publishes."""
    made = report.parser(__doc__)
    made.add_argument("--workers", default="8,16,24", help="how many, multiples of 4 [%(default)s]")
    made.add_argument(
        "--distributions", default=",".join(DISTRIBUTIONS), help="Slurm's [%(default)s]"
    )
    made.add_argument("--mbit", default="1000,100", help="rates of the links [%(default)s]")
    made.add_argument("--bytes", type=int, default=8_000_000, help="the tensor's [%(default)s]")
    made.add_argument("--rounds", type=int, default=3, help="at each rate [%(default)s]")
    args = made.parse_args()
    workers = [int(each) for each in args.workers.split(",")]
    distributions = args.distributions.split(",")
    rates = [int(rate) for rate in args.mbit.split(",") if rate]
    if any(each < 4 or each % len(HOSTS) for each in workers):
        made.error(f"--workers {args.workers}: expected multiples of {len(HOSTS)}")
    if not set(distributions) <= set(DISTRIBUTIONS):
        made.error(f"--distributions {args.distributions}: expected {', '.join(DISTRIBUTIONS)}")
    measured, notes = measure(workers, distributions, args.bytes, rates, args.rounds)
    if not measured:
        raise SystemExit("\n".join(notes))
    tensor = f"All-reduces of {args.bytes / 1e6:g} MB"
    text = [
        f"{tensor}, as many workers on each of 4 hosts; plane is plane=2.",
        "Bytes that the busiest host sends in an all-reduce, in sizes of the tensor:",
        bytes_table(measured, args.bytes),
        draw(measured, args.bytes, write=args.write),
        *seconds_tables("workers", list(measured.values()), rates, args.rounds),
        *notes,
    ]
    report.publish("collectives", "\n\n".join(text), write=args.write)


if __name__ == "__main__":
    main()
