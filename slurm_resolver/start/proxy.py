"""Keeps gRPC's connections between the tasks away from a proxy in the environment.

gRPC sends what it connects to, also the tasks of the cluster, through the proxy in grpc_proxy,
https_proxy or http_proxy. It connects directly to hosts whose names end with an entry of
no_grpc_proxy, or of no_proxy where that is not set. It reads these names in small letters only
(http_proxy_mapper.cc). No other library reads no_grpc_proxy.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from slurm_resolver.cluster.cluster import Cluster


def connect_directly(cluster: Cluster, environ: MutableMapping[str, str]) -> None:
    """Lets gRPC connect to the tasks without a proxy; everything else keeps using it.

    Without a proxy it changes nothing. Call it before TensorFlow connects.
    """
    if not cluster or not any(map(environ.get, ("grpc_proxy", "https_proxy", "http_proxy"))):
        return
    entries = environ.get("no_grpc_proxy", environ.get("no_proxy", "")).split(",")
    entries += [host.strip("[]") for host in cluster.hosts.values()]
    environ["no_grpc_proxy"] = ",".join(dict.fromkeys(filter(None, map(str.strip, entries))))
