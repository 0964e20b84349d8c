"""The tasks' secret by a real munge, and what another user of the machine can get of it.

Skipped where munge is not installed, and failed where a Slurm is required: `make slurm` gets both.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from munged import Munged, program, running_munged
from slurm_cluster import SlurmUnavailable, slurm_or_skip

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous import munge, secret, secret_means
from slurm_resolver.rendezvous.munge import SOCKET_VARIABLE, Munge, MungeError
from slurm_resolver.rendezvous.secret import describe_means, key_of_offer, own_secret

NOBODY = 65534
LONG = "a value that nobody guesses"
HERE = "n8:23005"
PAYLOAD = secret_means._PAYLOAD + bytes(range(32))
DESCRIBE = "from slurm_resolver.rendezvous.secret import describe_means as d; print(*d())"
TAKE = (
    "import os; from slurm_resolver.rendezvous.secret import key_of_offer, own_secret; "
    "own = own_secret('42.0'); print(own.means, os.geteuid(), "
    "key_of_offer(dict(own.offer), 'here') == own.key)"
)


@pytest.fixture(scope="module")
def munged() -> Iterator[Munged]:
    """A munged that is left as it is."""
    with running_munged() as running:
        yield running


@pytest.fixture(autouse=True)
def _use_munged(munged: Munged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "_own", {})
    monkeypatch.setattr(secret_means, "_keys", {})
    monkeypatch.setenv(SOCKET_VARIABLE, munged.socket)


@contextlib.contextmanager
def as_another_process() -> Iterator[None]:
    """Makes this process forget the keys that it has read."""
    secret_means._keys.clear()
    yield


def needs_root() -> None:
    """Only root can have a command run as another user."""
    if os.geteuid():
        slurm_or_skip(SlurmUnavailable("needs root, to become another user"))


def test_every_task_decodes_the_credential(munged: Munged) -> None:
    assert describe_means() == (
        "munge",
        f"the tasks know each other by munge: munged listens at {munged.socket}",
    )
    own = own_secret("42.0")
    for _ in range(3):  # munge calls the second one replayed
        with as_another_process():
            assert key_of_offer(json.loads(json.dumps(dict(own.offer))), HERE) == own.key


def test_a_credential_is_encrypted_and_for_this_user(munged: Munged) -> None:
    own = own_secret("42.0")
    credential = own.offer["credential"]
    assert own.key not in base64.b64decode(credential.split(":")[1])
    told = munged.unmunge(credential).stdout.splitlines()
    assert "CIPHER:          4" in told  # AES-128
    assert f"UID_RESTRICTION: {os.geteuid()}" in told


def test_another_user_cannot_decode_it(munged: Munged) -> None:
    needs_root()
    done = munged.unmunge(own_secret("42.0").offer["credential"], uid=NOBODY)
    assert done.returncode == 18
    assert "Unauthorized credential for client UID=65534" in done.stderr


def test_another_users_credential_is_not_believed(munged: Munged) -> None:
    needs_root()
    credential = munged.munge(PAYLOAD, "--restrict-uid=0", uid=NOBODY)
    with pytest.raises(RendezvousError, match="it is of user 65534, this process is of 0"):
        key_of_offer({"means": "munge", "credential": credential}, HERE)


def test_a_credential_that_anybody_can_read_is_not_believed(munged: Munged) -> None:
    credential = munged.munge(PAYLOAD, "--cipher=none", f"--restrict-uid={os.geteuid()}")
    with pytest.raises(RendezvousError, match="the credential is not encrypted"):
        key_of_offer({"means": "munge", "credential": credential}, HERE)


def test_an_expired_credential_still_has_the_key(munged: Munged) -> None:
    credential = munged.munge(PAYLOAD, "--ttl=1")
    until = time.monotonic() + 60
    while munged.unmunge(credential).returncode != 15:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert key_of_offer({"means": "munge", "credential": credential}, HERE) == PAYLOAD[-32:]


@pytest.mark.parametrize("credential", ["", "x", "MUNGE:", "MUNGE:é:", "A" * 60_000, "MUNGE:AAAA:"])
def test_rubbish_is_an_error(credential: str) -> None:
    with pytest.raises(RendezvousError, match="cannot read what n8:23005 has made"):
        key_of_offer({"means": "munge", "credential": credential}, HERE)


def test_a_munge_with_another_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = dict(own_secret("42.0").offer)
    with running_munged() as other:
        monkeypatch.setenv(SOCKET_VARIABLE, other.socket)
        with pytest.raises(RendezvousError, match=r"Invalid credential. If .* different keys"):
            key_of_offer(offer, HERE)


def test_a_munged_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_munged() as hanging:
        hasty = {hanging.socket: Munge(hanging.socket, seconds=0.3)}
        monkeypatch.setattr(munge, "_loaded", hasty)
        monkeypatch.setenv(SOCKET_VARIABLE, hanging.socket)
        hanging.process.send_signal(signal.SIGSTOP)
        with pytest.raises(RendezvousError, match=r"munged did not answer within 0.3 s\. Have"):
            own_secret("42.0")
        hanging.process.send_signal(signal.SIGCONT)
        hasty.clear()
        assert own_secret("42.0").means == "munge"


def test_a_munged_that_was_killed_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_munged() as killed:
        monkeypatch.setenv(SOCKET_VARIABLE, killed.socket)
        offer = dict(own_secret("42.0").offer)
        killed.process.kill()
        killed.process.wait()
        assert os.path.exists(killed.socket)
        assert f"no munged listens at {killed.socket}" in describe_means()[1]
        with pytest.raises(
            RendezvousError, match=f"get it: .*no munged listens at {killed.socket}"
        ):
            key_of_offer(offer, HERE)


def test_a_child_by_fork_can_use_it() -> None:
    own = own_secret("42.0")
    child = os.fork()
    if not child:
        good = False
        try:
            secret_means._keys.clear()
            good = key_of_offer(dict(own.offer), HERE) == own.key
            good = good and own_secret("42.0").key != own.key
        finally:
            os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0


# A command that stands around a task, and what the task prints then.
AROUND = {
    "with user ids of its own": (["unshare", "--user"], TAKE, "munge 65534 True"),
    "as root of its own": (["unshare", "--map-root-user"], TAKE, "munge 0 True"),
    "without the socket": (
        ["unshare", "--map-root-user", "--mount", "sh", "-c"],
        DESCRIBE,
        "no munged listens at",
    ),
    "with few file descriptors": (["prlimit", "--nofile=64"], TAKE, f"munge {os.geteuid()} True"),
}


@pytest.mark.parametrize("case", AROUND)
def test_a_task_in_a_container(case: str, munged: Munged) -> None:
    around, code, expected = AROUND[case]
    task = [sys.executable, "-c", code]
    if "sh" in around:
        task = [f"mount -t tmpfs none {munged.folder} && exec {shlex.join(task)}"]
    done = subprocess.run([*around, *task], capture_output=True, text=True)
    assert expected in done.stdout, done.stderr


def test_another_user_reads_neither_file_nor_variable(
    munged: Munged, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_root()
    folder = munged.folder / "keys"  # in a folder that everybody may look into
    monkeypatch.setenv("SLURM_RESOLVER_SECRET_MEANS", "file")
    monkeypatch.setenv("SLURM_RESOLVER_SECRET_FOLDER", str(folder))
    file = folder / own_secret("42.0").offer["file"]
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, env={"SLURM_RESOLVER_SECRET": LONG}
    ) as task:
        places = [f"/proc/{task.pid}/environ", str(file)]
        for mode in (0o700, 0o711):  # the file itself is closed too
            folder.chmod(mode)
            done = subprocess.run(
                ["cat", *places], capture_output=True, text=True, user=NOBODY, group=NOBODY
            )
            assert done.stdout == ""
            assert done.stderr.count("Permission denied") == 2
        assert task.stdin is not None
        task.stdin.close()


def test_the_library_says_what_the_commands_say(munged: Munged) -> None:
    """The numbers of munge.h are right: a wrong one would be another option."""
    mine = Munge(munged.socket)
    assert mine.decode(munged.munge(b"hello")) == (b"hello", os.geteuid())
    assert mine.decode(munged.munge(b"")) == (b"", os.geteuid())
    assert munged.unmunge(mine.encode(b"hello")).stdout.endswith("\n\nhello")
    assert Munge().path.endswith("/munge.socket.2")
    elsewhere = munged.munge(b"hello", "--restrict-uid=12345")
    with pytest.raises(MungeError, match="Unauthorized credential for client"):
        mine.decode(elsewhere)
    assert program("munged")
