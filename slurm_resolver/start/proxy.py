"""Keeps gRPC's connections between the tasks away from a proxy in the environment.

gRPC sends what it connects to, also the tasks of the cluster, through the proxy in the first
variable of `_PROXIES` that is set; an empty value means no proxy. It connects directly to hosts
whose names end with an entry of no_grpc_proxy, or of no_proxy where that is not set. It reads these
names in small letters only (http_proxy_mapper.cc). No other library reads no_grpc_proxy.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from slurm_resolver.cluster.cluster import Cluster

_PROXIES = (
    "grpc_proxy",
    "https_proxy",
    "http_proxy",
)
_DIRECT = "no_grpc_proxy"
_MOST_BYTES = 100_000  # Linux takes 131,072 bytes for a variable


def connect_directly(cluster: Cluster, environ: MutableMapping[str, str]) -> None:
    """Lets gRPC connect to the tasks without a proxy; everything else keeps using it.

    Call it before TensorFlow connects. It changes nothing if gRPC would use no proxy.
    """
    used = next((name for name in _PROXIES if name in environ), None)
    if not used or not environ[used] or not cluster.tasks:
        return
    given = environ.get(_DIRECT, environ.get("no_proxy", ""))
    entries = [entry.strip() for entry in given.split(",")]
    hosts = dict.fromkeys(task.address.rpartition(":")[0].strip("[]") for task in cluster.tasks)
    text = ",".join([*filter(None, entries), *(host for host in hosts if host not in entries)])
    if len(text) > _MOST_BYTES:
        environ["grpc_proxy"] = ""
    else:
        environ[_DIRECT] = text
