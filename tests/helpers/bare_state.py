"""A copy of the checkout without a developer's tools, environments and settings."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from folders import ROOT
from kinds import Strings, Texts
from page_blocks import texts_of

# PATH for another user, who cannot use a Python in a developer's home
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# files of developers' tools and builds, which a fresh clone does not have
_NOT_IN_A_CLONE = shutil.ignore_patterns(
    ".git",
    ".venv*",
    ".nox",
    ".slurms",
    ".*_cache",
    ".hypothesis",
    ".coverage*",
    "build",
    "_build",
    "dist",
    "*.egg-info",
    "__pycache__",
    "*.sbatch.out",
    "checkpoints*",
)


def shell_commands(page: Path) -> Strings:
    """Returns the commands in the sh blocks of a page, in order."""
    text = "".join(texts_of(page, "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line]


class OtherUser(NamedTuple):
    """An unprivileged user, who owns no files."""

    uid: int
    gid: int

    def words(self, command: Sequence[str]) -> Strings:
        """Returns the command by which root runs a command as this user."""
        return [
            "setpriv",
            f"--reuid={self.uid}",
            f"--regid={self.gid}",
            "--clear-groups",
            "--",
            *command,
        ]


def other_user(programs: Sequence[str]) -> OtherUser | None:
    """Returns the user nobody.

    Returns None if this process is not root, or if nobody cannot run Python and these programs.
    """
    if os.geteuid():
        return None
    found = pwd.getpwnam("nobody")
    user = OtherUser(found.pw_uid, found.pw_gid)
    asked = " && ".join(["python3 -c 'import ensurepip'", *(f"test -x {one}" for one in programs)])
    done = subprocess.run(
        user.words(["sh", "-c", asked]),
        env={"PATH": PATH},
        capture_output=True,
    )
    return user if done.returncode == 0 else None


class BareState:
    """A copy of this checkout in a folder, and an environment with almost no variables.

    Only the settings of pip come from this process, because pip may need them to find packages.
    Without `user`, pip's cache is reused too. `user` becomes the owner of the folder, and needs
    access to the folders above it.
    """

    def __init__(self, folder: Path, user: OtherUser | None = None) -> None:
        self.checkout = folder / "checkout"
        self.user = user
        shutil.copytree(ROOT, self.checkout, ignore=_NOT_IN_A_CLONE)
        home = folder / "home"
        home.mkdir()
        # Python itself comes first. A new environment contains none of its packages.
        found = [f"{sys.base_prefix}/bin", *os.environ["PATH"].split(os.pathsep)]
        self.environ = {
            "HOME": str(home),
            "PATH": os.pathsep.join(
                [part for part in found if not Path(part).is_relative_to(sys.prefix)]
            ),
            **_settings_of_pip(),
        }
        if user is not None:
            self.environ.update(PATH=PATH, PIP_CACHE_DIR=str(home / "cache"))
            if "PIP_CONFIG_FILE" in self.environ:
                self.environ["PIP_CONFIG_FILE"] = str(
                    shutil.copy(self.environ["PIP_CONFIG_FILE"], home / "pip.conf")
                )
            subprocess.run(["chown", "-R", f"{user.uid}:{user.gid}", str(folder)], check=True)

    def words(self, command: str) -> Strings:
        """Returns the words that run a bash command as the owner of the checkout."""
        words = ["bash", "-c", command]
        return words if self.user is None else self.user.words(words)

    def run(self, command: str, timeout: float = 300, status: int = 0) -> str:
        """Runs a bash command in the checkout, and returns its output on both streams."""
        done = subprocess.run(
            self.words(command),
            cwd=self.checkout,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == status, done.stdout
        return done.stdout


def _settings_of_pip() -> Texts:
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    home = Path.home()
    for file in (home / ".config" / "pip" / "pip.conf", home / ".pip" / "pip.conf"):
        if file.exists():
            settings.setdefault("PIP_CONFIG_FILE", str(file))
    settings.setdefault(
        "PIP_CACHE_DIR", str(Path(os.environ.get("XDG_CACHE_HOME", home / ".cache")) / "pip")
    )
    return settings
