"""Finds the path of an Admin listener that a request target names. Pure.

A path is compared byte for byte with a list and never decoded or normalized. So no other spelling (`//metrics`,
`/%6detrics`, `/metrics/`, `/x/../metrics`, `/metrics;x`) is served. Only probes and /bootstrap have subpaths: checks
and API groups, which are looked up by name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from mcproxy.config.model import ADMIN_PATHS
from mcproxy.kube.healthz import PROBES

BOOTSTRAP = "/bootstrap"
_WITH_PARTS = (*(f"/{probe}" for probe in PROBES), BOOTSTRAP)


class Requested(NamedTuple):
    """The parsed target of a request."""

    path: str
    """One of `ADMIN_PATHS`."""
    check: str = ""
    """The name of one check of a probe, or of an API group below /bootstrap."""
    query: bytes = b""
    """The query, without the question mark."""


def find(target: bytes, served: Collection[str]) -> Requested | None:
    """Parse a target in origin-form; None (404) if its path is not served."""
    raw, _, query = target.partition(b"?")
    path = raw.decode("latin-1")
    if path in ADMIN_PATHS:
        return Requested(path, "", query) if path in served else None
    for above in _WITH_PARTS:
        check = path.removeprefix(f"{above}/")
        if check and check != path:
            return Requested(above, check, query) if above in served else None
    return None
