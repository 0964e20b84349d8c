"""A fixture that starts a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pytest
from slurm_cluster import Node, SlurmCluster, started
from slurm_installation import Installation


def slurm_of(
    nodes: Sequence[Node],
    conf: Sequence[str] = (),
    scope: Literal["module", "session"] = "module",
) -> Any:
    """Returns a fixture: a Slurm of these nodes, with these lines of slurm.conf."""

    @pytest.fixture(scope=scope)
    def slurm(
        installation: Installation, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[SlurmCluster]:
        folder = tmp_path_factory.mktemp("slurm")
        with started(
            SlurmCluster(nodes, folder, extra_conf=conf, installation=installation)
        ) as cluster:
            yield cluster

    return slurm
