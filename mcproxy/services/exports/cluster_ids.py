"""The ids of the clusters of a clusterset, by ClusterProperties of about.k8s.io (KEP-2149). Pure.

An id names a cluster in labels of EndpointSlices, in the status of ServiceImports and in DNS names
(``HOSTNAME.ID.SERVICE.NAMESPACE.svc.clusterset.local``). So no cluster gets one by which another one is known, or wants
to be known: neither of two that claim the same has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mcproxy.services.api_types import DNS_LABEL, decode
from mcproxy.services.exports.object_names import label_value


class ClusterIdentity(NamedTuple):
    """What a cluster is called in its clusterset."""

    id: str
    clusterset: str = ""
    """The clusterset that it says it is a member of; "": it does not."""
    problem: str = ""
    """Why the id is not the one that it claims, in one line."""


class _Spec(msgspec.Struct):
    value: str = ""


class _Property(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_PROPERTY = msgspec.json.Decoder(_Property)


def read_property(data: bytes) -> str:
    """Return the value of a ClusterProperty. Raises UnreadableObject."""
    return decode(_PROPERTY, data).spec.value


def identities(claims: Mapping[str, tuple[str, str]], names: frozenset[str]) -> dict[str, ClusterIdentity]:
    """Return the identity of each cluster; without a claim that can be accepted its id is its name.

    `claims`: by name, the values of `cluster.clusterset.k8s.io` and `clusterset.k8s.io`; "" for none. `names`: of all
    clusters of the configuration. An id has to be a DNS label (mcs-api, ClusterStatus).
    """
    claimed = Counter(claim for claim, _ in claims.values())
    taken = {label_value(name): name for name in names}
    found = {}
    for cluster, (claim, clusterset) in claims.items():
        problem = ""
        if claim and not DNS_LABEL.fullmatch(claim):
            problem = f"{claim[:63]!a} is not a DNS label of at most 63 characters"
        elif taken.get(claim, cluster) != cluster:
            problem = f"{claim} is the name of another cluster of the configuration"
        elif claim and claimed[claim] > 1:
            others = sorted(other for other in claims if other != cluster and claims[other][0] == claim)
            problem = f"{claim} is claimed by {', '.join(others)[:200]} too"
        accepted = claim if claim and not problem else label_value(cluster)
        found[cluster] = ClusterIdentity(accepted, clusterset[:253] if clusterset.isprintable() else "", problem)
    return found
