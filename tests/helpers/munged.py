"""Starts a munged for the tests, with a separate folder for its key, socket and log."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slurm_installation import PATH, slurm_or_skip
from slurm_jobs import wait_for

START_SECONDS = 60.0


class Munged:
    """A running munged, and munge's commands for it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.socket = str(folder / "socket")

    def munge(self, payload: bytes, uid: int) -> str:
        """Returns a credential that munge makes as user `uid`."""
        return (
            subprocess.run(
                [program("munge"), f"--socket={self.socket}"],
                input=payload,
                stdout=subprocess.PIPE,
                check=True,
                user=uid,
            )
            .stdout.decode()
            .strip()
        )


def program(name: str) -> str:
    """Returns the path of one of munge's programs; skips or fails the test if it is missing."""
    path = shutil.which(name, path=PATH)
    if path is None:
        slurm_or_skip(f"{name} is not installed: `make slurm`")
    return path


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@contextlib.contextmanager
def running_munged() -> Iterator[Munged]:
    """Runs a munged with a new random key."""
    # Other users must be able to reach the socket, and its path must be short.
    with tempfile.TemporaryDirectory(prefix="munged") as name:
        folder = Path(name)
        folder.chmod(0o755)
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        names = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        options = [f"--{each}={folder / each.partition('-')[0]}" for each in names]
        # Without --force, munged rejects a folder below /tmp, because everybody can write there.
        command = [program("munged"), "--foreground", "--force", "--num-threads=1", *options]
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
            )
        try:
            munged = Munged(folder, process)
            wait_for(lambda: _listens(munged.socket), START_SECONDS, (folder / "out").read_text)
            yield munged
        finally:
            process.kill()  # also ends a stopped process
            process.wait()
