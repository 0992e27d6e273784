"""The paths of an Admin listener, and which of them it serves. Pure.

A path is compared byte for byte with those of the list: nothing is decoded, joined or cleaned, so no other spelling
(`//metrics`, `/%6detrics`, `/metrics/`, `/x/../metrics`, `/metrics;x`) is served. Only probes and /bootstrap have parts
below them, checks and API groups, which are looked up by name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from mcproxy.config.model import ADMIN_PATHS
from mcproxy.kube.healthz import PROBES

BOOTSTRAP = "/bootstrap"
_WITH_PARTS = (*(f"/{probe}" for probe in PROBES), BOOTSTRAP)


class Requested(NamedTuple):
    """What a request asks for."""

    path: str
    """One of `ADMIN_PATHS`."""
    check: str = ""
    """The name of one check of a probe, or of an API group below /bootstrap."""
    query: bytes = b""
    """Behind the question mark."""


def find(target: bytes, served: Collection[str]) -> Requested | None:
    """Return what a target in origin-form asks for; None (404) if that is not served."""
    raw, _, query = target.partition(b"?")
    path = raw.decode("latin-1")
    if path in ADMIN_PATHS:
        return Requested(path, "", query) if path in served else None
    for above in _WITH_PARTS:
        check = path.removeprefix(f"{above}/")
        if check and check != path:
            return Requested(above, check, query) if above in served else None
    return None
