"""Names of derived objects: readable, within Kubernetes' bounds, and never one name for two sources. Pure.

A name of a slice is exact (`imported-CLUSTER-SLICE`) unless it is too long or could be read in two ways. Such a one
ends with ``-h`` and 128 bits of a hash of what it stands for; a name that ends so by itself gets a hash too. So an
exact name never equals one with a hash, and a hostile cluster cannot choose a name that takes another source's place.

The name of a Service (`derived-SERVICE`) that would pass 63 characters is cut, and ends with a short hash that anybody
can compute who has to know it (services.md). Of two that share one, for somebody has searched for the other, the one
that is there keeps it (`DesiredState`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection

MAX_NAME = 253
MAX_LABEL = 63
"""Characters of a Service's name, and of the value of a label."""

_HASHED = re.compile(r"-h[0-9a-f]{32}\Z")


def slice_name(prefix: str, cluster: str, name: str, clusters: Collection[str], part: int = 0) -> str:
    """Return the name of the copy of an EndpointSlice: ``PREFIX-CLUSTER-NAME``, without prefix ``CLUSTER-NAME``.

    `clusters` are the names of all clusters: where one of them continues with the beginning of `name` (`a` and `a-b`,
    for the slice `b-c` of `a`), the name has a hash. So have all parts of a slice but the first.
    """
    ambiguous = any(
        other.startswith(f"{cluster}-") and f"{cluster}-{name}".startswith(f"{other}-") for other in clusters
    )
    exact = f"{prefix}-{cluster}-{name}" if prefix else f"{cluster}-{name}"
    identity = f"{prefix}/{cluster}/{name}" + (f"/{part}" if part else "")
    return _bounded(exact, identity, MAX_NAME, ambiguous or part > 0)


def service_name(prefix: str, namespace: str, service: str) -> str:
    """Return the name of the Service that is derived from `service`: ``PREFIX-SERVICE``.

    One that is too long ends in ``-`` and 10 characters of lower-case base32hex(SHA-256("NAMESPACE/SERVICE")).
    """
    name = f"{prefix}-{service}"
    if len(name) <= MAX_LABEL:
        return name
    digest = base64.b32hexencode(hashlib.sha256(f"{namespace}/{service}".encode()).digest()).decode().lower()[:10]
    return f"{name[: MAX_LABEL - 11].rstrip('-')}-{digest}"


def label_value(name: str) -> str:
    """Return a cluster's name as the value of a label, which may be 63 characters long."""
    return _bounded(name, name, MAX_LABEL, ambiguous=False)


def _bounded(name: str, identity: str, limit: int, ambiguous: bool) -> str:
    if len(name) <= limit and not ambiguous and not _HASHED.search(name):
        return name
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return f"{name[: limit - 34].rstrip('-.')}-h{digest}"
