"""Host lists beside those that Slurm's own scontrol writes and reads."""

from __future__ import annotations

import random
import shlex
from typing import List

import pytest
from slurm_cluster import SlurmCluster

from slurm_resolver import compress_hostlist, expand_hostlist

pytestmark = pytest.mark.slurm


def random_names(seed: int) -> List[str]:
    """Names as clusters have them, in runs, with gaps, padded or not."""
    chance = random.Random(seed)
    names: List[str] = []
    for _ in range(chance.randrange(1, 8)):
        prefix = chance.choice(["n", "login", "rack1-n", "gpu-a"])
        first, width = chance.choice([0, 7, 8, 98, 995]), chance.choice([1, 1, 2, 3, 4])
        names += [prefix + str(first + i).zfill(width) for i in range(chance.randrange(1, 6))]
    return names


def test_the_same_as_scontrol(real_slurm: SlurmCluster) -> None:
    lists = [random_names(seed) for seed in range(40)]
    command = "; ".join(
        f"scontrol show hostnames {shlex.quote(compress_hostlist(names))}; echo ;"
        f'scontrol show hostnames "$(scontrol show hostlist {",".join(names)})"; echo '
        for names in lists
    )
    expanded = [answer.split() for answer in real_slurm.run(command).stdout.split("\n\n")]
    for names, of_ours, of_slurms in zip(lists, expanded[::2], expanded[1::2]):
        assert of_ours == names
        assert of_slurms == names
    folded = real_slurm.run(
        "; ".join(f"scontrol show hostlist {','.join(names)}" for names in lists)
    ).stdout.splitlines()
    for names, text in zip(lists, folded):
        assert expand_hostlist(text) == names
