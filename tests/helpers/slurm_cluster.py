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
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Union

import pytest
from slurm_installation import PATH, Installation, own

Command = Union[str, Sequence[str]]
Completed = subprocess.CompletedProcess[str]

PROGRAMS = ("slurmctld", "slurmd", "srun", "scontrol", "ip", "unshare", "nsenter", "setsid")
NAMESPACES = ("--net", "--uts", "--mount", "--pid")
START_TIMEOUT = 20.0

# Runs as `bash namespaces.sh login NODE...`, and for each node as `... node NUMBER NAME`;
# SLURMD is the command of a node's daemon. DYNAMIC contains the nodes that are not in slurm.conf.
_SCRIPT = r"""
set -eu
cd "${0%/*}"
export SLURM_CONF=$PWD/slurm.conf

daemon() {  # notes a daemon that ends, so that start() stops waiting
    name=$1; shift
    "$@" </dev/null >>"log/$name.out" 2>&1 || echo "$name: exit status $?" >>run/ended
}

if [ "$1" = node ]; then
    hostname "$3"
    # A node makes its own cable and hands the far end to process 1, on the login's network.
    ip link set lo up
    ip link add eth0 type veth peer name "port$2" netns 1
    ip addr add "10.77.0.$2/24" dev eth0
    ip link set eth0 up
    nsenter --target 1 --net ip link set "port$2" master bridge0 up
    case " $DYNAMIC " in *" $3 "*) SLURMD="$SLURMD -Z --conf NodeAddr=10.77.0.$2" ;; esac
    daemon "slurmd-$3" $SLURMD -D -f "$SLURM_CONF" -N "$3"
    exec sleep infinity  # keeps the node's namespaces for run_on()
fi
hostname login
mount --bind hosts /etc/hosts
mount -t tmpfs run /run  # where the daemons of auth/slurm put their sockets
# Newer daemons query DNS, and wait for an answer that never comes here.
[ ! -e /etc/resolv.conf ] || mount --bind /dev/null /etc/resolv.conf
ip link set lo up
# Without an address of its own, a bridge changes its address, which breaks connections.
ip link add bridge0 address 02:00:00:00:00:fe type bridge
ip addr add 10.77.0.254/24 dev bridge0
ip link set bridge0 up
shift
echo ready
daemon slurmctld slurmctld -D -c -f "$SLURM_CONF" &
(   # Daemons retry after whole seconds, so wait for the controller's port, 6817, before they start.
    until grep -q ':1AA1 .* 0A ' /proc/net/tcp; do sleep 0.01; done
    touch run/listening
    number=0
    for name; do
        number=$((number + 1))
        daemon "node-$name" unshare --net --uts --mount bash "$0" node $number "$name" &
        # Dynamic nodes enter the node table in the order in which they register.
        case " $DYNAMIC " in *" $name "*)
            until scontrol show node "$name" >>log/dynamic.out 2>&1; do sleep 0.02; done ;;
        esac
    done
    wait
) &
read -r _ || true
"""


class SlurmUnavailable(Exception):  # noqa: N818 (a state of the machine, not a fault)
    """Slurm cannot run on this machine; the message says what is missing, and how to install it."""


@dataclass(frozen=True)
class Node:
    """One node: its name, which is also its hostname, and the CPUs and GPUs that Slurm assumes.

    A `dynamic` node is not in slurm.conf: it registers itself, with the machine's CPUs. The
    cluster's `extra_conf` needs a partition with `Nodes=ALL`.
    """

    name: str
    cpus: int = 8
    gpus: int = 0
    dynamic: bool = False


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
        self._commands: list[_Command] = []
        # The standard input of every command: a pipe without data that never ends. srun would pass
        # an end on to its tasks, and lose output if the tasks end before they read it.
        self._silence: tuple[int, ...] = ()
        self._spool = ""
        _refuse_odd_path(str(self.directory))

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
        check: bool = True,
    ) -> Completed:
        """Run a command on the login host, a string with `bash -c`, and return what it printed.

        It gets PATH, HOME, LANG, PYTHONPATH and TMPDIR of this process, SLURM_CONF, and `env`.
        Raises AssertionError for a status other than 0 if `check`, and TimeoutError, with the
        output so far, after `timeout` seconds; the command is then killed.
        """
        process = self.popen(command, node=node, env=env, cwd=cwd)
        error: type[Exception] | None = None
        try:
            output = process.communicate(timeout=timeout)
            ended = f"ended with status {process.returncode}"
            if check and process.returncode != 0:
                error = AssertionError
        except subprocess.TimeoutExpired:
            error, ended = TimeoutError, f"took longer than {timeout:g} s"
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
    ) -> _Command:
        """Start a command as `run()` does, and return without waiting."""
        if self._supervisor is None:
            raise RuntimeError("the cluster is not running")
        target = self._login if node is None else self._holder(node)
        user = ["--user", "--preserve-credentials"] if os.geteuid() else []
        words = ["bash", "-c", command] if isinstance(command, str) else command
        process = _Command(
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
            env=self._environment_with(env or {}),
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

    def _environment_with(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            **self._environment,
            **_inherited("PYTHONPATH"),
            **env,
            "PATH": self.installation.before(env.get("PATH", PATH)),
        }

    def _holder(self, node: str) -> int:
        """Return the process that keeps the namespaces of a node: the shell that made them."""
        wanted = f"\0node\0{self._names.index(node) + 1}\0{node}\0"
        for pid in _descendants(self._login):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_text().endswith(wanted):
                    return pid
        raise RuntimeError(f"node {node} is gone")

    def _make_spool(self) -> None:
        """Make the folder of the nodes' sockets, whose paths must fit in a Unix address."""
        self._spool = tempfile.mkdtemp(prefix="slurm")
        os.chmod(self._spool, 0o755)  # another account runs its batch script in there
        name = max(self._names, key=len)
        _refuse_odd_path(self._spool)
        if len(f"{self._spool}/{name}/{name}_1000000.4294967292") > 107:
            raise ValueError(f"Slurm needs a short path for temporary files, not {self._spool}")

    def _write_files(self) -> None:
        here = self.directory
        self._make_spool()
        for name in ("log", "run", "state", "gpu"):
            shutil.rmtree(here / name, ignore_errors=True)
            (here / name).mkdir(parents=True)
        for number in range(max(node.gpus for node in self.nodes)):
            (here / "gpu" / f"gpu{number}").symlink_to(os.devnull)  # slurmd wants a device
        addresses = [f"10.77.0.{number} {name}" for number, name in enumerate(self._names, 1)]
        gres = [
            f"NodeName={node.name} Name=gpu File={here}/gpu/gpu[0-{node.gpus - 1}]"
            for node in self.nodes
            if node.gpus
        ]
        (here / "hosts").write_text(
            "\n".join(["127.0.0.1 localhost", "10.77.0.254 login", *addresses]) + "\n"
        )
        (here / "gres.conf").write_text("\n".join(gres) + "\n")
        # Without this line, slurmd does not start on some machines' cgroups. It needs none here.
        (here / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (here / "slurm.conf").write_text("\n".join(self._slurm_conf()) + "\n")
        (here / "namespaces.sh").write_text(_SCRIPT)

    def _slurm_conf(self) -> list[str]:
        # Short periods of the scheduler are for jobs that wait (heterogeneous, batch, requeued).
        # With the default periods, these jobs would start up to a minute later.
        here, user = self.directory, os.geteuid()
        lines = f"""
            ClusterName=test SlurmctldHost=login(10.77.0.254) SlurmUser={user} SlurmdUser={user}
            AuthType=auth/none CredType=cred/none AuthInfo=cred_expire=5
            ProctrackType=proctrack/linuxproc TaskPlugin=task/none
            JobAcctGatherType=jobacct_gather/none MpiDefault=none MpiParams=ports=23000-23999
            SelectType=select/cons_tres SelectTypeParameters=CR_Core GresTypes=gpu
            SlurmdParameters=config_overrides ReturnToService=2 KillWait=2
            SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
            StateSaveLocation={here}/state SlurmdSpoolDir={self._spool}/%n
            SlurmctldPidFile={here}/run/slurmctld SlurmdPidFile={here}/run/slurmd-%n
            SlurmctldLogFile={here}/log/slurmctld.log SlurmdLogFile={here}/log/slurmd-%n.log
        """.split()
        lines += self.installation.conf
        if any(node.dynamic for node in self.nodes):
            lines += [f"MaxNodeCount={len(self.nodes)}"]
        for number, node in enumerate(self.nodes, 1):
            if node.dynamic:
                continue
            gres = f" Gres=gpu:{node.gpus}" if node.gpus else ""
            lines += [f"NodeName={node.name} NodeAddr=10.77.0.{number} CPUs={node.cpus}{gres}"]
        share = "DefaultTime=10 MaxTime=UNLIMITED OverSubscribe=FORCE:16"
        lines += [f"PartitionName=p Nodes={','.join(self._names)} Default=YES {share}"]
        replaced = {_setting(line) for line in self._extra_conf}
        lines = [line for line in lines if _setting(line) not in replaced]
        return lines + [line for line in self._extra_conf if not line.strip().endswith("=")]

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
                    f"{self.directory}/namespaces.sh",
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
        self._login = _children(self._supervisor.pid)[0]

    def _await_idle(self, deadline: float) -> None:
        run, answer = self.directory / "run", ""
        idle = {f"{name} idle" for name in self._names}
        while time.monotonic() < deadline and not (run / "ended").exists():
            if (run / "listening").exists():
                answer = self.run(["sinfo", "--noheader", "--format=%n %T"], check=False).stdout
                if idle == set(answer.splitlines()):
                    return
            time.sleep(0.02)
        tails = ["Slurm did not come up", f"sinfo: {', '.join(answer.splitlines())}"]
        for log in [*sorted(self.directory.glob("log/*.out")), run / "ended"]:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            tails += [f"--- {log}", *lines[-15:]] if lines else []
        raise RuntimeError("\n".join(tails))


class _Command(subprocess.Popen[str]):
    """A command inside the cluster; signals go to the whole process group of the command.

    This process is nsenter, which only waits. If a signal ended it, the command would keep running.
    """

    shown = ""
    group = 0

    def find_group(self) -> None:
        """Wait for the command to start: setsid makes it the leader of a group."""
        while not self.group and self.poll() is None:
            for pid in _children(self.pid):
                with contextlib.suppress(OSError):
                    if os.getpgid(pid) == pid:
                        self.group = pid
            time.sleep(0.001)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command and its children, unless the command has ended."""
        if self.poll() is None and self.group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group, sig)


@contextlib.contextmanager
def started(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Start the cluster, for a fixture; skip or fail its tests if Slurm cannot run."""
    try:
        cluster.start()
    except SlurmUnavailable as error:
        slurm_or_skip(error)
    try:
        yield cluster
    finally:
        cluster.stop()


def slurm_or_skip(error: SlurmUnavailable) -> NoReturn:
    """Skip a test that needs Slurm, or fail it if SLURM_RESOLVER_REQUIRE_SLURM=1."""
    if os.environ.get("SLURM_RESOLVER_REQUIRE_SLURM") == "1":
        raise error
    pytest.skip(str(error))


def end_srun(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End an srun and the tasks of its step, and return what they printed."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)
    return "", ""


def _refuse_odd_path(path: str) -> None:
    """Raise for a path that slurm.conf cannot contain: it has no quotes."""
    if not re.fullmatch(r"[\w./+@-]*", path):
        raise ValueError(f"Slurm needs a folder with a plain path, not {path}")


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _setting(line: str) -> str:
    """Return the key that a line of slurm.conf sets, with the name of a node or a partition."""
    key, _, value = line.strip().lower().partition("=")
    name = value.split()[:1] if key in ("nodename", "partitionname") else []
    return " ".join([key.strip(), *name])


def _inherited(*names: str) -> dict[str, str]:
    """Return the variables with these names that this process has."""
    return {name: os.environ[name] for name in names if name in os.environ}
