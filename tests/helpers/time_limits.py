"""Time limits and signals as users write them, and those that Slurm refuses."""

from __future__ import annotations

from typing import Dict, Optional

# Seconds; None for no limit.
TIMES: Dict[str, Optional[int]] = {
    **{"1": 60, "0:1": 1, "1:30": 90, "90:90": 5490, "1:60": 120, "1:00:00": 3600, "00:00:01": 1},
    **{"1-0": 86_400, "1-": 86_400, "1-30": 194_400, "1-2:3": 93_780, "1-2:3:4": 93_784},
    **dict.fromkeys(("0", "0:0", "-1", "UNLIMITED", "infinite")),
}
NO_TIMES = ["", "x", "1-2-3", "1:2:3:4", "1.5", "1m", "1:", "5:", "-", "1-1:", "1:2:", "+5", "1 "]
SIGNALS = ["USR1", "SIGUSR1", "usr1", "10", "USR1@10", "USR1@", "INT@0", "STOP", "XCPU", "CHLD"]
NO_SIGNALS = ["@10", "USR1@x", "0", "USR1@70000", "RTMIN", "WINCH", "SEGV", "X:USR1"]
