"""The versions of Slurm that are on this machine: its own, and those beside it (`make slurms`)."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Tuple

ROOT = Path(__file__).parents[2]
# The daemons' folders: an ordinary user's PATH may lack them.
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
# Where `make slurms` puts versions, each in a folder of its own with bin, sbin, lib and plugins.
BESIDE = Path(os.environ.get("SLURM_RESOLVER_SLURMS", ROOT / ".slurms"))


@dataclass(frozen=True)
class Installation:
    """One version of Slurm, such as "24.11"; the machine's own has no folder of its own."""

    version: str
    folder: Optional[Path] = None

    def before(self, path: str) -> str:
        """Returns a PATH in which this version's programs are before all others of these names."""
        return f"{self.folder}/bin:{self.folder}/sbin:{path}" if self.folder else path

    @property
    def conf(self) -> List[str]:
        """Lines of slurm.conf that tell Slurm where it is."""
        return [f"PluginDir={self.folder}/plugins"] if self.folder else []

    @property
    def slurmd(self) -> str:
        """The command of a node's daemon: it looks for slurmstepd where Debian would put it."""
        return f"slurmd -d {self.folder}/sbin/slurmstepd" if self.folder else "slurmd"

    @property
    def number(self) -> Tuple[int, ...]:
        """The version in a form that can be compared; () where it is not known."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version))


@functools.cache
def own() -> Installation:
    """Returns the machine's own Slurm; its version is "" where there is none."""
    program = shutil.which("slurmctld", path=PATH)
    told = "" if program is None else subprocess.check_output([program, "-V"], text=True)
    return Installation(".".join(re.findall(r"\d+", told)[:2]))


def installations() -> List[Installation]:
    """Returns all versions on this machine, the oldest first."""
    beside = [Installation(folder.name, folder) for folder in BESIDE.glob("[0-9]*.[0-9]*")]
    found = {one.version: one for one in [*beside, own()] if one.version}
    return sorted(found.values(), key=lambda one: one.number) or [own()]
