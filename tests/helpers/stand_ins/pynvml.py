"""A stand-in for nvidia-ml-py, for machines that have no GPU.

The variable NVML_STAND_IN holds, as JSON, the number of GPUs of each node, by hostname. A node that
is not in it has no driver.
"""

# ruff: noqa: N802 (the names are nvidia-ml-py's)

from __future__ import annotations

import json
import os
import socket

_NUMBERS = json.loads(os.environ.get("NVML_STAND_IN", "{}"))


class NVMLError(Exception):
    """An error that the driver reports."""


def nvmlInit() -> None:
    """Raises NVMLError if this node has no driver."""
    if socket.gethostname() not in _NUMBERS:
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown() -> None:
    """Does nothing."""


def nvmlDeviceGetCount() -> int:
    """Returns the number of GPUs."""
    return int(_NUMBERS[socket.gethostname()])
