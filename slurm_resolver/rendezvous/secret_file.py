"""A key in a file that only this user can read, in a folder that all nodes share.

Who connects is told the file's name, and nothing else. That name may come from anybody, so it leads
to no other file than one of this module's, in a folder that the reader computes by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import re
import secrets
import stat
import time
from typing import Dict, Iterator, NamedTuple, Optional, Union

FOLDER_VARIABLE = "SLURM_RESOLVER_SECRET_FOLDER"
FOLDER = ".slurm_resolver"  # in the user's home

_NAME = re.compile(r"secret-[0-9a-f]{32}")
_CONTENT = re.compile(rb"slurm_resolver ([0-9a-f]{64})\n")
_STALE_SECONDS = 24 * 3600.0
_PAUSES = (0.05, 0.2, 0.5)  # before reading once more
_MOUNTS = "/proc/self/mountinfo"

# The kinds of file systems that several nodes see alike, as the kernel writes them in mountinfo. Of
# those that a process serves (fuse) only those that keep owner and mode of a file.
_SHARED = re.compile(
    r"nfs4?|lustre|gpfs|9p|acfs|coda|cvfs|exafs|gfs2|ocfs2|panfs|pvfs2"
    r"|(fuse\.)?(afs|beegfs|ceph|ceph-fuse|cubefs|curvefs|gfarm2fs|glusterfs|juicefs|lizardfs|mapr"
    r"|mfs|mfsmount|moosefs|orangefs|pvfs2fuse|quobyte|saunafs|wekafs)"
)


class SecretFileError(Exception):
    """The file cannot be written or read; the message says why, and what to do."""


class SharedFolder(NamedTuple):
    """Where the file is, and how that is known: "SLURM_RESOLVER_SECRET_FOLDER", "/home is nfs4"."""

    path: str
    why: str


def find_folder() -> Union[SharedFolder, str]:
    """Returns the folder that all nodes share, or in words why there is none.

    The home directory is that of the password database, and not $HOME: batch scripts point $HOME
    to a disk of the node, and containers to a folder of their own.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is not None:
        if not os.path.isabs(folder):
            raise SecretFileError(
                f"{FOLDER_VARIABLE} is {folder!r}: expected is the full path of a folder that all "
                "nodes share, and that only you can read."
            )
        return SharedFolder(folder, FOLDER_VARIABLE)
    uid = os.geteuid()
    if uid not in _homes:
        _homes[uid] = _find_home_folder(uid)
    return _homes[uid]


_homes: Dict[int, Union[SharedFolder, str]] = {}


def _find_home_folder(uid: int) -> Union[SharedFolder, str]:
    try:
        home = pwd.getpwuid(uid).pw_dir
    except KeyError:
        return f"the password database knows no home directory of user {uid}"
    try:
        os.stat(home)  # has it mounted where it is mounted on demand
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read()
    except OSError as error:
        return f"the home directory {home} is not to be seen ({error.strerror})"
    kind = kind_of_file_system(os.path.realpath(home), mounts)
    if not _SHARED.fullmatch(kind):
        return f"the home directory {home} is on {kind or 'an unknown file system'}, which is local"
    # Both are the same on all nodes, which agree on this then.
    if os.statvfs(home).f_flag & os.ST_RDONLY or not os.access(home, os.W_OK | os.X_OK):
        return f"the home directory {home} cannot be written"
    return SharedFolder(os.path.join(home, FOLDER), f"{home} is on {kind}")


def kind_of_file_system(path: str, mounts: str) -> str:
    """Returns the kind of file system on which a path is, such as "nfs4"; "" where it is unknown.

    Args:
        path: absolute, without links.
        mounts: the text of /proc/self/mountinfo: proc(5).
    """
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 7 or "-" not in fields[6:-1]:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), fields[4])
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):  # a later line covers an earlier one
            best, kind = place, fields[fields.index("-", 6) + 1]
    return kind


def write_key(folder: str, key: bytes) -> str:
    """Writes a key into a new file, which is removed as this process ends, and returns its name.

    Raises:
        SecretFileError: where the folder is not this user's alone, or cannot be written.
    """
    name = f"secret-{secrets.token_hex(16)}"
    restore_key(folder, name, key)
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # and not in a process that was forked from it
            with contextlib.suppress(OSError, SecretFileError), _opened(folder) as opened:
                os.unlink(name, dir_fd=opened)

    atexit.register(remove)
    return name


def restore_key(folder: str, name: str, key: bytes) -> None:
    """Writes the file of a name anew where it is gone, and makes it count as new where it is there.

    Raises:
        SecretFileError: as `write_key`.
    """
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        with _opened(folder) as opened:
            try:
                os.utime(name, dir_fd=opened, follow_symlinks=False)
            except FileNotFoundError:
                _write(opened, name, key)
    except OSError as error:
        raise SecretFileError(
            f"the key of this step cannot be written in {folder}: {error.strerror}"
        ) from error


def _write(folder: int, name: str, key: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        try:
            found = os.fstat(file)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o600:
                raise SecretFileError(
                    "the file system there does not keep a file's owner and mode: a new one is of "
                    f"user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}"
                )
            os.write(file, b"slurm_resolver %s\n" % key.hex().encode())
            os.fsync(file)
        finally:
            os.close(file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    # By the clock of the file server, as the other times there.
    _remove_stale(folder, found.st_mtime - _STALE_SECONDS)


def _remove_stale(folder: int, before: float) -> None:
    """Removes what processes left that were killed."""
    for name in os.listdir(folder):
        if _NAME.fullmatch(name):
            with contextlib.suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < before:
                    os.unlink(name, dir_fd=folder)


def read_key(folder: str, name: str) -> bytes:
    """Returns the key in the file of a name, which may come from anybody.

    Raises:
        SecretFileError: where this is no such name, or the file is not there, or it is not this
            user's alone.
    """
    if not _NAME.fullmatch(name):
        raise SecretFileError("what it names is no file of this package")
    pauses = iter(_PAUSES)
    while True:
        try:
            with _opened(folder) as opened:
                return _read(opened, folder, name)
        except FileNotFoundError as error:
            # A node may know for a while that a file is missing (nfs(5), lookupcache); that it
            # opens the folder anew makes it ask. A stranger's name costs a second, and no more.
            pause = next(pauses, None)
            if pause is None:
                raise SecretFileError(
                    f"{os.path.join(folder, name)} is not there on this node. If the folder is not "
                    "the same one on all nodes, name one that is in "
                    f"{FOLDER_VARIABLE} before srun"
                ) from error
            time.sleep(pause)
        except OSError as error:
            raise SecretFileError(
                f"{os.path.join(folder, name)} cannot be read: {error.strerror}"
            ) from error


def _read(opened: int, folder: str, name: str) -> bytes:
    # Opening a pipe or a device would wait or do something.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(name, flags, dir_fd=opened)
    try:
        found = os.fstat(file)
        problem = _problem(found, stat.S_ISREG(found.st_mode), "a regular file")
        content = b"" if problem else os.read(file, 1024)
    finally:
        os.close(file)
    match = _CONTENT.fullmatch(content)
    if match is None:
        problem = problem or "it does not contain what this package writes"
        raise SecretFileError(f"{os.path.join(folder, name)} is not used: {problem}")
    return bytes.fromhex(match[1].decode())


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    """Yields a descriptor of the folder, which must be nobody else's.

    All is done through it: whatever is put in the folder's place meanwhile, no other one is used.
    """
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(folder):
            raise SecretFileError(
                f"{folder} is a link: name the folder that it leads to in {FOLDER_VARIABLE}"
            ) from error
        raise
    try:
        found = os.fstat(opened)
        problem = _problem(found, stat.S_ISDIR(found.st_mode), "a folder")
        if problem:
            raise SecretFileError(f"{folder} is not used: {problem}")
        yield opened
    finally:
        os.close(opened)


def _problem(found: os.stat_result, is_expected: bool, expected: str) -> Optional[str]:
    mode = stat.S_IMODE(found.st_mode)
    if not is_expected:
        return f"it is not {expected}"
    if found.st_uid != os.geteuid():
        return f"it is user {found.st_uid}'s, and this process is of user {os.geteuid()}"
    if mode & 0o077:
        return f"its mode is {mode:o}, so that others can use it: chmod go= takes that from them"
    return None
