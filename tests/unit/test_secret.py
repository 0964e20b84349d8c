"""Where the tasks' secret comes from: by which means, what is offered, and what is not believed."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from slurm_resolver.errors import RendezvousError
from slurm_resolver.rendezvous import munge, secret, secret_file, secret_means
from slurm_resolver.rendezvous.munge import Decoded, MungeError, find_munge
from slurm_resolver.rendezvous.secret import describe_means, key_of_offer, own_secret
from slurm_resolver.rendezvous.secret_file import (
    SecretFileError,
    SharedFolder,
    find_folder,
    kind_of_file_system,
    read_key,
    restore_key,
    write_key,
)
from slurm_resolver.rendezvous.secret_means import RenewedOffer

LONG = "a value that nobody guesses"
KEY = bytes(range(32))
HERE = "n1:23005"

Offer = Dict[str, Any]


class FakeMunge:
    """Munge as its users see it: credentials are handles of what is in them."""

    path = "/run/munge/fake"

    def __init__(self, uid: int = 1000, problem: str = "") -> None:
        self.uid, self.problem = uid, problem
        self.made: Dict[str, Decoded] = {}
        self.decoded: List[str] = []

    def own_uid(self) -> int:
        return self.uid

    def encode(self, payload: bytes, uid: Optional[int] = None) -> str:
        if self.problem:
            raise MungeError(self.problem)
        credential = f"MUNGE:{len(self.made)}:"
        self.made[credential] = Decoded(payload, self.uid if uid is None else uid)
        return credential

    def decode(self, credential: str) -> Decoded:
        self.decoded.append(credential)
        if self.problem or credential not in self.made:
            raise MungeError(self.problem or "Invalid credential")
        return self.made[credential]


@pytest.fixture(autouse=True)
def fake_munge(monkeypatch: pytest.MonkeyPatch) -> FakeMunge:
    """What `with_munge` puts in place; without it there is no munge, and nothing is known yet."""
    monkeypatch.setattr(secret, "find_munge", lambda: "there is no munge")
    monkeypatch.setattr(secret_file, "_homes", {os.geteuid(): "the home directory is local"})
    monkeypatch.setattr(secret, "_own", {})
    monkeypatch.setattr(secret_means, "_keys", {})
    return FakeMunge()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder for keys that is not there yet."""
    return str(tmp_path / "keys")


Arrange = Callable[..., None]


@pytest.fixture
def arrange(monkeypatch: pytest.MonkeyPatch, fake_munge: FakeMunge, folder: str) -> Arrange:
    """Makes the world of a task: `arrange("munge", SLURM_RESOLVER_SECRET=…)`."""

    def arranged(*there: str, **variables: str) -> None:
        for name in (secret_means.VARIABLE, secret.MEANS_VARIABLE, secret_file.FOLDER_VARIABLE):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found: object = fake_munge if "munge" in there else "there is no munge"
        monkeypatch.setattr(secret, "find_munge", lambda: found)
        home: object = "the home directory is local"
        if "file" in there:
            home = SharedFolder(folder, "/home is on nfs4")
        monkeypatch.setattr(secret_file, "_homes", {os.geteuid(): home})

    return arranged


VARIABLE = {"SLURM_RESOLVER_SECRET": LONG}

# What is there, the variables, and the means that comes of it; or a part of the error.
MEANS: Dict[str, Tuple[Tuple[str, ...], Dict[str, str], str]] = {
    "nothing": ((), {}, ""),
    "the variable": (("munge", "file"), VARIABLE, "SLURM_RESOLVER_SECRET"),
    "munge": (("munge", "file"), {}, "munge"),
    "a shared home": (("file",), {}, "file"),
    "a folder": ((), {"SLURM_RESOLVER_SECRET_FOLDER": "FOLDER"}, "file"),
    "munge, and a folder": (("munge",), {"SLURM_RESOLVER_SECRET_FOLDER": "FOLDER"}, "munge"),
    "told to take munge": (("munge", "file"), {"SLURM_RESOLVER_SECRET_MEANS": "munge"}, "munge"),
    "told to take a file": (("munge", "file"), {"SLURM_RESOLVER_SECRET_MEANS": "file"}, "file"),
    "told to take none": (("munge", "file"), {"SLURM_RESOLVER_SECRET_MEANS": "none"}, ""),
    "told, and the variable": (
        ("munge",),
        {**VARIABLE, "SLURM_RESOLVER_SECRET_MEANS": "none"},
        "SLURM_RESOLVER_SECRET",
    ),
}
BAD_MEANS: Dict[str, Tuple[Tuple[str, ...], Dict[str, str], str]] = {
    "a short value": ((), {"SLURM_RESOLVER_SECRET": "x" * 15}, "15 characters: expected are at"),
    "an empty value": (("munge",), {"SLURM_RESOLVER_SECRET": ""}, "$(openssl rand -hex 32)"),
    "an unknown means": (
        ("munge",),
        {"SLURM_RESOLVER_SECRET_MEANS": "kerberos"},
        "SLURM_RESOLVER_SECRET_MEANS is 'kerberos': expected is munge, file or none",
    ),
    "an unknown means, and the variable": (
        (),
        {**VARIABLE, "SLURM_RESOLVER_SECRET_MEANS": ""},
        "SLURM_RESOLVER_SECRET_MEANS is ''",
    ),
    "munge, which is not there": (
        ("file",),
        {"SLURM_RESOLVER_SECRET_MEANS": "munge"},
        "is munge, but there is no munge. Have munged started",
    ),
    "a file, for which there is no place": (
        ("munge",),
        {"SLURM_RESOLVER_SECRET_MEANS": "file"},
        "is file, but the home directory is local. Name a folder that all nodes share in SLURM_RES",
    ),
    "a folder whose path is not full": (
        (),
        {"SLURM_RESOLVER_SECRET_FOLDER": "keys"},
        "SLURM_RESOLVER_SECRET_FOLDER is 'keys': expected is the full path",
    ),
}


@pytest.mark.parametrize("case", MEANS)
def test_the_first_means_that_is_there_is_taken(case: str, arrange: Arrange, folder: str) -> None:
    there, variables, expected = MEANS[case]
    arrange(*there, **{name: value.replace("FOLDER", folder) for name, value in variables.items()})
    own = own_secret("42.0")
    assert own.means == expected
    assert own.offer.get("means", "") == expected
    assert describe_means()[0] == expected
    assert bool(own.key) is bool(expected)
    assert key_of_offer(json.loads(json.dumps(dict(own.offer))), HERE) == own.key
    said = json.dumps(dict(own.offer))
    assert LONG not in said
    assert not own.key or own.key.hex() not in said


@pytest.mark.parametrize("case", BAD_MEANS)
def test_what_cannot_be_used_is_an_error(case: str, arrange: Arrange) -> None:
    there, variables, expected = BAD_MEANS[case]
    arrange(*there, **variables)
    for asked in (lambda: own_secret("42.0"), lambda: key_of_offer({}, HERE), describe_means):
        with pytest.raises(RendezvousError) as raised:
            asked()
        assert expected in str(raised.value)


# What the host has, what another task has, and parts of that one's error.
DIFFERENT: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...], List[str]]] = {
    "nothing, munge": (
        (),
        ("munge",),
        ["n1:23005 offers no secret", "munge is there: munged listens at /run/munge/fake", "=none"],
    ),
    "nothing, a file": ((), ("file",), ["offers no secret", "/home is on nfs4", "openssl rand"]),
    "nothing, the variable": ((), ("VARIABLE",), ["offers no secret", "is set. Either srun"]),
    "a file, munge": (("file",), ("munge",), ["in a file", "munge is there", "openssl rand"]),
    "munge, the variable": (("munge",), ("VARIABLE",), ["by munge", "(--export)"]),
    "the variable, nothing": (("VARIABLE",), (), ["in this task it is not set", "(--export)"]),
    "the variable, munge": (("VARIABLE",), ("munge",), ["in this task it is not set"]),
    "munge, nothing": (("munge",), (), ["cannot get it", "there is no munge", "openssl rand"]),
    "munge, a file": (("munge",), ("file",), ["cannot get it: /home is on nfs4"]),
    "munge, told none": (("munge",), ("none",), ["it: SLURM_RESOLVER_SECRET_MEANS is none"]),
    "a file, nothing": (("file",), (), ["cannot get it", "the home directory is local"]),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_an_offer_is_refused_that_the_task_would_not_make(case: str, arrange: Arrange) -> None:
    host, other, expected = DIFFERENT[case]

    def become(words: Tuple[str, ...]) -> None:
        variables = dict(VARIABLE) if "VARIABLE" in words else {}
        if "none" in words:
            variables["SLURM_RESOLVER_SECRET_MEANS"] = "none"
        arrange(*words, **variables)

    become(host)
    offer = dict(own_secret("42.0").offer)
    become(other)
    with pytest.raises(RendezvousError) as raised:
        key_of_offer(offer, HERE)
    assert not [part for part in expected if part not in str(raised.value)], raised.value


def test_tasks_of_which_only_some_have_it_by_pmi2_are_told_so(
    arrange: Arrange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret, "_by_pmi2", {})
    monkeypatch.setattr(secret, "_no_pmi2", {})
    arrange("munge")
    by_munge = dict(own_secret("42.0").offer)
    with pytest.raises(
        RendezvousError, match=r"cannot get it: not all tasks have come, or another program"
    ):
        key_of_offer({"means": "PMI-2"}, HERE)
    secret.explain_missing_pmi2("slurmstepd did not answer")
    with pytest.raises(RendezvousError, match=r"get it: slurmstepd did not answer\..*PMI2=off"):
        key_of_offer({"means": "PMI-2"}, HERE)
    secret.remember_shared(b"k" * 64)
    assert key_of_offer({"means": "PMI-2"}, HERE) == b"k" * 64
    for offer, has in ((by_munge, "by munge"), ({}, "offers no secret")):
        with pytest.raises(RendezvousError, match=rf"{has}, but the tasks have told .* by PMI-2"):
            key_of_offer(offer, HERE)
    with pytest.raises(RendezvousError, match="has not handed it on"):
        key_of_offer({"means": "SLURM_RESOLVER_SECRET"}, HERE)


@pytest.mark.parametrize("means", ["kerberos", None, 5, ["munge"], {"munge": 1}, "x" * 5000])
def test_an_offer_of_an_unknown_kind_is_an_error(means: object, arrange: Arrange) -> None:
    arrange("munge")
    with pytest.raises(RendezvousError, match="does not know") as raised:
        key_of_offer({"means": means}, HERE)
    assert len(str(raised.value)) < 250


def test_another_value_gives_another_key(arrange: Arrange) -> None:
    keys = set()
    for value in (LONG, LONG + " ", "\udcff" * 16):
        arrange(SLURM_RESOLVER_SECRET=value)
        keys.add(key_of_offer({"means": "SLURM_RESOLVER_SECRET"}, HERE))
    assert len(keys) == 3


def test_a_process_has_one_secret_for_each_step(arrange: Arrange) -> None:
    arrange("munge")
    assert own_secret("42.0") is own_secret("42.0")
    assert own_secret("42.1").key != own_secret("42.0").key


def test_a_credential_is_decoded_once(arrange: Arrange, fake_munge: FakeMunge) -> None:
    arrange("munge")
    offer = dict(own_secret("42.0").offer)
    assert key_of_offer(offer, HERE) == key_of_offer(offer, HERE)
    assert len(fake_munge.decoded) == 1


def test_a_task_does_not_keep_all_keys_that_it_ever_had(
    arrange: Arrange, fake_munge: FakeMunge
) -> None:
    arrange("munge")
    offers = [dict(own_secret(str(number)).offer) for number in range(100)]
    for offer in offers:
        key_of_offer(offer, HERE)
    assert len(secret_means._keys) == 64
    key_of_offer(offers[-1], HERE)
    assert len(fake_munge.decoded) == 100


CREDENTIALS: Dict[str, Tuple[Any, str]] = {
    "another user's": (lambda own: own.encode(secret_means._PAYLOAD + KEY, 1001), "user 1001"),
    "the user's own, of another service": (lambda own: own.encode(b""), "for something else"),
    "… and of the right length": (lambda own: own.encode(b"x" * 54), "for something else"),
    "no key in it": (lambda own: own.encode(secret_means._PAYLOAD), "for something else"),
    "another node's, with another key": (lambda own: "MUNGE:of another:", "Invalid credential"),
    "no text": (lambda own: 5, "Invalid credential"),
    "nothing": (lambda own: None, "Invalid credential"),
}


@pytest.mark.parametrize("case", CREDENTIALS)
def test_no_other_credential_is_believed(
    case: str, arrange: Arrange, fake_munge: FakeMunge
) -> None:
    arrange("munge")
    make, expected = CREDENTIALS[case]
    with pytest.raises(RendezvousError, match="n1:23005 has made with munge") as raised:
        key_of_offer({"means": "munge", "credential": make(fake_munge)}, HERE)
    assert expected in str(raised.value)


def test_a_munge_that_does_not_work_is_an_error(arrange: Arrange, fake_munge: FakeMunge) -> None:
    arrange("munge", "file")
    fake_munge.problem = "munged did not answer within 5 s"
    with pytest.raises(RendezvousError, match=r"fake, but makes no credential: munged did not ans"):
        own_secret("42.0")


def test_without_libmunge_the_second_look_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: List[str] = []

    def load(name: str) -> None:
        loaded.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(munge, "_loaded", {})
    monkeypatch.setattr(subprocess, "Popen", None)  # nor does the first start a process
    assert find_munge() == find_munge() == "there is no libmunge.so.2"
    assert len(loaded) == 1


def test_an_offer_is_made_anew_when_it_is_old() -> None:
    made: List[int] = []
    again, may_end = threading.Event(), threading.Event()

    def make() -> Dict[str, str]:
        made.append(len(made))
        if len(made) == 2:
            again.set()
            may_end.wait(60)
        if len(made) == 3:
            raise MungeError("munged has ended")
        return {"means": "munge", "credential": str(len(made))}

    offer = RenewedOffer(make, 0.0)
    offer._due = time.monotonic() + 3600
    assert dict(offer) == {"means": "munge", "credential": "1"}
    assert len(made) == 1
    offer._due = 0.0
    offer._seconds = 3600.0
    assert dict(offer)["credential"] == "1"  # whoever reads it does not wait
    assert again.wait(60)
    assert dict(offer)["credential"] == "1"
    may_end.set()
    wait_until(lambda: offer["credential"] == "2")
    offer._due = 0.0
    assert offer["credential"] == "2"
    wait_until(lambda: len(made) == 3)
    assert dict(offer) == {"means": "munge", "credential": "2"}
    assert len(offer) == 2


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


MOUNTS = r"""
22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a:/b
23 22 0:5 / /proc rw - proc proc rw
30 22 0:40 / /home rw,relatime shared:7 master:2 - autofs auto.home rw,fd=7
31 30 0:41 /u /home/u rw,relatime shared:8 - nfs4 server:/export/home/u rw,vers=4.2
32 22 0:42 / /home2 rw - ext4 /dev/sda1 rw
33 22 0:43 / /a\040b rw - lustre 10.0.0.1@o2ib:/fs rw
34 22 0:44 / /over rw - nfs server:/over rw
35 22 0:45 / /over rw - tmpfs tmpfs rw
36 22 0:46 / /fuse rw - fuse.glusterfs server:/v rw
37 22 0:47 / /odd-name rw - xfs /dev/sdb rw
38 22 broken
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "overlay"),
        ("/root", "overlay"),
        ("/home", "autofs"),
        ("/home/u", "nfs4"),
        ("/home/u/x/y", "nfs4"),
        ("/home/user", "autofs"),
        ("/home2/u", "ext4"),
        ("/a b/u", "lustre"),
        ("/a\\040b/u", "overlay"),
        ("/over/u", "tmpfs"),
        ("/fuse/u", "fuse.glusterfs"),
        ("/odd-name/u", "xfs"),
    ],
)
def test_mountinfo_tells_the_kind_of_file_system(path: str, expected: str) -> None:
    assert kind_of_file_system(path, MOUNTS) == expected
    assert kind_of_file_system(path, "") == ""


SHARED = "nfs nfs4 lustre gpfs beegfs ceph 9p afs panfs orangefs wekafs fuse.glusterfs fuse.ceph"
LOCAL = "ext4 xfs btrfs overlay tmpfs zfs autofs fuse.sshfs fuse.encfs fuse cifs ramfs fuse.nfs"


@pytest.mark.parametrize(
    ("kind", "is_shared"),
    [(kind, True) for kind in SHARED.split()] + [(kind, False) for kind in LOCAL.split()],
)
def test_a_home_directory_is_shared_by_its_kind(
    kind: str, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"31 30 0:41 / {tmp_path.resolve()} rw - {kind} x rw\n")
    monkeypatch.setattr(secret_file, "_MOUNTS", str(mounts))
    monkeypatch.setattr(secret_file, "_homes", {})
    monkeypatch.setenv("HOME", "/elsewhere")
    entry = type("Entry", (), {"pw_dir": str(tmp_path)})
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    found = find_folder()
    if is_shared:
        path = f"{tmp_path}/.slurm_resolver"
        assert found == SharedFolder(path, f"{tmp_path} is on {kind}")
    else:
        assert found == f"the home directory {tmp_path} is on {kind}, which is local"
    mounts.unlink()
    assert find_folder() is found  # it is looked at once
    if is_shared:
        mounts.write_text(f"31 30 0:41 / {tmp_path.resolve()} rw - {kind} x rw\n")
        monkeypatch.setattr(secret_file, "_homes", {})
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert find_folder() == f"the home directory {tmp_path} cannot be written"


def test_where_there_is_no_home_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_file, "_homes", {})
    entry = type("Entry", (), {"pw_dir": "/no/such/home"})
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    assert find_folder() == (
        "the home directory /no/such/home is not to be seen (No such file or directory)"
    )

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(secret_file, "_homes", {})
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert "the password database knows no home" in str(find_folder())


def mode_of(path: object) -> int:
    """The permissions of a file or folder."""
    return os.lstat(str(path)).st_mode & 0o7777


def test_a_key_is_for_this_user_alone(folder: str) -> None:
    before = os.umask(0)
    try:
        name = write_key(folder, KEY)
    finally:
        os.umask(before)
    assert (mode_of(folder), mode_of(f"{folder}/{name}")) == (0o700, 0o600)
    assert read_key(folder, name) == KEY


NAMES = ["", ".", "..", "/etc/passwd", "../keys/NAME", "FOLDER/NAME", "NAME\n", "NAME\0", "NAMe"]
NAMES += ["secret-", "secret-" + "g" * 32, "secret-" + "\u0661" * 32, "NAME" * 500, "./NAME"]


@pytest.mark.parametrize("name", NAMES)
def test_only_names_of_keys_are_opened(
    name: str, folder: str, monkeypatch: pytest.MonkeyPatch, arrange: Arrange
) -> None:
    arrange("file")
    here = write_key(folder, KEY)
    hostile = name.replace("FOLDER", folder).replace("NAME", here)
    monkeypatch.setattr(os, "open", None)
    with pytest.raises(RendezvousError, match="is no file of this package"):
        key_of_offer({"means": "file", "file": hostile}, HERE)


def test_a_key_that_is_not_there_is_an_error(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key(folder, KEY)
    monkeypatch.setattr(secret_file, "_PAUSES", (0.0,))
    with pytest.raises(SecretFileError, match=r"is not there on this node\. If the folder is not"):
        read_key(folder, "secret-" + "0" * 32)


def linked(folder: Path, file: Path) -> None:
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")


def hard_linked(folder: Path, file: Path) -> None:
    file.unlink()
    (folder / "diary").write_text("slurm_resolver is what I dreamt of\n")
    (folder / "diary").chmod(0o600)
    os.link(folder / "diary", file)


def pipe(folder: Path, file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def directory(folder: Path, file: Path) -> None:
    file.unlink()
    file.mkdir(0o700)


def longer(folder: Path, file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n")


def moved(folder: Path, file: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(folder.with_name("moved"))


def replaced(folder: Path, file: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.write_text("")
    folder.chmod(0o700)


ATTACKS: Dict[Any, str] = {
    linked: "cannot be read: Too many levels of symbolic links",
    hard_linked: "it does not contain what this package writes",
    pipe: "it is not a regular file",
    directory: "it is not a regular file",
    longer: "it does not contain what this package writes",
    moved: "keys is a link: name the folder that it leads to in SLURM_RESOLVER_SECRET_FOLDER",
    replaced: "keys is not used: it is not a folder",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_but_a_key_file_is_read(attack: Any, folder: str, arrange: Arrange) -> None:
    arrange("file")
    offer = dict(own_secret("42.0").offer)
    attack(Path(folder), Path(folder, offer["file"]))
    with pytest.raises(RendezvousError, match="n1:23005 has its secret in a file of") as raised:
        key_of_offer(offer, HERE)
    assert ATTACKS[attack] in str(raised.value)
    assert "export SLURM_RESOLVER_SECRET=" in str(raised.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604, 0o666])
def test_a_file_that_others_can_use_is_not_read(mode: int, folder: str) -> None:
    name = write_key(folder, KEY)
    Path(folder, name).chmod(mode)
    with pytest.raises(SecretFileError, match=f"its mode is {mode:o}, so that others can use it"):
        read_key(folder, name)


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o777, 0o1777])
def test_a_folder_that_others_can_use_is_not_written(mode: int, folder: str) -> None:
    Path(folder).mkdir()
    Path(folder).chmod(mode)
    with pytest.raises(SecretFileError, match=f"its mode is {mode:o}.*chmod go="):
        write_key(folder, KEY)
    assert os.listdir(folder) == []


def test_what_is_another_users_is_not_used(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, own = write_key(folder, KEY), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    for use in (lambda: read_key(folder, name), lambda: write_key(folder, KEY)):
        with pytest.raises(SecretFileError, match=f"it is user {own}'s, and this process is of"):
            use()


def test_a_file_system_that_keeps_no_modes_is_not_used(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, wide = os.open, os.fchmod
    monkeypatch.setattr(os, "fsync", lambda file: None)

    def careless(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        file = opened(path, flags, *args, **kwargs)
        if flags & os.O_CREAT:
            wide(file, 0o644)
        return file

    monkeypatch.setattr(os, "open", careless)
    with pytest.raises(SecretFileError, match=r"does not keep a file's owner and mode.*mode 644"):
        write_key(folder, KEY)
    assert os.listdir(folder) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, arrange: Arrange) -> None:
    arrange(SLURM_RESOLVER_SECRET_FOLDER=str(tmp_path / "not" / "there"))
    with pytest.raises(
        RendezvousError, match=r"not/there: No such file or directory\. Or use anoth"
    ):
        own_secret("42.0")


def test_a_file_that_comes_late_is_read(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    restore_key(folder, "secret-" + "0" * 32, KEY)
    late = Path(folder, "secret-" + "0" * 32)
    late.rename(f"{folder}/late")
    waited: List[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            Path(folder, "late").rename(late)

    monkeypatch.setattr(time, "sleep", pause)
    assert read_key(folder, late.name) == KEY
    assert len(waited) == 2


def test_what_killed_processes_left_is_removed(folder: str) -> None:
    names = [write_key(folder, KEY) for _ in range(3)]
    old, fresh, _ = names
    other = Path(folder, "notes")
    other.write_text("")
    for path in (Path(folder, old), other):
        os.utime(path, (time.time() - 25 * 3600,) * 2)
    os.utime(Path(folder, fresh), (time.time() - 23 * 3600,) * 2)
    write_key(folder, KEY)
    assert not Path(folder, old).exists()
    assert Path(folder, fresh).exists()
    assert other.exists()
    restore_key(folder, old, KEY)  # its process lives, and has had no visitor for a day
    assert read_key(folder, old) == KEY
    restore_key(folder, fresh, KEY)
    assert time.time() - os.stat(Path(folder, fresh)).st_mtime < 3600


PROGRAM = """
import os, sys
from slurm_resolver.rendezvous.secret import key_of_offer, own_secret
own = own_secret("42.0")
child = os.fork()
if not child:
    other = own_secret("42.0")
    assert other.key != own.key and other.offer["file"] != own.offer["file"]
    sys.exit()  # as programs end, and not as os._exit does
assert os.waitpid(child, 0)[1] == 0
assert os.listdir(sys.argv[1]) == [own.offer["file"]]
assert key_of_offer(dict(own.offer), "here") == own.key
"""


def test_the_file_goes_with_its_process_and_not_with_a_child(folder: str) -> None:
    environment = {**os.environ, "SLURM_RESOLVER_SECRET_MEANS": "file"}
    environment["SLURM_RESOLVER_SECRET_FOLDER"] = folder
    subprocess.run([sys.executable, "-c", PROGRAM, folder], env=environment, check=True)
    assert os.listdir(folder) == []


def test_describe_means_says_whether_nothing_protects(arrange: Arrange, folder: str) -> None:
    arrange()
    means, said = describe_means()
    assert means == ""
    assert said.startswith("nothing keeps others on the network from taking part")
    assert "SLURM_RESOLVER_SECRET is not set, there is no munge, the home directory is" in said
    assert "export SLURM_RESOLVER_SECRET=$(openssl rand -hex 32)" in said
    arrange("file")
    said = describe_means()[1]
    assert said == f"the tasks know each other by a file in {folder}: /home is on nfs4"
    assert not os.path.exists(folder)  # asking changes nothing
