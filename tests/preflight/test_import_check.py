"""When `slurm-resolver check` warns of a node that is slow to read TensorFlow's modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_resolver.preflight.import_check import check_imports, seconds_to_read

# The seconds of the nodes n0, n1, …, and the nodes that the warning names.
CASES = [
    ([60.0], []),
    ([0.2, 0.2, 0.2, 2.9], []),  # 15 times the median, but nobody notices
    ([0.2, 0.2, 0.2, 3.1], ["n3"]),
    ([2.0, 2.0, 5.9, 2.0, 6.1], ["n4"]),
    ([9.0, 10.0, 9.0, 10.0], []),  # a slow file system, for all nodes
    ([0.2, 10.0], ["n1"]),
    ([10.0, 0.2, 10.0, 0.2], ["n0", "n2"]),
]


@pytest.mark.parametrize(("seconds", "named"), CASES)
def test_which_nodes_are_named(seconds: Sequence[float], named: Sequence[str]) -> None:
    nodes = [f"n{number}" for number in range(len(seconds))]
    result = check_imports(dict(zip(nodes, seconds)))
    assert result.is_bad == bool(named)
    assert [node for node in nodes if f"{node} took" in result.detail] == named


def test_an_error_of_the_file_system_is_left_to_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "tensorflow" / "python"
    modules.mkdir(parents=True)
    (modules.parent / "__init__.py").touch()
    (modules / "lost.py").symlink_to("nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    assert seconds_to_read() > 0
