"""A bug report: versions, the machine, the variables, and the cluster.

Two rules keep secrets out: the report contains the values of variables that are known to hold none,
with the user's name and home replaced; of others that concern Slurm or TensorFlow, only the names.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, Mapping

from slurm_resolver.cluster.resolve import resolve
from slurm_resolver.errors import SlurmResolverError
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.step import VARIABLES, SlurmStep
from slurm_resolver.version import __version__

Report = Dict[str, Dict[str, str]]

_PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "keras", "tf_keras"),
    *("numpy", "grpcio", "protobuf", "nvidia-ml-py", "nvidia-nccl-cu12"),
)
_PROGRAM_SECONDS = 5.0

# In addition to those that this package reads: they place tasks, or change TensorFlow's network.
_SHOWN_WITH_VALUE = re.compile(
    r"SLURM_((JOB_)?(CPU|DIST|GPU|HET|MEM|NNODES|NODELIST|NPROCS|NTASKS|NUM|STEP|TASKS)|KILL)[A-Z_]*"
    r"|SLURMD_(NODENAME|TRES_BIND)|GRPC_(?!XDS_)[A-Z_]+|NCCL_[A-Z_]+|OMP_[A-Z_]+|PYTHONUNBUFFERED"
    r"|TF_(CPP|USE|ENABLE|DISABLE|XLA|NUM|FORCE|GPU|DETERMINISTIC|LEGACY)_[A-Z0-9_]+"
)
_SHOWN_BY_NAME = re.compile(
    r"SLURM|SPANK|TF_|GRPC_|NCCL_|CUDA_|ROCR_|HIP_|ZE_|OMP_|XLA_|KERAS|(?i:(https?|grpc|all|no)_proxy$)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|JWT|CREDENTIAL|API_?KEY|AUTH|COMMENT|COOKIE", re.I)


def make_report(environ: Mapping[str, str]) -> Report:
    """Returns the facts by section and name, without Slurm's controller or TensorFlow."""
    return {
        "versions": _versions(),
        "machine": _machine(),
        "variables": _variables(environ),
        "cluster": _cluster(environ),
    }


def _versions() -> Dict[str, str]:
    versions = {"slurm_resolver": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for program in ("srun", "nvidia-smi"):
        if shutil.which(program):
            versions[program] = _first_line(program, "--version")
    return versions


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROGRAM_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no answer ({type(error).__name__})"
    first = (done.stdout + done.stderr).strip().partition("\n")[0] or "no output"
    return f"exit status {done.returncode}: {first}" if done.returncode else first


def _machine() -> Dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = count_driver_gpus()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "cpus": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{memory / 2**30:.1f} GiB",
        "gpus": "unknown (no nvidia-ml-py, or no driver)" if gpus is None else str(gpus),
    }


def _variables(environ: Mapping[str, str]) -> Dict[str, str]:
    known = {variable.name for variable in VARIABLES}
    shown: Dict[str, str] = {}
    for name, value in sorted(environ.items()):
        harmless = _SHOWN_WITH_VALUE.fullmatch(name) and not _SECRET.search(name)
        if name in known or harmless:
            shown[name] = _without_user(value)
        elif _SHOWN_BY_NAME.match(name):
            shown[name] = "set (left out)"
    return shown


def _without_user(text: str) -> str:
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for the user
        return text
    return re.sub(rf"\b{re.escape(user)}\b", "USER", text)


def _cluster(environ: Mapping[str, str]) -> Dict[str, str]:
    """Returns the cluster by the variables alone: a report must not wait for other tasks."""
    try:
        if SlurmStep.read(environ).place == "none":
            return {"tasks": "none: not in a Slurm step"}
        cluster = resolve(layout="environment", environ=environ)
    except SlurmResolverError as error:
        return {"error": _without_user(f"{type(error).__name__}: {error}")}
    facts, own = cluster.to_dict(), cluster.task
    described = {
        "tasks": str(len(cluster.tasks)),
        "nodes": str(len({task.node for task in cluster.tasks})),
        "distribution": str(facts["distribution"]),
        "layout from": str(facts["layout_source"]),
        "ports from": str(facts["ports_source"]),
    }
    if own is not None:
        described["this task"] = f"{cluster.name_of(own.rank)} at {own.address}"
        described["gpus"] = f"{facts['self']['gpus']} ({facts['self']['gpus_source']})"
    return described
