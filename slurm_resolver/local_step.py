"""A step of several tasks on this machine, as `srun` makes one on a cluster of one node.

The tasks get the variables that srun sets in a step of one node, recorded from Slurm, but for those
that lead to Slurm's own daemons (SLURM_CONF, SLURM_WORKING_CLUSTER). The ports of srun's traffic
with the tasks have no meaning here and are 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import getpass
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

NODE = "localhost"
GRACE_SECONDS = 5.0  # between the request to end and SIGKILL, as Slurm's KillWait

_FIRST_PORT, _LAST_PORT = 12_288, 32_767
_LONGEST_LINE = 64 * 1024
_PR_SET_PDEATHSIG = 1
# Only the task's own process knows its id before the program starts.
_TELL_PID = ("/bin/sh", "-c", 'export SLURM_TASK_PID=$$; exec "$0" "$@"')
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec it is too late


class LocalStep:
    """Starts the tasks, passes their output on, and ends them all together."""

    def __init__(self, num_tasks: int, cpus_per_task: Optional[int] = None) -> None:
        """Takes the number of tasks and, for each, the CPUs to bind it to."""
        self._num_tasks = num_tasks
        self._cpus = cpus_per_task
        self._processes: List[subprocess.Popen[bytes]] = []
        self._pumps: List[threading.Thread] = []
        # (rank, exit status) of a task that ended, or (None, signal) of a signal to this process;
        # a SimpleQueue may be written to by a signal handler.
        self._events: queue.SimpleQueue[Tuple[Optional[int], int]] = queue.SimpleQueue()
        self._output = threading.Lock()
        self._status = 0
        self._said: List[str] = []

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Starts every task; a signal that comes meanwhile is kept for `wait`."""
        common = step_environment(self._num_tasks, self._cpus, Path(command[0]).name)
        kept = {name: value for name, value in environ.items() if not _is_slurm(name)}
        # A pipe makes Python hold back what a task prints until it ends.
        kept.setdefault("PYTHONUNBUFFERED", "1")
        cpus = sorted(os.sched_getaffinity(0))
        bind = self._cpus if self._cpus and self._cpus * self._num_tasks <= len(cpus) else None
        for rank in range(self._num_tasks):
            process = subprocess.Popen(
                [*_TELL_PID, *command],
                env={**kept, **common, **task_environment(rank)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_in_the_child(cpus[rank * bind : (rank + 1) * bind] if bind else None),
            )
            self._processes.append(process)
            assert process.stdout is not None
            assert process.stderr is not None
            width = len(str(self._num_tasks - 1))
            label = f"{rank:{width}d}: ".encode()
            for source, sink in (
                (process.stdout, sys.stdout.buffer),
                (process.stderr, sys.stderr.buffer),
            ):
                self._run(self._pump, source, sink, label, keep=True)
            self._run(self._watch, rank, process)

    def stop(self, number: signal.Signals) -> None:
        """Passes a signal to all tasks; those that go on are killed. Safe in a signal handler."""
        self._events.put((None, int(number)))

    def wait(self) -> int:
        """Waits for all tasks, and returns the worst exit status of those that ended themselves.

        A task that a signal ended counts as 128 and the signal's number.
        """
        alive = set(range(self._num_tasks))
        deadline: Optional[float] = None
        while alive:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                rank, status = self._events.get(timeout=timeout)
            except queue.Empty:
                self._signal(alive, signal.SIGKILL)
                deadline = time.monotonic() + GRACE_SECONDS
                continue
            ending = deadline is not None
            if rank is None:
                self._said.append(f"{signal.Signals(status).name}: ending all tasks")
                self._status = max(self._status, 128 + status)
                # The second signal means: now.
                self._signal(alive, signal.SIGKILL if ending else signal.Signals(status))
            else:
                alive.discard(rank)
                if ending:
                    continue  # it was told to end: how it did so is not its own failure
                self._status = max(self._status, status)
                if status == 0 or not alive:
                    if status:
                        self._said.append(_failure(rank, status))
                    continue
                self._said.append(f"{_failure(rank, status)}; ending the other tasks")
                self._signal(alive, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
        # As at the end of a Slurm step, what the tasks left behind ends as well.
        self._signal(range(self._num_tasks), signal.SIGKILL)
        for pump in self._pumps:
            pump.join(timeout=1.0)  # one that left its group may still hold the pipe open
        return self._status

    def summary(self) -> List[str]:
        """Returns what went wrong, a line each; empty where all went well."""
        return self._said

    def _run(self, function: Callable[..., None], *args: object, keep: bool = False) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.start()
        if keep:
            self._pumps.append(thread)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        self._events.put((rank, status if status >= 0 else 128 - status))

    def _pump(self, source: BinaryIO, sink: BinaryIO, label: bytes) -> None:
        for line in iter(lambda: source.readline(_LONGEST_LINE), b""):
            text = label + line + (b"" if line.endswith(b"\n") else b"\n")
            try:
                with self._output:
                    sink.write(text)
                    sink.flush()
            except (BrokenPipeError, ValueError):
                return  # nobody reads any more; the task finds that out by itself

    def _signal(self, ranks: Iterable[int], number: signal.Signals) -> None:
        for rank in ranks:
            process = self._processes[rank]
            # The task leads a process group of its own: its children get the signal as well.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def step_environment(num_tasks: int, cpus_per_task: Optional[int], name: str) -> Dict[str, str]:
    """Returns the variables that all tasks of a one-node step have alike."""
    job = str(os.getpid())  # no other step on this machine has it, as no other job has a job id
    cpus = str(num_tasks * (cpus_per_task or 1))
    count = str(num_tasks)
    host = socket.gethostname()
    variables = {
        "SLURMD_NODENAME": NODE,
        "SLURM_CLUSTER_NAME": "local",
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_GTIDS": ",".join(map(str, range(num_tasks))),
        "SLURM_JOBID": job,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NAME": name,
        "SLURM_JOB_NODELIST": NODE,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_PARTITION": "local",
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": getpass.getuser(),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": NODE,
        "SLURM_NPROCS": count,
        "SLURM_NTASKS": count,
        "SLURM_PRIO_PROCESS": str(os.nice(0)),
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_SRUN_COMM_PORT": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_LAUNCHER_PORT": "0",
        "SLURM_STEP_NODELIST": NODE,
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_STEP_RESV_PORTS": ",".join(map(str, free_ports(num_tasks + 1))),
        "SLURM_STEP_TASKS_PER_NODE": count,
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": host,
        "SLURM_TASKS_PER_NODE": count,
        "SLURM_TOPOLOGY_ADDR": NODE,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_UMASK": f"{_umask():04o}",
    }
    if cpus_per_task is not None:
        variables["SLURM_CPUS_PER_TASK"] = str(cpus_per_task)
    return variables


def task_environment(rank: int) -> Dict[str, str]:
    """Returns the variables that one task of a one-node step has for itself."""
    return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}


def _umask() -> int:
    mask = os.umask(0)  # the only way to ask for it is to set it
    os.umask(mask)
    return mask


def free_ports(count: int) -> List[int]:
    """Returns ports on this machine that nobody listens on, below the ephemeral ones.

    Where to start looking follows the process id, so that two steps that start at the same time
    do not find the same ones.
    """
    span = _LAST_PORT - _FIRST_PORT + 1
    start = os.getpid() * 64
    ports = []
    for offset in range(span):
        port = _FIRST_PORT + (start + offset) % span
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return sorted(ports)
    return []  # without reserved ports the resolver derives some from the job id


def _is_slurm(name: str) -> bool:
    """Variables of a step around this one would contradict its own."""
    return name.startswith(("SLURM_", "SLURMD_"))


def _in_the_child(cpus: Optional[Sequence[int]]) -> Callable[[], None]:
    """Between fork and exec: end with the launcher, however it ends, and run on these CPUs."""
    launcher = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it ended before it could be tied to
            os._exit(1)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return prepare


def _failure(rank: int, status: int) -> str:
    if status > 128:
        try:
            return f"task {rank} was ended by {signal.Signals(status - 128).name}"
        except ValueError:
            pass
    return f"task {rank} ended with exit status {status}"
