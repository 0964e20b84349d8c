"""Which programs only wait in `join()`, and which are not to be ended, as the kernel tells."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import pytest
from folders import HELPERS

from slurm_resolver.parameter_server.join_watch import JoinWatch

LOOKS, LOOK_SECONDS = 4, 0.1
PYTHON = shlex.quote(sys.executable)
JOINS = f"{PYTHON} {HELPERS / 'joins.py'}"
# A shell command, and whether it only waits in join(). It has to print a line when it does what it
# does, and is run in a session of its own.
PROGRAMS = {
    f"exec {JOINS}": True,
    f"{JOINS}; true": True,
    f"sh -c '{JOINS}; true'; true": True,
    f"{JOINS} | tee /dev/stderr": True,  # which waits for the pipe
    f"{JOINS} & {JOINS} & wait": True,
    # who works, or could, though no CPU is used just now
    f"exec {JOINS} works": False,
    f"exec {JOINS} wakes": False,
    f"sleep 300 & exec {JOINS}": False,
    f"{JOINS} & sleep 300": False,
    "echo; exec sleep 300": False,
    "echo; sleep 300; true": False,
    "echo; read line": False,
    f"exec {PYTHON} -c 'import threading; print(flush=True); threading.Event().wait()'": False,
    f"exec {PYTHON} -c 'import threading as t, time; print(flush=True); "
    "a = t.Thread(target=time.sleep, args=(300,)); a.start(); a.join()'": False,
}


@contextlib.contextmanager
def started(command: str) -> Iterator[int]:
    with subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def looks(watch: JoinWatch, pid: int, number: int = 2 * LOOKS) -> bool:
    """Whether it is true of so many looks at least at one."""
    found = False
    for _ in range(number):
        time.sleep(LOOK_SECONDS)
        found = watch.look(pid) or found
    return found


def until(watch: JoinWatch, pid: int) -> None:
    deadline = time.monotonic() + 60
    while not watch.look(pid):
        assert time.monotonic() < deadline
        time.sleep(LOOK_SECONDS)


@pytest.mark.parametrize("command", PROGRAMS)
def test_who_waits_in_join(command: str) -> None:
    watch = JoinWatch(LOOKS, LOOK_SECONDS)
    with started(command) as pid:
        if PROGRAMS[command]:
            until(watch, pid)
        else:
            assert not looks(watch, pid)


def test_as_many_looks_as_it_takes() -> None:
    with started(f"exec {JOINS}") as pid:
        until(JoinWatch(LOOKS, LOOK_SECONDS), pid)
        watch = JoinWatch(LOOKS, 60.0)  # with much CPU to spare
        assert [watch.look(pid) for _ in range(LOOKS + 1)] == [False] * (LOOKS - 1) + [True] * 2


def test_a_stopped_process_does_not_sleep() -> None:
    watch = JoinWatch(LOOKS, LOOK_SECONDS)
    with started(f"exec {JOINS}") as pid:
        until(watch, pid)
        os.kill(pid, signal.SIGSTOP)
        while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
            time.sleep(0.01)
        assert not looks(watch, pid)
        os.kill(pid, signal.SIGCONT)
        assert not watch.look(pid)  # it has to wait anew
        until(watch, pid)


def test_one_that_has_ended() -> None:
    watch = JoinWatch(LOOKS, LOOK_SECONDS)
    with started(f"exec {JOINS}") as pid:
        until(watch, pid)
    assert not watch.look(pid)
    assert not watch.look(None)


def test_another_one_in_its_place(tmp_path: Path) -> None:
    """A launcher that starts the program again."""
    watch = JoinWatch(LOOKS, LOOK_SECONDS)
    loop = f"while true; do {JOINS} > {tmp_path}/pid; echo; done"
    with started(f"echo; {loop}") as pid:
        until(watch, pid)
        first = (tmp_path / "pid").read_text()
        os.kill(int(first), signal.SIGKILL)
        while (tmp_path / "pid").read_text() in ("", first):
            time.sleep(0.01)
        assert not watch.look(pid)
        until(watch, pid)


class Seen:
    """What the kernel has told of a process, in files that a test can change."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.folder = folder
        for task in Path(f"/proc/{pid}/task").iterdir():
            own = folder / str(pid) / "task" / task.name
            own.mkdir(parents=True)
            for name in ("status", "syscall"):
                shutil.copyfile(task / name, own / name)
        shutil.copyfile(f"/proc/{pid}/stat", folder / str(pid) / "stat")
        self.main = folder / str(pid) / "task" / str(pid)
        (self.thread,) = (p for p in self.main.parent.iterdir() if p != self.main)


def in_container(seen: Seen) -> None:
    status, own = seen.thread / "status", f"NSpid:\t{seen.thread.name}"
    status.write_text(status.read_text().replace(own, f"{own}\t12"))
    change_call(seen, 3, "0xc")


def change_call(seen: Seen, index: int, word: str) -> None:
    words = (seen.main / "syscall").read_text().split()
    (seen.main / "syscall").write_text(" ".join([*words[:index], word, *words[index + 1 :]]))


# What changes, and whether it still is a wait for a thread.
CHANGES: Dict[str, Tuple[Callable[[Seen], Any], bool]] = {
    "a private wait, as for a condition": (lambda seen: change_call(seen, 2, "0x189"), False),
    "a wait of glibc before 2.31": (lambda seen: change_call(seen, 2, "0x0"), True),
    "a wait with a time limit": (lambda seen: change_call(seen, 4, "0x7f0000000000"), False),
    "a wait for something else": (lambda seen: change_call(seen, 3, "0x1"), False),
    "another system call": (lambda seen: change_call(seen, 0, "1"), False),
    "running": (lambda seen: (seen.main / "syscall").write_text("running\n"), False),
    "not told": (lambda seen: (seen.main / "syscall").unlink(), False),
    "a container's numbers": (in_container, True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_wait_for_a_thread_looks_like(name: str, tmp_path: Path) -> None:
    change, still = CHANGES[name]
    with started(f"exec {JOINS}") as pid:
        until(JoinWatch(LOOKS, LOOK_SECONDS), pid)
        seen = Seen(pid, tmp_path)
    watch = JoinWatch(1, LOOK_SECONDS, tmp_path)
    watch.look(pid)  # its CPU since then is what counts
    assert watch.look(pid)
    change(seen)
    assert watch.look(pid) == still
