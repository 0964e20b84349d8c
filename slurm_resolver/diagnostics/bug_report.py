"""What belongs in a bug report: versions, the machine, the variables, and the cluster they give.

Secrets stay out by two rules: only variables that are known to hold none are shown with their
values, and in these the user's name and home are replaced. Of the others that Slurm or TensorFlow
may have set the report has only the names.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Mapping

from slurm_resolver.cluster.resolve import resolve
from slurm_resolver.errors import SlurmResolverError
from slurm_resolver.slurm.gpu_variables import count_driver_gpus
from slurm_resolver.slurm.step import VARIABLES, SlurmStep
from slurm_resolver.version import __version__
from slurm_resolver.wording import counted

Report = Dict[str, Dict[str, str]]

_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "tensorflow-rocm",
    "keras",
    "tf_keras",
    "numpy",
    "grpcio",
    "protobuf",
    "nvidia-ml-py",
    "nvidia-nccl-cu12",
    "rich",
)
_PROGRAMS = ("srun", "nvidia-smi")
_PROGRAM_SECONDS = 5.0

# Beside those that this package reads: variables that place tasks, or change TensorFlow's network.
_SHOWN_WITH_VALUE = re.compile(
    r"SLURM_(NTASKS|NPROCS|NNODES|NODELIST|TASKS_PER_NODE|NTASKS_PER_NODE|CPUS_PER_TASK"
    r"|CPUS_ON_NODE|JOB_CPUS_PER_NODE|JOB_NUM_NODES|JOB_NODELIST|STEP_[A-Z_]+|DIST[A-Z_]*"
    r"|GPUS?[A-Z_]*|CPU_BIND[A-Z_]*|MEM_[A-Z_]+|HET_SIZE|RESTART_COUNT|MPI_TYPE|KILL_BAD_EXIT"
    r"|[A-Z_]+_(HET|PACK)_GROUP_\d+)"
    r"|OMPI_COMM_WORLD_[A-Z_]+|PMI_(RANK|SIZE)|MPI_LOCALN?RANK(S|ID)|PMIX_(RANK|NAMESPACE)"
    r"|SLURMD_(NODENAME|TRES_BIND)|GRPC_(?!XDS_)[A-Z_]+|NCCL_[A-Z_]+|OMP_[A-Z_]+|PYTHONUNBUFFERED"
    r"|TF_(CPP|USE|ENABLE|DISABLE|XLA|NUM|FORCE|GPU|DETERMINISTIC|LEGACY)_[A-Z0-9_]+"
)
_SHOWN_BY_NAME = re.compile(r"SLURM|SPANK|TF_|GRPC_|NCCL_|CUDA_|ROCR_|HIP_|ZE_|OMP_|XLA_|KERAS")
_PROXY = re.compile(r"(https?|grpc|all|no)_proxy", re.I)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|JWT|CREDENTIAL|API_?KEY|AUTH|COMMENT|COOKIE", re.I)


def make_report(environ: Mapping[str, str]) -> Report:
    """Returns the report: by section, the facts by name.

    It neither asks Slurm's controller nor imports TensorFlow.
    """
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
    for program in _PROGRAMS:
        if shutil.which(program):
            versions[program] = _first_line(program, "--version")
    return versions


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROGRAM_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no answer ({type(error).__name__})"
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode or not lines:
        return f"exit status {done.returncode}: {lines[0] if lines else 'no output'}"
    return lines[0]


def _machine() -> Dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus = count_driver_gpus()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        "cpus": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{memory / 2**30:.1f} GiB",
        "gpus": "unknown (nvidia-ml-py is missing, or a driver)" if gpus is None else str(gpus),
        "terminal": str(sys.stdout.isatty()),
    }


def _variables(environ: Mapping[str, str]) -> Dict[str, str]:
    known = {variable.name for variable in VARIABLES}
    shown: Dict[str, str] = {}
    for name, value in sorted(environ.items()):
        if _PROXY.fullmatch(name):
            shown[name] = "set (left out)" if value else "empty"
        elif name == "TF_CONFIG":
            shown[name] = _without_user(_known_of_tf_config(value))
        elif name in known or _SHOWN_WITH_VALUE.fullmatch(name):
            secret = _SECRET.search(name) and name not in known
            shown[name] = "set (left out)" if secret else _without_user(value)
        elif _SHOWN_BY_NAME.match(name):
            shown[name] = "set (left out)"
    return shown


def _known_of_tf_config(text: str) -> str:
    """Returns the part of TF_CONFIG that TensorFlow reads; others put more into it."""
    try:
        config = json.loads(text)
        jobs = config["cluster"].items()
        known: Dict[str, Any] = {"cluster": {str(job): list(map(str, at)) for job, at in jobs}}
        if "task" in config:
            known["task"] = {key: config["task"].get(key) for key in ("type", "index")}
        if "rpc_layer" in config:
            known["rpc_layer"] = str(config["rpc_layer"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"set (left out, as it cannot be read: {type(error).__name__})"
    others = len(set(config) - set(known))
    return json.dumps(known) + (f" and {counted(others, 'other')} (left out)" if others else "")


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
    """Returns what the variables alone tell, as a report must not wait for other tasks."""
    try:
        if SlurmStep.read(environ).place == "none":
            return {"tasks": "none: there is no Slurm here"}
        cluster = resolve(layout="environment", environ=environ)
    except SlurmResolverError as error:
        return {"error": _without_user(f"{type(error).__name__}: {error}")}
    facts = cluster.to_dict()
    own = cluster.task
    described = {
        "tasks": str(len(cluster.tasks)),
        "nodes": str(len({task.node for task in cluster.tasks})),
        "distribution": str(facts["distribution"]),
        "layout from": str(facts["layout_source"]),
        "ports from": str(facts["ports_source"]),
    }
    if own is not None:
        described["this task"] = f"rank {own.rank} on {own.node}, {own.job} {own.index}"
        described["address"] = own.address
        described["gpus"] = f"{facts['self']['gpus']} ({facts['self']['gpus_source']})"
    return described
