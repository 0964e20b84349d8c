"""Whether a program only waits in `tf.distribute.Server.join()`, told by facts of the kernel.

A worker of a ParameterServerStrategy only serves, one of a between-graph program trains, and no
name tells them apart. `join()` waits for a thread of the server to end: glibc's pthread_join, a
wait on the thread's own id without a time limit. A thread that trains waits for other things: a
condition, a sleep, a file. How long it does says nothing: a step may take minutes and hardly any
CPU.

| process of the program | to wait in join() |
|---|---|
| at least one | its main thread waits for another thread of the process to end |
| those above it: shells, launchers | they sleep |
| any other | its main thread waits for a child or for a pipe |

And of all, while so many looks follow each other: the same processes, whose main threads have not
been woken, nor the thread that is waited for, and which together have used almost no CPU. A stopped
process does not sleep. Looks are counted, not seconds: none is taken while the job is suspended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

LOOKS = 11  # after each other, 3 s apart, so 30 s
LOOK_SECONDS = 3.0
# TensorFlow's idle servers use 0.1 % of a CPU, for gRPC's timers.
_IDLE_CPU = 0.01


class _Calls(NamedTuple):
    """The numbers of system calls on one kind of machine."""

    futex: int
    waits: Tuple[int, ...]  # read, wait4, waitid


_CALLS = {"x86_64": _Calls(202, (0, 61, 247)), "aarch64": _Calls(98, (63, 260, 95))}
# From linux/futex.h. Waiting for a thread to end is not private, as the kernel itself wakes it.
_FUTEX_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_FUTEX_COMMAND, _FUTEX_PRIVATE = 0x7F, 0x80


class _Stat(NamedTuple):
    """What `/proc/PID/stat` says of a process: `cpu` in clock ticks, with its ended children's."""

    state: str
    parent: int
    threads: int
    cpu: int
    started: int


class _Sight(NamedTuple):
    """One look at an idle program: what must not change, and the CPU that it has used so far."""

    unchanged: Tuple[Tuple[int, ...], ...]
    cpu: int


class JoinWatch:
    """Looks again and again at a process, and all those that it has started."""

    def __init__(
        self, looks: int = LOOKS, look_seconds: float = LOOK_SECONDS, proc: Path = Path("/proc")
    ) -> None:
        """Takes how many looks after each other have to agree, and the time between two."""
        self._looks = looks
        self._pause_cpu = _IDLE_CPU * look_seconds * os.sysconf("SC_CLK_TCK")  # at most
        self._proc = proc
        self._calls = _CALLS.get(os.uname().machine)
        self._first: Optional[_Sight] = None  # of those that agree
        self._agreeing = 0
        self._top_cpu = 0  # of the process itself

    def look(self, pid: Optional[int]) -> bool:
        """Looks once, and returns whether the program has only waited in join() in all looks."""
        sight = None if pid is None or self._calls is None else self._see(pid, self._calls)
        first = self._first
        agrees = (
            sight is not None
            and first is not None
            and sight.unchanged == first.unchanged
            and sight.cpu - first.cpu <= (self._looks - 1) * self._pause_cpu
        )
        if not agrees:
            self._first, self._agreeing = sight, 0
        self._agreeing += sight is not None
        return self._agreeing >= self._looks

    def _see(self, pid: int, calls: _Calls) -> Optional[_Sight]:
        """Returns what a look shows; None where the program does something, or cannot be seen."""
        try:
            top, before = self._stat(pid), self._top_cpu
            self._top_cpu = top.cpu
            if top.state != "S" or top.cpu - before > self._pause_cpu:
                return None  # it is busy, as most often, and there is no more to know
            processes = self._tree(pid)
            waited_for = {one: self._joined_thread(one, calls) for one in processes}
            above = self._above([one for one in processes if waited_for[one]], processes)
            if not above:
                return None
            unchanged: List[Tuple[int, ...]] = []
            for one, stat in processes.items():
                thread = waited_for[one]
                if stat.state != "S" or not (one in above or self._waits(one, calls)):
                    return None
                woken = [self._woken(one, tid) for tid in (one, thread) if tid is not None]
                unchanged.append((one, stat.started, thread or 0, *woken))
            return _Sight(tuple(unchanged), sum(stat.cpu for stat in processes.values()))
        except (OSError, ValueError, LookupError):  # it has just ended, or nobody may look at it
            return None

    def _tree(self, pid: int) -> Dict[int, _Stat]:
        """Returns a process and all below it that have not ended."""
        stats: Dict[int, _Stat] = {}
        for name in os.listdir(self._proc):
            if name.isdecimal():
                try:
                    stats[int(name)] = self._stat(int(name))
                except OSError:  # it has ended
                    continue
        children: Dict[int, List[int]] = {}
        for one, stat in stats.items():
            if stat.state != "Z" or stat.threads > 1:
                children.setdefault(stat.parent, []).append(one)
        tree = [pid]
        for one in tree:  # which grows
            tree += children.get(one, [])
        return {one: stats[one] for one in sorted(tree)}

    @staticmethod
    def _above(joined: List[int], processes: Dict[int, _Stat]) -> List[int]:
        """Returns those that wait in join(), and all above them."""
        above: List[int] = []
        for one in joined:
            while one in processes and one not in above:
                above.append(one)
                one = processes[one].parent
        return above

    def _stat(self, pid: int) -> _Stat:
        # The name of the program, in parentheses, may hold anything.
        words = (self._proc / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()
        cpu = sum(int(word) for word in words[11:15])
        return _Stat(words[0].decode(), int(words[1]), int(words[17]), cpu, int(words[19]))

    def _call(self, pid: int) -> List[int]:
        """Returns the system call in which the main thread sleeps, and what it was given."""
        words = (self._proc / f"{pid}/task/{pid}/syscall").read_text().split()
        return [int(word, 0) for word in words] if words[0] != "running" else []

    def _waits(self, pid: int, calls: _Calls) -> bool:
        """Returns whether the main thread waits for a child, or for a pipe."""
        call = self._call(pid)
        return bool(call) and call[0] in calls.waits

    def _joined_thread(self, pid: int, calls: _Calls) -> Optional[int]:
        """Returns the thread whose end the main thread waits for, for ever; None if for none."""
        try:
            call = self._call(pid)
        except OSError:  # another user's, such as a container's starter, which may be above
            return None
        if len(call) < 5 or call[0] != calls.futex:
            return None
        operation, value, timeout = call[2], call[3] & 0xFFFFFFFF, call[4]
        if operation & _FUTEX_COMMAND not in _FUTEX_WAITS or operation & _FUTEX_PRIVATE or timeout:
            return None
        for name in os.listdir(self._proc / f"{pid}/task"):
            tid = int(name)
            # Its number in its own PID namespace, a container's, is the last one.
            if tid != pid and int(self._status(pid, tid)["NSpid"].split()[-1]) == value:
                return tid
        return None

    def _woken(self, pid: int, tid: int) -> int:
        """Returns how often a thread has begun to wait, or was made to."""
        status = self._status(pid, tid)
        return sum(int(status[f"{kind}_ctxt_switches"]) for kind in ("voluntary", "nonvoluntary"))

    def _status(self, pid: int, tid: int) -> Dict[str, str]:
        lines = (self._proc / f"{pid}/task/{tid}/status").read_text().splitlines()
        return {name: value for name, _, value in (line.partition(":") for line in lines)}
