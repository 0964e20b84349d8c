"""What parameter servers cost the network, spread over the hosts and by TensorFlow's filling.

Run it with the package, TensorFlow and a real Slurm installed. On four hosts with a network each
and four tasks each, in block distribution, workers train variables that are dealt evenly to 1, 2
or 4 parameter servers: spread (`placement="spread"`), and as TensorFlow's own resolver deals ranks
to jobs, which fills the first host (`placement="rank"`). In a step each worker reads all
variables, and sends an update to each.

The even share is what the busiest host sends where the servers stand as evenly as can be, the
least of all ways to put them on the hosts. Of S bytes of variables and W workers in all, a host
with p of P servers, and w workers, sends p/P S to each of the W - w workers elsewhere, and each of
its own workers sends (1 - p/P) S to servers elsewhere; it gets as much.

The bytes are all that the hosts' interfaces counted meanwhile. These pass on up to 64 kB at a time
with one header; on a wire, and under the limits that tc sets here, headers are another 4 to 5 %.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Dict, List, Sequence

import report
from comparison import Comparison, compare, seconds_tables
from hosts import HOSTS, Hosts, lacking_memory

PLACEMENTS = {"spread": "spread", "filling": "rank"}  # by what the tables call them
TASK = Path(__file__).resolve().parent / "parameter_servers_task.py"
PER_HOST = 4
VARIABLES = 8  # of one size: as many for each of 1, 2 and 4 servers
Measurements = Dict[int, Comparison]


def busiest_of(dealt: Sequence[int]) -> float:
    """What the busiest host has to send with that many servers on each, in sizes of all variables.

    >>> busiest_of([1, 1, 1, 1]), busiest_of([4, 0, 0, 0])
    (4.5, 12.0)
    """
    workers = sum(PER_HOST - own for own in dealt)
    loads = []
    for own in dealt:
        share, here = own / sum(dealt), PER_HOST - own
        loads.append(share * (workers - here) + here * (1 - share))
    return max(loads)


def even_share(servers: int) -> float:
    """The least that the busiest host can have to send, wherever the servers are."""
    ways = itertools.product(range(PER_HOST + 1), repeat=len(HOSTS))
    return min(busiest_of(dealt) for dealt in ways if sum(dealt) == servers)


def bytes_table(measured: Measurements, size: int) -> str:
    """The busiest host, against the even share."""
    rows = []
    for servers, one in measured.items():
        share = even_share(servers)
        sent = [one.busiest(team) / size for team in PLACEMENTS]
        ratios = [f"{each / share:.3f}" for each in sent]
        means = [f"{one.mean(team) / size:.2f}" for team in PLACEMENTS]
        pairs = [f"{each:.2f} ({mean})" for each, mean in zip(sent, means)]
        rows.append([one.label, *ratios, *pairs, f"{share:.2f}"])
    ratios = [f"{team} ÷ even share" for team in PLACEMENTS]
    return report.table(["ps", *ratios, *PLACEMENTS, "even share"], rows)


def draw(measured: Measurements, size: int, *, write: bool) -> str:
    """The busiest host by the number of servers."""
    servers = list(measured)
    lines = {
        team: (servers, [one.busiest(team) / size for one in measured.values()])
        for team in PLACEMENTS
    }
    lines["even share"] = (servers, [even_share(count) for count in servers])
    labels = ("parameter servers", "sent by the busiest host ÷ variables")
    return report.plot("parameter_servers", lines, labels, write=write)


def measure(servers: Sequence[int], size: int, rates: List[int], rounds: int) -> Measurements:
    """Returns what was measured, by the number of servers."""
    measured = {}
    words = [f"--nodes={len(HOSTS)}", f"--ntasks-per-node={PER_HOST}", "--distribution=block"]
    with Hosts() as hosts:
        for count in servers:
            print(f"{count} ps …", flush=True)
            common = {"servers": count, "variables": VARIABLES, "size": size}
            teams = {team: {**common, "placement": how} for team, how in PLACEMENTS.items()}
            with hosts.step(words, TASK, PER_HOST * len(HOSTS), teams) as step:
                measured[count] = compare(str(count), step, rates, rounds)
    return measured


def main() -> None:
    """Measures each number of parameter servers, and publishes."""
    made = report.parser(__doc__)
    made.add_argument("--servers", default="1,2,4", help="how many, of 1, 2, 4, 8 [%(default)s]")
    made.add_argument("--mbit", default="1000,100", help="rates of the links [%(default)s]")
    made.add_argument("--bytes", type=int, default=4_000_000, help="of variables [%(default)s]")
    made.add_argument("--rounds", type=int, default=3, help="at each rate [%(default)s]")
    args = made.parse_args()
    servers = [int(count) for count in args.servers.split(",")]
    rates = [int(rate) for rate in args.mbit.split(",") if rate]
    if any(count < 1 or VARIABLES % count for count in servers):
        made.error(f"--servers {args.servers}: expected divisors of {VARIABLES}, the variables")
    lack = lacking_memory(PER_HOST * len(HOSTS))
    if lack is not None:
        raise SystemExit(lack)
    measured = measure(servers, args.bytes, rates, args.rounds)
    variables = f"{VARIABLES} variables of {args.bytes / VARIABLES / 1e6:g} MB"
    text = [
        f"4 tasks on each of 4 hosts, {variables}.",
        "Bytes that the busiest host sends in a step (mean of all), in sizes of all variables:",
        bytes_table(measured, args.bytes),
        draw(measured, args.bytes, write=args.write),
        *seconds_tables("ps", list(measured.values()), rates, args.rounds),
    ]
    report.publish("parameter_servers", "\n\n".join(text), write=args.write)


if __name__ == "__main__":
    main()
