"""The resolver and `resolve` have the same options."""

from __future__ import annotations

import ast
from pathlib import Path

import slurm_resolver
from slurm_resolver.cluster.options import ClusterOptions

PACKAGE = Path(slurm_resolver.__file__).parent
INSIDE = {"until", "starts_program"}  # no caller of the package sets these


def test_the_options_are_those_of_the_resolver() -> None:
    """The test reads the file, because importing it needs TensorFlow."""
    tree = ast.parse((PACKAGE / "tf/resolver.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    made = next(function for function in functions if function.name == "__init__")
    arguments = {one.arg for one in (*made.args.args[1:], *made.args.kwonlyargs)}
    of_tensorflow = {"tasks_per_node", "auto_set_gpu", "rpc_layer"}  # not of the cluster
    assert set(ClusterOptions._fields) - INSIDE == arguments - of_tensorflow
