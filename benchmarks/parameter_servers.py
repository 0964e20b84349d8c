"""Compares two placements of parameter servers by the bytes and the time of a step.

Workers on four hosts train variables that are divided evenly among 1, 2 or 4 parameter servers.
Each host has four tasks in block distribution. The parameter servers are spread over the hosts
(`placement="spread"`), or fill the first host (`placement="rank"`) as TensorFlow's own resolver
does. In a step, each worker reads all variables and sends an update of each.

The even share is the least that the busiest host can send, wherever the servers are. A host with p
of P servers and w of W workers sends p/P S bytes to each of the W - w workers elsewhere, where S is
the size of all variables. Each of its own workers sends (1 - p/P) S bytes to servers elsewhere. The
host receives as much.

The bytes are those that the hosts' interfaces count. These interfaces send up to 64 kB with one
header. On a real wire, and under the limits that tc sets here, headers add another 4 to 5 %.

It needs the package, TensorFlow and a real Slurm.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import report
from comparison import Comparison, add_options, compare, seconds_tables
from hosts import HOSTS, start_hosts

PLACEMENTS = {"spread": "spread", "filling": "rank"}  # the value of `placement`, by variant
TASK = report.FOLDER / "parameter_servers_task.py"
PER_HOST = 4
VARIABLES = 8  # of equal size, so that 1, 2, 4 or 8 servers get the same number of them
Comparisons = dict[int, Comparison]  # by the number of servers


def busiest_host_load(servers: Sequence[int]) -> float:
    """Returns what the busiest host sends in a step, in units of the size of all variables.

    `servers` contains the number of parameter servers on each host.

    >>> busiest_host_load([1, 1, 1, 1]), busiest_host_load([4, 0, 0, 0])
    (4.5, 12.0)
    """
    all_workers = sum(PER_HOST - count for count in servers)
    loads = []
    for count in servers:
        share, workers = count / sum(servers), PER_HOST - count
        loads.append(share * (all_workers - workers) + workers * (1 - share))
    return max(loads)


def even_share(servers: int) -> float:
    """Returns the least that the busiest host can send, wherever the servers are."""
    placements = itertools.product(range(PER_HOST + 1), repeat=len(HOSTS))
    return min(busiest_host_load(one) for one in placements if sum(one) == servers)


def bytes_table(comparisons: Comparisons) -> str:
    """Returns a table of what the busiest host sends, and of the even share."""
    rows = []
    for servers, one in comparisons.items():
        share = even_share(servers)
        ratios = [f"{one.busiest(variant) / share:.3f}" for variant in PLACEMENTS]
        sent = [f"{one.busiest(variant):.2f} ({one.mean(variant):.2f})" for variant in PLACEMENTS]
        rows.append([one.label, *ratios, *sent, f"{share:.2f}"])
    ratios = [f"{variant} ÷ even share" for variant in PLACEMENTS]
    return report.table(["ps", *ratios, *PLACEMENTS, "even share"], rows)


def draw(comparisons: Comparisons, *, write: bool) -> str:
    """Plots what the busiest host sends by the number of servers."""
    servers = list(comparisons)
    lines = {
        variant: (servers, [one.busiest(variant) for one in comparisons.values()])
        for variant in PLACEMENTS
    }
    lines["even share"] = (servers, [even_share(count) for count in servers])
    labels = ("parameter servers", "sent by the busiest host ÷ variables")
    return report.plot("parameter_servers", lines, labels, write=write)


def main() -> None:
    """Measures each number of parameter servers, and publishes the results."""
    parser = report.make_parser(__doc__, counts=[1, 2, 4], of="parameter servers", rounds=3)
    add_options(parser, size=4_000_000)
    args = parser.parse_args()
    if not {*args.counts} <= {1, 2, 4, 8}:
        parser.error(f"numbers of parameter servers {args.counts}: expected 1, 2, 4 or 8")
    comparisons: Comparisons = {}
    options = [f"--nodes={len(HOSTS)}", f"--ntasks-per-node={PER_HOST}", "--distribution=block"]
    tasks = PER_HOST * len(HOSTS)
    with start_hosts(tasks) as hosts:
        for count in args.counts:
            print(f"{count} ps …", flush=True)
            common = {"servers": count, "variables": VARIABLES, "size": args.bytes}
            variants = {name: {**common, "placement": value} for name, value in PLACEMENTS.items()}
            with hosts.step(options, TASK, tasks, variants) as step:
                comparisons[count] = compare(str(count), step, args)
    variables = f"{VARIABLES} variables of {args.bytes / VARIABLES / 1e6:g} MB"
    text = [
        f"4 tasks on each of 4 hosts, {variables}.",
        "Bytes that the busiest host sends in a step (mean of all), in units of all variables:",
        bytes_table(comparisons),
        draw(comparisons, write=args.write),
        *seconds_tables("ps", list(comparisons.values()), args),
    ]
    report.publish("parameter_servers", "\n\n".join(text), write=args.write)


if __name__ == "__main__":
    main()
