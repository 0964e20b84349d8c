"""Runs the compared variants of a benchmark within one step of Slurm.

Every task imports TensorFlow once and forks a process for each variant. All processes live until
the end of the step, but only one variant works at a time. The variants are thus measured in turn,
and the step starts only once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from typing import Any, Callable

VARIABLE = "BENCHMARK_VARIANTS"
_FIRST_PORT = 12_000


def serve_variants(
    prepare: Callable[..., Callable[[int], object]], *, with_keras: bool = False
) -> None:
    """Forks a process for every variant, and exits when they have ended.

    Each process connects to the benchmark's socket and sends the name of its variant. Then it
    receives numbers of steps; it runs them and answers with the seconds that they took.

    Args:
        prepare: called with the first port that the variant may use, and with its keywords;
            returns a function that runs a number of steps.
        with_keras: whether it uses Keras, which is half of the time of TensorFlow's import.
    """
    if not with_keras:
        modules: dict[str, Any] = sys.modules
        modules["keras"] = None
    import tensorflow  # noqa: F401 (imported once, for all variants)

    settings = json.loads(os.environ[VARIABLE])
    variants = settings["variants"]
    for number, (name, keywords) in enumerate(variants.items()):
        if os.fork() == 0:
            try:
                run_steps = prepare(_FIRST_PORT + 100 * number, **keywords)
                _serve(settings["socket"], name, run_steps)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
    failed = any(os.wait()[1] for _ in variants)  # stops at the first process that fails
    os._exit(int(failed))


def _serve(path: str, name: str, run_steps: Callable[[int], object]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        file = connection.makefile("rw", encoding="ascii")
        send(file, name)
        for line in file:
            start = time.perf_counter()
            run_steps(json.loads(line))
            send(file, time.perf_counter() - start)


def send(file: Any, value: object) -> None:
    """Sends a value as a line of JSON."""
    file.write(json.dumps(value) + "\n")
    file.flush()


def receive(file: Any) -> Any:
    """Returns the next value.

    Raises:
        EOFError: if the other side has ended.
    """
    line = file.readline()
    if not line:
        raise EOFError("a process of the step has ended")
    return json.loads(line)
