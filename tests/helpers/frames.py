"""The wire as its description says it, written anew: what strangers and other versions send."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Optional

GREETING = b"slurm_resolver 2\n"


def frame(value: Any) -> bytes:
    """A message: its length in four bytes, then JSON."""
    body = json.dumps(value).encode()
    return struct.pack("!I", len(body)) + body


def read_frame(connection: socket.socket) -> Optional[Any]:
    """The next message; None at the end of the connection."""
    try:
        length = connection.recv(4, socket.MSG_WAITALL)
        if len(length) < 4:
            return None
        return json.loads(connection.recv(struct.unpack("!I", length)[0], socket.MSG_WAITALL))
    except ConnectionResetError:
        return None
