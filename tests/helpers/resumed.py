"""Runs resume_cases.py, and reads the positions of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from folders import quiet_helper
from kinds import Counts, Fields
from local_run import captured


def outcomes(*arguments: str) -> dict[str, Fields]:
    """Returns the uninterrupted and the resumed result of each case of resume_cases.py."""
    found: dict[str, Fields] = json.loads(
        captured(
            [*quiet_helper("resume_cases.py"), *arguments],
            status=0,
        ).stdout.splitlines()[-1]
    )
    return found


def saved_position(folder: Path) -> Counts:
    """Returns the epoch and the step of a folder's newest checkpoint."""
    import tensorflow as tf

    from slurm_resolver.tf.training.checkpoint_folder import POSITION
    from slurm_resolver.tf.training.fit_state import unpack

    values = unpack(tf.train.load_checkpoint(str(folder)).get_tensor(POSITION))
    return {name: values[name] for name in ("epoch", "step")}
