"""Reads the steps recorded on real Slurms: each task's variables, and where it ran.

tests/data/README.md describes the file.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from folders import DATA
from kinds import Texts


class Recording(NamedTuple):
    """One recorded step: Slurm's version, the command, and each task's variables."""

    name: str
    slurm: str
    command: str
    tasks: list[Texts]

    @property
    def is_step(self) -> bool:
        """Whether srun started the tasks. A batch script or the shell of salloc is not a step."""
        return "SLURM_STEP_NUM_TASKS" in self.tasks[0]

    @property
    def number(self) -> tuple[int, ...]:
        """Slurm's version as a tuple that can be compared, such as (26, 5, 3)."""
        return tuple(map(int, self.slurm.split(".")))

    def truth(self) -> dict[int, tuple[str, int]]:
        """Returns for each rank the node and the local rank that the task itself reported."""
        return {
            int(task["SLURM_PROCID"]): (task["SLURMD_NODENAME"], int(task["SLURM_LOCALID"]))
            for task in self.tasks
        }


def recordings() -> list[Recording]:
    """Returns every recorded step. A scenario may contain several steps."""
    found = []
    with open(DATA / "steps.jsonl", encoding="utf-8") as lines:
        for line in lines:
            scenario = json.loads(line)
            steps: dict[tuple[str, str], list[Texts]] = {}
            for own in scenario["each"]:
                task = {**scenario["all"], **own}
                steps.setdefault(
                    (task.get("SLURM_JOB_ID", ""), task.get("SLURM_STEP_ID", "")),
                    [],
                ).append(task)
            for number, tasks in enumerate(steps.values()):
                name = f"{scenario['slurm']}-{scenario['topology']}-{scenario['scenario']}"
                if len(steps) > 1:
                    name += f"-{number}"
                found.append(Recording(name, scenario["slurm"], scenario["command"], tasks))
    return found


# Heterogeneous steps whose layout is known only to srun: the variables are missing or incomplete.
NEVER_TOLD = {
    "22.05.8-default-het_local_step": "heterogeneous .* inside a plain allocation",
    "22.05.8-default-het_mpmd_reversed_cmdline": "its own --distribution from srun",
    "23.02.8-default-het_direct_plane": "its own --distribution from srun",
}


def unknowable(recording: Recording) -> str | None:
    """Returns why the variables do not determine a step's layout; None if they do."""
    told = recording.tasks[0]
    how = told.get("SLURM_DISTRIBUTION", "")
    several_nodes = len({node for node, _ in recording.truth().values()}) > 1
    if how == "arbitrary" and several_nodes:
        return "SLURM_DISTRIBUTION=arbitrary"
    # From 26.05 on, topology may order the nodes of block, even if the pattern is only "node".
    in_list_order = "SLURM_HET_SIZE" not in told and how.startswith(("cyclic", "plane"))
    if recording.number >= (26, 5) and several_nodes and not in_list_order:
        return "26.05 or later .* topology may order the nodes"
    return NEVER_TOLD.get(recording.name)
