"""Listeners: connections and requests by version of HTTP, and what was refused as a flood.

The versions are named as in the access log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mcproxy.daemon.figures import Figures

if TYPE_CHECKING:
    from mcproxy.daemon.service import LiveListener


def of_listener(live: LiveListener) -> Figures:
    """Return the figures of a listener; one that a reload has removed has connections until they are drained.

    `address` is that of its socket: the port that the system chose for 0, what systemd listens on.
    """
    counts = live.factory.counts()
    connected = sum(connections for connections, _ in counts.values())
    return {
        "name": live.config.name,
        "bind": str(live.config.bind),
        "address": str(live.socket.address) if live.socket.sockets else None,
        "serves": str(live.config.serves),
        "accepting": live.socket.accepting,
        "handshakes": max(0, live.socket.connections - connected),
        **by_version([counts]),
        "protection": dict(live.factory.protection),
        "limits": {"connections": live.config.limits.connections},
    }


def by_version(counts: Iterable[Mapping[str, tuple[int, int]]]) -> Figures:
    """Return the sums of ``{version: (connections, requests)}``, as two objects."""
    connections: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for each in counts:
        for version, (number, open_requests) in each.items():
            connections[version] += number
            requests[version] += open_requests
    return {"connections": dict(connections), "requests": dict(requests)}
