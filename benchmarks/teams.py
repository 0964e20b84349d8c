"""The processes of a benchmark's step: two teams in every task, which do what they are told.

Each task forks one process a team once it has imported TensorFlow. All stay until the end, and
only one team works at a time: so what is compared runs in turn, and one start serves all of it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict

VARIABLE = "BENCHMARK_TEAMS"
_PORTS = 12_000


def obey(prepare: Callable[..., Callable[[int], object]]) -> None:
    """In a task: forks a process for every team, and ends the task when they have ended.

    Each connects to the socket that the benchmark told, says its team, and from then on answers
    every number of steps with the seconds that they took.

    Args:
        prepare: called with the port from which on the team has its own, and the team's keywords;
            returns what does a number of steps.
    """
    modules: Dict[str, Any] = sys.modules
    modules["keras"] = None  # half of TensorFlow's own import, and not needed
    import tensorflow  # noqa: F401 (once for all teams)

    told = json.loads(os.environ[VARIABLE])
    for number, (team, keywords) in enumerate(told["teams"].items()):
        if os.fork() == 0:
            try:
                _serve(told["socket"], team, prepare(_PORTS + 100 * number, **keywords))
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
    failed = any(os.wait()[1] for _ in told["teams"])  # the first ends the task, and the step
    os._exit(int(failed))


def _serve(path: str, team: str, work: Callable[[int], object]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        file = connection.makefile("rw", encoding="ascii")
        write(file, team)
        for line in file:
            start = time.perf_counter()
            work(json.loads(line))
            write(file, time.perf_counter() - start)


def write(file: Any, value: object) -> None:
    """Sends a value, as a line of JSON."""
    file.write(json.dumps(value) + "\n")
    file.flush()


def read(file: Any) -> Any:
    """Returns the value that is sent next.

    Raises:
        EOFError: where there is none, because the other side has ended.
    """
    line = file.readline()
    if not line:
        raise EOFError("a process of the step has ended")
    return json.loads(line)
