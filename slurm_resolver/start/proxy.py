"""Keeps gRPC's connections between the tasks away from a proxy in the environment.

gRPC sends what it connects to, also the tasks of the cluster, through the proxy in grpc_proxy,
https_proxy or http_proxy. It connects directly to hosts whose names end with an entry of
no_grpc_proxy, or of no_proxy where that is not set. It reads these names in small letters only
(http_proxy_mapper.cc). No other library reads no_grpc_proxy.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from slurm_resolver.cluster.cluster import Cluster
from slurm_resolver.errors import AddressError

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_DIRECT = "no_grpc_proxy"
# Linux starts no program with a longer variable (MAX_ARG_STRLEN).
_LONGEST = 128 * 1024


def connect_directly(cluster: Cluster, environ: MutableMapping[str, str]) -> None:
    """Lets gRPC connect to the tasks without a proxy; everything else keeps using it.

    Without a proxy it changes nothing. Call it before TensorFlow connects.

    Raises:
        AddressError: if the names of the nodes are together too long for a variable.
    """
    proxy = next(filter(environ.get, _PROXIES), None)
    if not cluster or not proxy:
        return
    entries = environ.get(_DIRECT, environ.get("no_proxy", "")).split(",")
    hosts = [host.strip("[]") for host in cluster.hosts.values()]
    value = ",".join(dict.fromkeys(filter(None, map(str.strip, [*entries, *hosts]))))
    if len(f"{_DIRECT}={value}") >= _LONGEST:
        raise AddressError(
            f"{proxy}={environ[proxy]}: TensorFlow would connect to the tasks through this proxy, "
            f"and {_DIRECT} has no room for all {len(hosts):,} hosts. Unset {proxy} in the job."
        )
    environ[_DIRECT] = value
