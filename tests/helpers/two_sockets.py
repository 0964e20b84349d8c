"""A Slurm whose nodes have two sockets, each near two of the node's four GPUs."""

from __future__ import annotations

from slurm_cluster import SlurmCluster

GPUS = 4
SOCKETS = "Sockets=2 CoresPerSocket=1 ThreadsPerCore=1"  # required in each node's line


class TwoSockets(SlurmCluster):
    """GPUs 0 and 1 are near the first socket, 2 and 3 near the second."""

    def _write_files(self) -> None:
        super()._write_files()
        (self.directory / "gres.conf").write_text(
            "".join(
                [
                    f"NodeName={node.name} Name=gpu "
                    f"File={self.directory}/gpu/gpu[{gpus}] Cores={socket}\n"
                    for node in self.nodes
                    for socket, gpus in enumerate(("0-1", "2-3"))
                ]
            )
        )
