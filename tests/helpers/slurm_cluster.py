"""A real Slurm of several nodes on one machine, for tests.

Every node has its own network, hostname and mount namespace, inside one outer set of namespaces
whose first process is a small supervisor:

    the machine ─ unshare ─┬─ login   10.77.0.254   slurmctld, srun, salloc, sbatch
                           ├─ n8      10.77.0.1     slurmd and its tasks
                           └─ n9      10.77.0.2     slurmd and its tasks

The supervisor ends when its standard input closes, even if the test process is killed, and with it
all processes, interfaces and mounts.  Every file is in the cluster's directory, except for the
sockets of the nodes: their paths must be short, and pytest's folders have long names.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from kinds import Completed, Texts
from slurm_command import ClusterCommand, children, descendants, end_srun
from slurm_conf import Node, refuse_odd_path, write_files, write_slurm_conf
from slurm_installation import PATH, Installation, SlurmUnavailable, own

Command = Union[str, Sequence[str]]

PROGRAMS = ("slurmctld", "slurmd", "srun", "scontrol", "ip", "unshare", "nsenter", "setsid")
NAMESPACES = ("--net", "--uts", "--mount", "--pid")
START_TIMEOUT = 20.0
# With these, Python measures the coverage in the tasks as well.
MEASURED = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_FILE")


class SlurmCluster:
    """A real Slurm of several nodes on this machine.

    Nodes keep the given order in Slurm's node table.  The partition `p` lets several jobs share a
    node.  `extra_conf` are lines of slurm.conf, which replace this class's own; one with an empty
    value (`MpiParams=`) removes it.  `installation` is the version of Slurm.  Other files, such as
    topology.conf, may be put into `directory` before `start()`; stop() leaves the logs.

    Which free nodes a job gets may change while earlier jobs are still ending: a test that expects
    certain nodes names them (`srun -w n8,n9`).
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        directory: Path,
        *,
        extra_conf: Sequence[str] = (),
        installation: Installation | None = None,
    ) -> None:
        self.installation = own() if installation is None else installation
        self.nodes = tuple(nodes)
        self.directory = Path(directory).resolve()
        self._names = [node.name for node in nodes]
        self._extra_conf = tuple(extra_conf)
        self._environment = {
            "PATH": self.installation.before(PATH),
            "SLURM_CONF": f"{self.directory}/slurm.conf",
        }
        self._environment.update(_inherited("HOME", "LANG", "TMPDIR"))
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._login = 0  # a process on the login host: the supervisor's shell
        self._commands: list[ClusterCommand] = []
        # The standard input of every command: a pipe without data that never ends. srun would pass
        # an end on to its tasks, and lose output if the tasks end before they read it.
        self._silence: tuple[int, ...] = ()
        self._spool = ""
        refuse_odd_path(str(self.directory))

    def __enter__(self) -> SlurmCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the daemons and return once every node is idle.

        Raises SlurmUnavailable if this machine cannot run it, and RuntimeError with the ends of the
        daemons' logs if the cluster does not come up.
        """
        path = self._environment["PATH"]
        missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
        if missing:
            raise SlurmUnavailable(
                f"not on this machine: {', '.join(missing)}; get them with `make slurm` "
                "(on Debian: apt-get install slurm-wlm iproute2)"
            )
        try:
            self._silence = os.pipe()
            self._write_files()
            self._start_supervisor()
            self._await_idle(time.monotonic() + START_TIMEOUT)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the cluster, and its namespaces; safe to call again."""
        if self._supervisor is not None:
            try:  # closes its standard input; unshare ends when the last process inside is gone
                self._supervisor.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.communicate()
            self._supervisor = None
        while self._commands:
            with self._commands.pop():  # waits, and closes the pipes
                pass
        while self._silence:
            os.close(self._silence[0])
            self._silence = self._silence[1:]
        if self._spool:
            shutil.rmtree(self._spool, ignore_errors=True)
            self._spool = ""

    def run(
        self,
        command: Command,
        *,
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 180.0,
        status: int | None = 0,
    ) -> Completed:
        """Run a command on the login host, a string with `bash -c`, and return what it printed.

        It gets PATH, HOME, LANG, PYTHONPATH and TMPDIR of this process, SLURM_CONF, and `env`.
        Raises AssertionError for another exit status than `status`, unless that is None, and
        TimeoutError, with the output so far, after `timeout` seconds; the command is then killed.
        """
        process = self.popen(command, node=node, env=env, cwd=cwd)
        error: type[Exception] | None = None
        try:
            output = process.communicate(timeout=timeout)
            ended = f"ended with status {process.returncode}"
            if status not in (None, process.returncode):
                error = AssertionError
        except subprocess.TimeoutExpired:
            error = TimeoutError
            ended = f"took longer than {timeout:g} s"
            output = end_srun(process)  # which ends its job
        if error is not None:
            told = "{}\n{}\n--- stdout\n{}\n--- stderr\n{}"
            raise error(told.format(process.shown, ended, *output))
        return subprocess.CompletedProcess(process.shown, process.returncode, *output)

    def run_on(self, node: str, command: Command, **as_run: Any) -> Completed:
        """Run a command as `run()` does, but on one node, and not as a task of Slurm."""
        return self.run(command, node=node, **as_run)

    def popen(
        self,
        command: Command,
        *,
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> ClusterCommand:
        """Start a command as `run()` does, and return without waiting."""
        if self._supervisor is None:
            raise RuntimeError("the cluster is not running")
        env = env or {}
        target = self._login if node is None else self._holder(node)
        user = ["--user", "--preserve-credentials"] if os.geteuid() else []
        words = ["bash", "-c", command] if isinstance(command, str) else command
        process = ClusterCommand(
            [
                "nsenter",
                f"--target={target}",
                *user,
                *NAMESPACES,
                "env",
                f"--chdir={cwd or Path.cwd()}",
                "setsid",
                *words,
            ],
            env={
                **self._environment,
                **_inherited("PYTHONPATH", *MEASURED),
                **env,
                "PATH": self.installation.before(env.get("PATH", PATH)),
            },
            stdin=self._silence[0],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for pytest, which then stops the cluster
        )
        process.find_group()
        self._commands.append(process)
        process.shown = command if isinstance(command, str) else shlex.join(command)
        return process

    def _holder(self, node: str) -> int:
        """Return the process that keeps the namespaces of a node: the shell that made them."""
        wanted = f"\0node\0{self._names.index(node) + 1}\0{node}\0"
        for pid in descendants(self._login):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_text().endswith(wanted):
                    return pid
        raise RuntimeError(f"node {node} is gone")

    def _make_spool(self) -> None:
        """Make the folder of the nodes' sockets, whose paths must fit in a Unix address."""
        self._spool = tempfile.mkdtemp(prefix="slurm")
        os.chmod(self._spool, 0o755)  # another account runs its batch script in there
        name = max(self._names, key=len)
        refuse_odd_path(self._spool)
        if len(f"{self._spool}/{name}/{name}_1000000.4294967292") > 107:
            raise ValueError(f"Slurm needs a short path for temporary files, not {self._spool}")

    def _write_files(self) -> None:
        self._make_spool()
        write_files(self.directory, self.nodes)
        write_slurm_conf(
            here=self.directory,
            nodes=self.nodes,
            spool=self._spool,
            installation=self.installation,
            extra=self._extra_conf,
        )

    def _start_supervisor(self) -> None:
        # An ordinary user keeps the same user id in the user namespace. slurmctld does not start as
        # root without setgroups, which a user namespace forbids.
        user = ["--map-current-user", "--keep-caps"] if os.geteuid() else []
        log = self.directory / "log" / "supervisor.out"
        with log.open("wb") as stderr:
            self._supervisor = subprocess.Popen(
                [
                    "unshare",
                    *user,
                    *NAMESPACES,
                    "--mount-proc",
                    "--fork",
                    "--kill-child",
                    "bash",
                    f"{self.directory}/slurm_namespaces.sh",
                    "login",
                    *self._names,
                ],
                env={
                    **self._environment,
                    "SLURMD": self.installation.slurmd,
                    "DYNAMIC": " ".join(node.name for node in self.nodes if node.dynamic),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        if not self._supervisor.stdout.readline():
            raise SlurmUnavailable(
                "this machine cannot create network namespaces: run as root with all rights, or "
                f"allow unprivileged user namespaces; the error is: {log.read_text().strip()}"
            )
        self._login = children(self._supervisor.pid)[0]

    def _await_idle(self, deadline: float) -> None:
        run = self.directory / "run"
        answer = ""
        idle = {f"{name} idle" for name in self._names}
        while time.monotonic() < deadline and not (run / "ended").exists():
            if (run / "listening").exists():
                answer = self.run(["sinfo", "--noheader", "--format=%n %T"], status=None).stdout
                if idle == set(answer.splitlines()):
                    return
            time.sleep(0.02)
        tails = ["Slurm did not come up", f"sinfo: {', '.join(answer.splitlines())}"]
        for log in [*sorted(self.directory.glob("log/*.out")), run / "ended"]:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            tails += [f"--- {log}", *lines[-15:]] if lines else []
        raise RuntimeError("\n".join(tails))


def _inherited(*names: str) -> Texts:
    """Return the variables with these names that this process has."""
    return {name: os.environ[name] for name in names if name in os.environ}
