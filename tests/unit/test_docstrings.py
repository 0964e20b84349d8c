"""The options of the resolver and those of `resolve` are the same."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, List

import slurm_resolver
from slurm_resolver.cluster.options import ClusterOptions

PACKAGE = Path(slurm_resolver.__file__).parent
INSIDE = {"until", "starts_program"}  # what no caller of the package chooses


def parsed(path: str, name: str) -> Any:
    """Returns the function of that name, read from the file: importing may need TensorFlow."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    return next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )


def arguments(function: Any) -> List[str]:
    return [one.arg for one in (*function.args.args[1:], *function.args.kwonlyargs)]


RESOLVER = parsed("tf/resolver.py", "__init__")


def test_the_options_are_those_of_the_resolver() -> None:
    of_tensorflow = {"tasks_per_node", "auto_set_gpu", "rpc_layer"}  # what the cluster is not of
    assert set(ClusterOptions._fields) - INSIDE == set(arguments(RESOLVER)) - of_tensorflow
