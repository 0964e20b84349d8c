"""Passes on what the cable of a node carries: late, and not all of it.

Usage: ``relay.py PORT SECONDS LOSS [RATE]``, on the login host: PORT is the bridge's end of the
cable, RATE the bytes a second that it carries each way.
"""

from __future__ import annotations

import bisect
import itertools
import random
import select
import socket
import subprocess
import sys
import time
from typing import Dict, List, Tuple

SOL_PACKET = 263
PACKET_VNET_HDR = 15  # the header says which checksums are still to be computed
ALL_PROTOCOLS = 3
QUEUE_SECONDS = 0.3  # of packets that wait for a slow cable: more are lost


def open_link(name: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.bind((name, ALL_PROTOCOLS))
    return sock


def main() -> None:
    port, seconds, loss = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    rate = float(sys.argv[4]) if len(sys.argv) > 4 else float("inf")
    for command in (
        "ip link add relayed0 type veth peer name relayed1",
        "ip link set relayed0 up",
        "ip link set relayed1 master bridge0 up",
        f"ip link set {port} nomaster",
    ):
        subprocess.run(command.split(), check=True)
    node, bridge = open_link(port), open_link("relayed0")
    to: Dict[socket.socket, socket.socket] = {node: bridge, bridge: node}
    free = dict.fromkeys(to, 0.0)  # when the cable has carried what came so far
    late: List[Tuple[float, int, socket.socket, bytes]] = []
    number = itertools.count()
    print("relaying", flush=True)
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        for sock in select.select(list(to), [], [], wait)[0]:
            packet, (_, _, kind, *_) = sock.recvfrom(100_000)
            now = time.monotonic()
            queued = max(0.0, free[sock] - now)
            if (
                kind != socket.PACKET_OUTGOING
                and random.random() >= loss
                and queued < QUEUE_SECONDS
            ):
                free[sock] = now + queued + len(packet) / rate
                bisect.insort(late, (free[sock] + seconds, next(number), to[sock], packet))
        while late and late[0][0] <= time.monotonic():
            _, _, target, packet = late.pop(0)
            target.send(packet)


if __name__ == "__main__":
    main()
