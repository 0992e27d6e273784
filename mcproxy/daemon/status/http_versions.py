"""Connections and requests by version of HTTP of listeners and clusters; versions are named as in the access log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from mcproxy.daemon.status import Figures


def by_version(counts: Iterable[Mapping[str, tuple[int, int]]]) -> Figures:
    """Return the sums of ``{version: (connections, requests)}``, as two objects."""
    connections: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for each in counts:
        for version, (number, open_requests) in each.items():
            connections[version] += number
            requests[version] += open_requests
    return {"connections": dict(connections), "requests": dict(requests)}
