"""Runs many small Keras programs, alone or as one of several workers.

The results go as JSON to the file <index>, or to the file "alone". NAME may be a pattern, such as
"loss_*".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
sys.path.insert(
    0,
    str(Path(__file__).resolve().parents[1]),
)

import tensorflow as tf
from keras_programs.catalog import matching
from keras_programs.common import PROGRAMS
from kinds import Fields, Strings

import slurm_resolver as sr
from slurm_resolver import log


def outcome(name: str, strategy: Any) -> Fields:
    try:
        return PROGRAMS[name](strategy)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}


def run(strategy: Any, names: Strings, file: Path) -> None:
    """Rewrites the file after every program, so that a crash loses nothing."""
    found: Strings = []
    for name in names:
        print(
            name,
            end=" ",
            file=sys.stderr,
            flush=True,
        )
        log.warned.clear()
        came = outcome(name, strategy)
        came["whole"] = any("computes whole batches" in message for message in log.warned)
        found.append(f"{json.dumps(name)}: {json.dumps(came)}")
        file.write_text("{" + ",\n".join(found) + "}\n")
        print(came.get("error", ""), file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true")
    parser.add_argument(
        "--ps",
        action="store_true",
        help="a chief and a parameter server",
    )
    parser.add_argument(
        "names",
        nargs="*",
        default=["*"],
        metavar="NAME",
    )
    args = parser.parse_args()
    try:
        names = matching(args.names)
    except LookupError as error:
        parser.error(str(error))
    if args.alone:
        file = "alone"
        strategy = tf.distribute.get_strategy()
    elif args.ps:
        resolver = sr.SlurmClusterResolver(
            {
                "chief": 1,
                "ps": 1,
                "worker": -1,
            }
        )
        if resolver.task_type != "chief":
            sys.exit(resolver.serve())
        file = "chief"
        strategy = sr.ParameterServerStrategy(resolver)
    else:
        strategy = sr.MultiWorkerMirroredStrategy()
        file = str(strategy.cluster_resolver.task_id)
    run(strategy, names, Path(file))


if __name__ == "__main__":
    main()
