"""The versions of Slurm on this machine: the installed one, and those of `make slurms`."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from kinds import Strings

ROOT = Path(__file__).parents[2]
# An ordinary user's PATH may lack the folders of the daemons.
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
# `make slurms` puts each version in a folder here, with bin, sbin, lib and plugins.
BESIDE = Path(os.environ.get("SLURM_RESOLVER_SLURMS", ROOT / ".slurms"))


class SlurmUnavailable(Exception):  # noqa: N818 (a state of the machine, not a fault)
    """Slurm cannot run on this machine; the message says what is missing, and how to install it."""


def slurm_or_skip(missing: str) -> NoReturn:
    """Skips a test that needs Slurm, or fails it if SLURM_RESOLVER_REQUIRE_SLURM=1."""
    if os.environ.get("SLURM_RESOLVER_REQUIRE_SLURM") == "1":
        raise SlurmUnavailable(missing)
    pytest.skip(missing)


@dataclass(frozen=True)
class Installation:
    """One version of Slurm, such as "24.11"; `folder` is None for the installed one."""

    version: str
    folder: Path | None = None

    def before(self, path: str) -> str:
        """Returns a PATH in which the programs of this version come first."""
        return f"{self.folder}/bin:{self.folder}/sbin:{path}" if self.folder else path

    @property
    def conf(self) -> Strings:
        """The lines of slurm.conf that name the folder of Slurm's plugins."""
        return [f"PluginDir={self.folder}/plugins"] if self.folder else []

    @property
    def slurmd(self) -> str:
        """The command of a node's daemon, with the path of slurmstepd."""
        return f"slurmd -d {self.folder}/sbin/slurmstepd" if self.folder else "slurmd"

    @property
    def number(self) -> tuple[int, ...]:
        """The version as a tuple that can be compared; () if it is unknown."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version))


@functools.cache
def own() -> Installation:
    """Returns the installed Slurm; its version is "" if there is none."""
    program = shutil.which("slurmctld", path=PATH)
    return Installation(
        ".".join(
            re.findall(
                r"\d+",
                "" if program is None else subprocess.check_output([program, "-V"], text=True),
            )[:2]
        )
    )


def installations() -> list[Installation]:
    """Returns all versions on this machine, the oldest first."""
    beside = [Installation(folder.name, folder) for folder in BESIDE.glob("[0-9]*.[0-9]*")]
    found = {one.version: one for one in [*beside, own()] if one.version}
    return sorted(found.values(), key=lambda one: one.number) or [own()]
