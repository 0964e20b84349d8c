"""The steps that were recorded on real Slurms: each task's variables, and where it ran.

tests/data/README.md describes the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, NamedTuple, Tuple

from folders import DATA

STEPS = DATA / "steps.jsonl"


class Recording(NamedTuple):
    """One recorded step: what was run, and each task's variables."""

    name: str
    command: str
    files: Dict[str, str]
    tasks: List[Dict[str, str]]

    def truth(self) -> Dict[int, Tuple[str, int]]:
        """By rank, the node and the local rank that the task itself reported."""
        return {
            int(task["SLURM_PROCID"]): (task["SLURMD_NODENAME"], int(task["SLURM_LOCALID"]))
            for task in self.tasks
        }


def recordings(path: Path = STEPS) -> List[Recording]:
    """Every recorded step; a scenario with several steps gives several."""
    found = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            scenario = json.loads(line)
            steps: Dict[Tuple[str, str], List[Dict[str, str]]] = {}
            for own in scenario["each"]:
                task = {**scenario["all"], **own}
                key = (task.get("SLURM_JOB_ID", ""), task.get("SLURM_STEP_ID", ""))
                steps.setdefault(key, []).append(task)
            for number, tasks in enumerate(steps.values()):
                name = f"{scenario['slurm']}-{scenario['topology']}-{scenario['scenario']}"
                if len(steps) > 1:
                    name += f"-{number}"
                found.append(Recording(name, scenario["command"], scenario["files"], tasks))
    return found
