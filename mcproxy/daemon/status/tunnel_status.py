"""Tunnels in the status document: those that a hub accepts, and those that listeners of an edge dial.

Several processes report the same tunnel: at the hub any of them has a control connection, at the edge each has one. A
process reports the condition that it knows, in the list `conditions`; `with_conditions` makes one of those of all
processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mcproxy.daemon.status import Figures, rfc3339
from mcproxy.daemon.status.cluster_status import by_version
from mcproxy.net.alpn import H2
from mcproxy.tunnels.dialer import Dialer
from mcproxy.tunnels.hub_link import HubLink
from mcproxy.tunnels.tunnel_state import TunnelState

Counts = Mapping[str, tuple[int, int]]

HUB, EDGE = "hub", "edge"
NEVER = "no edge has connected since the start"
"""The cause of a tunnel at the hub that was not connected yet."""

_INSTANCE_DIGITS = 8


def of_hub(states: Iterable[TunnelState], wall: float, now: float) -> list[Figures]:
    """Return the figures of each tunnel that this hub accepts. `wall` is the time of day, `now` the reactor's time."""
    return [
        {
            "name": state.name,
            "role": HUB,
            **_condition(state.is_up, state.since.timestamp(), state.loss),
            "peers": [
                {
                    "peer": control.peer,
                    "instance": control.instance[:_INSTANCE_DIGITS].decode("ascii"),
                    "since": rfc3339(wall - (now - control.opened_at)),
                    "rttSeconds": _rtt(control.engine.rtt),
                }
                for control in state.controls
            ],
            "connections": {
                "HTTP/2.0" if alpn == H2 else "HTTP/1.1": number for alpn, number in sorted(state.counts().items())
            },
        }
        for state in states
    ]


def of_edge(listener: str, dialer: Dialer, counts: Counts, wall: float, now: float) -> Figures:
    """Return the figures of a listener that dials. `counts` are those of its connections, as of `by_version`."""
    return {
        "name": dialer.tunnel,
        "role": EDGE,
        "listener": listener,
        "hubs": [_of_link(link, wall, now) for link in dialer.links],
        "connections": by_version([counts])["connections"],
    }


def _of_link(link: HubLink, wall: float, now: float) -> Figures:
    """Return the figures of a link; until a link with new settings is up, the state is that of the former one."""
    former = link.replaced
    shown = former if former is not None and former.is_up and not link.is_up else link
    return {
        "url": link.url,
        **_condition(shown.is_up, wall - (now - shown.changed_at), str(shown.cause)),
        "connections": link.connections + (0 if former is None else former.connections),
        "rttSeconds": _rtt(shown.rtt),
    }


def _condition(connected: bool, since: float, cause: str) -> Figures:
    condition = {"connected": connected, "since": rfc3339(since), "cause": None if connected else cause or None}
    return {"conditions": [condition]}


def _rtt(seconds: float) -> float | None:
    return round(seconds, 6) if seconds else None


def with_conditions(tunnels: Iterable[Mapping[str, Any]]) -> list[Figures]:
    """Return the entries of the document, from the sums over all processes."""
    return [_hub(each) if each.get("role") == HUB else _edge(each) for each in tunnels]


def _hub(tunnel: Mapping[str, Any]) -> Figures:
    connected, since, cause = _condition_of(tunnel)
    return {
        "name": tunnel["name"],
        "role": HUB,
        "connected": connected,
        "since": since,
        "cause": None if connected else cause or NEVER,
        "peers": tunnel.get("peers", []),
        "connections": tunnel.get("connections", {}),
    }


def _edge(tunnel: Mapping[str, Any]) -> Figures:
    hubs = []
    for hub in tunnel.get("hubs", ()):
        connected, since, cause = _condition_of(hub)
        state = {"connected": connected, "since": since, "cause": cause}
        hubs.append({"url": hub["url"], **state, **{key: hub.get(key) for key in ("connections", "rttSeconds")}})
    return {
        "name": tunnel["name"],
        "role": EDGE,
        "listener": tunnel.get("listener"),
        "connected": bool(hubs) and all(hub["connected"] for hub in hubs),
        "hubs": hubs,
        "connections": tunnel.get("connections", {}),
    }


def _condition_of(entry: Mapping[str, Any]) -> tuple[bool, str | None, str | None]:
    """Return the condition over all processes: connected if it is in any, since the first of these.

    Otherwise it is that of the process that lost it last; one without a cause never had it.
    """
    conditions = entry.get("conditions", ())
    up = [each for each in conditions if each["connected"]]
    if up:
        return True, min(str(each["since"]) for each in up), None
    lost = [each for each in conditions if each["cause"]] or conditions
    chosen: Mapping[str, Any] = max(lost, key=lambda each: str(each["since"]), default={})
    return False, chosen.get("since"), chosen.get("cause")
