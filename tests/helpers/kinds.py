"""Types that many tests use."""

from __future__ import annotations

import subprocess
from typing import Any, Callable

# Anything by its name, such as the fields of a JSON object.
Fields = dict[str, Any]
# Texts by their names, such as the variables of a process.
Texts = dict[str, str]
Counts = dict[str, int]
Action = Callable[[], Any]
Strings = list[str]
Completed = subprocess.CompletedProcess[str]
Records = list[Fields]
Change = Callable[[Any], Any]
