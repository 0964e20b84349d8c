"""A copy of the checkout without a developer's tools, environments and settings."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from folders import ROOT
from kinds import Strings, Texts
from local_run import captured
from page_blocks import texts_of

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


class BareState:
    """A copy of this checkout in a folder, and an environment with almost no variables.

    Only the settings of pip, and its cache, come from this process: pip may need them to find
    packages.
    """

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
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

    def run(self, command: str, timeout: float = 300, status: int = 0) -> str:
        """Runs a bash command in the checkout, and returns its output on both streams."""
        return captured(
            ["bash", "-c", f"exec 2>&1\n{command}"],
            status,
            timeout,
            cwd=self.checkout,
            env=self.environ,
        ).stdout


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
