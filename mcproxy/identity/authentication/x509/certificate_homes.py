"""Which clusters an authority of client certificates belongs to.

A kube-apiserver accepts the client certificates of its own authority, which as a rule has signed its serving
certificate, too: system:kube-controller-manager, or the organization system:masters, of one cluster does not exist in
another. Source: reference "identity", Authenticators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cryptography.exceptions import UnsupportedAlgorithm

from mcproxy.certificate_blocks import read_blocks
from mcproxy.config import model
from mcproxy.identity.authentication.x509.verifier import authority_key


def certificate_homes(clusters: Iterable[model.Cluster]) -> Mapping[bytes, tuple[str, ...]]:
    """Return the clusters of each authority in the clusters' `tls.caFile`, by `authority_key`.

    One that all of several clusters have is left out: its names mean the same everywhere.
    """
    clusters = list(clusters)
    found: dict[bytes, list[str]] = {}
    read: dict[bytes, list[bytes]] = {}
    for cluster in clusters:
        if cluster.tls.ca is None:
            continue
        pem = cluster.tls.ca.data
        if pem not in read:  # many clusters may have the same file
            read[pem] = _keys(pem)
        for key in read[pem]:
            found.setdefault(key, []).append(cluster.name)
    return {key: tuple(names) for key, names in found.items() if len(names) == 1 or len(names) < len(clusters)}


def _keys(pem: bytes) -> list[bytes]:
    found: dict[bytes, None] = {}
    for certificate in read_blocks(pem).certificates:
        try:
            found[authority_key(certificate)] = None
        except (ValueError, UnsupportedAlgorithm):  # a key of an unknown kind signs no client's certificate
            continue
    return list(found)
