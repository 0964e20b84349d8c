"""The nodes and the configuration files of a real Slurm for tests."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinds import Strings
from slurm_installation import Installation

SCRIPT = Path(__file__).with_name("slurm_namespaces.sh")


@dataclass(frozen=True)
class Node:
    """One node: its name, which is also its hostname, and the CPUs and GPUs that Slurm assumes.

    A `dynamic` node is not in slurm.conf: it registers itself, with the machine's CPUs. The
    cluster's `extra_conf` needs a partition with `Nodes=ALL`.
    """

    name: str
    cpus: int = 8
    gpus: int = 0
    dynamic: bool = False


def numbered(first: int, last: int, **how: Any) -> list[Node]:
    """Returns the nodes nFIRST to nLAST."""
    return [Node(f"n{number}", **how) for number in range(first, last + 1)]


def write_files(here: Path, nodes: Sequence[Node]) -> None:
    """Writes all files of a cluster except slurm.conf into its folder."""
    for name in ("log", "run", "state", "gpu"):
        shutil.rmtree(here / name, ignore_errors=True)
        (here / name).mkdir(parents=True)
    for number in range(max(node.gpus for node in nodes)):
        (here / "gpu" / f"gpu{number}").symlink_to(os.devnull)  # slurmd wants a device
    addresses = [f"10.77.0.{number} {node.name}" for number, node in enumerate(nodes, 1)]
    gres = [
        f"NodeName={node.name} Name=gpu File={here}/gpu/gpu[0-{node.gpus - 1}]"
        for node in nodes
        if node.gpus
    ]
    write_lines(here / "hosts", ["127.0.0.1 localhost", "10.77.0.254 login", *addresses])
    write_lines(here / "gres.conf", gres)
    # Without this line, slurmd does not start on some machines' cgroups. It needs none here.
    write_lines(here / "cgroup.conf", ["CgroupPlugin=cgroup/v1"])
    shutil.copy(SCRIPT, here)


def write_slurm_conf(
    here: Path,
    nodes: Sequence[Node],
    spool: str,
    installation: Installation,
    extra: Sequence[str],
) -> None:
    """Writes slurm.conf, in which the extra lines replace those with the same keys."""
    # Short periods of the scheduler are for jobs that wait (heterogeneous, batch, requeued).
    # With the default periods, these jobs would start up to a minute later.
    user = os.geteuid()
    lines = f"""
        ClusterName=test SlurmctldHost=login(10.77.0.254) SlurmUser={user} SlurmdUser={user}
        AuthType=auth/none CredType=cred/none AuthInfo=cred_expire=5
        ProctrackType=proctrack/linuxproc TaskPlugin=task/none
        JobAcctGatherType=jobacct_gather/none MpiDefault=none MpiParams=ports=23000-23999
        SelectType=select/cons_tres SelectTypeParameters=CR_Core GresTypes=gpu
        SlurmdParameters=config_overrides ReturnToService=2 KillWait=2
        SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
        StateSaveLocation={here}/state SlurmdSpoolDir={spool}/%n
        SlurmctldPidFile={here}/run/slurmctld SlurmdPidFile={here}/run/slurmd-%n
        SlurmctldLogFile={here}/log/slurmctld.log SlurmdLogFile={here}/log/slurmd-%n.log
    """.split()
    lines += installation.conf
    if any(node.dynamic for node in nodes):
        lines.append(f"MaxNodeCount={len(nodes)}")
    for number, node in enumerate(nodes, 1):
        if node.dynamic:
            continue
        gres = f" Gres=gpu:{node.gpus}" if node.gpus else ""
        lines.append(f"NodeName={node.name} NodeAddr=10.77.0.{number} CPUs={node.cpus}{gres}")
    names = ",".join(node.name for node in nodes)
    share = "DefaultTime=10 MaxTime=UNLIMITED OverSubscribe=FORCE:16"
    lines.append(f"PartitionName=p Nodes={names} Default=YES {share}")
    replaced = {_setting(line) for line in extra}
    lines = [line for line in lines if _setting(line) not in replaced]
    lines += [line for line in extra if not line.strip().endswith("=")]
    write_lines(here / "slurm.conf", lines)


def write_lines(path: Path, lines: Strings) -> None:
    path.write_text("\n".join(lines) + "\n")


def refuse_odd_path(path: str) -> None:
    """Raises for a path that slurm.conf cannot contain: it has no quotes."""
    if not re.fullmatch(r"[\w./+@-]*", path):
        raise ValueError(f"Slurm needs a folder with a plain path, not {path}")


def _setting(line: str) -> str:
    """Returns the key that a line of slurm.conf sets, with the name of a node or a partition."""
    key, _, value = line.strip().lower().partition("=")
    name = value.split()[:1] if key in ("nodename", "partitionname") else []
    return " ".join([key.strip(), *name])
