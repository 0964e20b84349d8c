"""Another user of this machine than the developer, where the tests may act as one: as root."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

NAME = "nobody"
# Of this user's Python, and not of one in a developer's home.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class OtherUser(NamedTuple):
    """A user of no rights, whom nothing belongs to."""

    uid: int
    gid: int

    def words(self, command: Sequence[str]) -> List[str]:
        """Returns the command as root types it to run it as this user."""
        ids = [f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"]
        return ["setpriv", *ids, "--", *command]

    def give(self, folder: Path) -> None:
        """Makes the folder, and all in it, this user's."""
        subprocess.run(["chown", "-R", f"{self.uid}:{self.gid}", str(folder)], check=True)


def other_user(programs: Sequence[str]) -> Optional[OtherUser]:
    """Returns the user; None where the tests may not act as him, or he lacks what README asks for.

    Args:
        programs: those that he has to be able to run besides Python, as paths.
    """
    if os.geteuid():
        return None
    found = pwd.getpwnam(NAME)
    user = OtherUser(found.pw_uid, found.pw_gid)
    asked = " && ".join(["python3 -c 'import ensurepip'", *(f"test -x {one}" for one in programs)])
    done = subprocess.run(
        user.words(["sh", "-c", asked]), env={"PATH": PATH}, capture_output=True, check=False
    )
    return user if done.returncode == 0 else None
