"""Fixtures that start a real Slurm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pytest
from by_version import expected
from slurm_cluster import SlurmCluster
from slurm_conf import Node
from slurm_installation import Installation, SlurmUnavailable, slurm_or_skip


@contextlib.contextmanager
def started(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Starts the cluster, for a fixture; skips or fails its tests if Slurm cannot run."""
    try:
        cluster.start()
    except SlurmUnavailable as error:
        slurm_or_skip(str(error))
    try:
        yield cluster
    finally:
        cluster.stop()


def slurm_of(
    nodes: Sequence[Node],
    conf: Sequence[str] | Mapping[str, Sequence[str]] = (),
    scope: Literal["module", "session"] = "module",
) -> Any:
    """Returns a fixture: a Slurm of these nodes, with these lines of slurm.conf, or by version."""

    @pytest.fixture(scope=scope)
    def slurm(
        installation: Installation, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[SlurmCluster]:
        folder = tmp_path_factory.mktemp("slurm")
        with started(
            SlurmCluster(
                nodes,
                folder,
                extra_conf=expected(conf, installation) if isinstance(conf, Mapping) else conf,
                installation=installation,
            )
        ) as cluster:
            yield cluster

    return slurm
