"""Names of derived objects: readable, within Kubernetes' bounds, and never one name for two sources. Pure.

A name is exact (`imported-CLUSTER-SLICE`, `derived-SERVICE`) unless it is too long or could be read in two ways. Such a
one ends with ``-h`` and 128 bits of a hash of what it stands for; a name that ends so by itself gets a hash too. So an
exact name never equals one with a hash, and a hostile cluster cannot choose a name that takes another source's place.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

MAX_NAME = 253
MAX_LABEL = 63
"""Characters of a Service's name, and of the value of a label."""

_HASHED = re.compile(r"-h[0-9a-f]{32}\Z")


def slice_name(prefix: str, cluster: str, name: str, clusters: Collection[str]) -> str:
    """Return the name of the copy of an EndpointSlice: ``PREFIX-CLUSTER-NAME``.

    `clusters` are the names of all clusters: where one of them continues with the beginning of `name` (`a` and `a-b`,
    for the slice `b-c` of `a`), the name has a hash.
    """
    ambiguous = any(
        other.startswith(f"{cluster}-") and f"{cluster}-{name}".startswith(f"{other}-") for other in clusters
    )
    return _bounded(f"{prefix}-{cluster}-{name}", f"{prefix}/{cluster}/{name}", MAX_NAME, ambiguous)


def service_name(prefix: str, service: str) -> str:
    """Return the name of the Service that is derived from `service`: ``PREFIX-SERVICE``."""
    return _bounded(f"{prefix}-{service}", f"{prefix}/{service}", MAX_LABEL, ambiguous=False)


def label_value(name: str) -> str:
    """Return a cluster's name as the value of a label, which may be 63 characters long."""
    return _bounded(name, name, MAX_LABEL, ambiguous=False)


def _bounded(name: str, identity: str, limit: int, ambiguous: bool) -> str:
    if len(name) <= limit and not ambiguous and not _HASHED.search(name):
        return name
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return f"{name[: limit - 34].rstrip('-.')}-h{digest}"
