"""Types that many tests use."""

from __future__ import annotations

import subprocess
from typing import Any, Callable, Dict, List

# Anything by its name, such as the fields of a JSON object.
Fields = Dict[str, Any]
# Texts by their names, such as the variables of a process.
Texts = Dict[str, str]
Counts = Dict[str, int]
Action = Callable[[], Any]
Strings = List[str]
Completed = subprocess.CompletedProcess[str]
Records = List[Fields]
Change = Callable[[Any], Any]
