"""A checkout on what might be another machine: nothing of the developers' is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

from folders import ROOT

# what developers' tools and builds leave in a checkout, which a fresh clone does not have
_NOT_IN_A_CLONE = shutil.ignore_patterns(
    *(".git", ".venv*", ".nox", ".slurms", ".*_cache", ".hypothesis", ".coverage*"),
    *("build", "_build", "dist", "*.egg-info", "__pycache__", "*.sbatch.out", "checkpoints*"),
)
_OF_THE_SHELL = (".", "source", "export", "cd")  # what they do is there for the next command


def shell_commands(page: Path) -> List[str]:
    """Returns the commands of a page's sh blocks, from its first line on."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line]


class BareState:
    """A copy of this checkout in a folder, and an environment of almost no variables.

    Only pip's settings come from outside, as it may know packages by these alone, and its cache.
    """

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        shutil.copytree(ROOT, self.checkout, ignore=_NOT_IN_A_CLONE)
        home = folder / "home"
        home.mkdir()
        # Python itself stands first; of its packages a new environment sees none.
        found = [f"{sys.base_prefix}/bin", *os.environ["PATH"].split(os.pathsep)]
        path = [part for part in found if not Path(part).is_relative_to(sys.prefix)]
        self.environ = {"HOME": str(home), "PATH": os.pathsep.join(path), **_settings_of_pip()}

    def run(self, command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs a command in the checkout by bash; its errors are between its output's lines."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.checkout,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )


def with_those_before(commands: List[str], command: str) -> str:
    """Returns a script: the command, in a shell in which those before it have been typed."""
    before = commands[: commands.index(command)]
    kept = [one for one in before if one.split()[0] in _OF_THE_SHELL]
    return "\n".join(["set -e", *kept, command])


def _settings_of_pip() -> Dict[str, str]:
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    home = Path.home()
    for file in (home / ".config" / "pip" / "pip.conf", home / ".pip" / "pip.conf"):
        if file.exists():
            settings.setdefault("PIP_CONFIG_FILE", str(file))
    caches = Path(os.environ.get("XDG_CACHE_HOME", home / ".cache"))
    settings.setdefault("PIP_CACHE_DIR", str(caches / "pip"))
    return settings
