"""How each folder of recordings is replayed: which, in which order, against what state."""

from __future__ import annotations

import copy
from typing import Any

from mcproxy.demo.cluster import ClusterOptions, SimulatedCluster
from tests.demo import golden, golden_identities, golden_seed

JSONDict = dict[str, Any]

FOLDERS = (
    "errors",
    "get",
    "list",
    "paging",
    "rv",
    "selectors",
    "discovery",
    "table",
    "partialmeta",
    "probes",
    "gzip",
    "openapi",
    "aggregated-down",
    "expired",
    "crd",
    "writes",
    "auth",
    "impersonation",
    "impersonation-legacy",
    "frontproxy",
    "kubelet",
)
EXACT_REVISIONS = frozenset({"list", "paging", "selectors", "get", "table", "partialmeta"})
"""Folders whose resourceVersions and continue tokens must be the recorded ones."""

IDENTITY_FOLDERS = frozenset({"auth", "impersonation", "impersonation-legacy", "frontproxy", "kubelet"})
"""Folders whose exchanges need the accounts and rights of `golden_identities`."""

ELSEWHERE: frozenset[str] = frozenset({"kubelet/up-log-follow", "kubelet/down-log-follow"})
"""Recordings that other tests replay."""

ORDER: dict[str, tuple[str, ...]] = {}


def ordered(folder: str) -> list[str]:
    """The recordings of a folder in the order in which they are replayed."""
    found = [name for name in golden.names(folder) if name not in ELSEWHERE]
    rank = {f"{folder}/{name}": index for index, name in enumerate(ORDER.get(folder, ()))}
    return sorted(found, key=lambda name: (rank.get(name, len(rank)), name))


def certificate(auth: str | None) -> str:
    """Whose client certificate a recording used; "" for none."""
    for user in ("admin", "alice", "mcproxy", "front-proxy"):
        if auth and (f"CN={user}" in auth or (user == "front-proxy" and auth.startswith("front-proxy"))):
            return user
    return ""


def seed(folder: str, name: str) -> SimulatedCluster:
    """A cluster as it was when a folder was recorded."""
    cluster = golden_seed.base(name)
    if folder == "impersonation-legacy":
        cluster.options = ClusterOptions(anonymous_auth=name == "east", constrained_impersonation=False)
    if folder in IDENTITY_FOLDERS:
        golden_identities.add(cluster)
    return cluster


def prepare(name: str, recording: JSONDict, cluster: SimulatedCluster) -> JSONDict:
    """The request to send: with a token of our own for that of the recorded cluster."""
    request: JSONDict = copy.deepcopy(recording["request"])
    if name.partition("/")[0] in IDENTITY_FOLDERS:
        return golden_identities.prepare(name, request, cluster)
    return request
