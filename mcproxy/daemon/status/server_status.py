"""Requests in flight by servers, flow controls (also over replicas) and reviewers, for the status document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.config.model import FlowControlType, Per
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.rates import SampleDifference
from mcproxy.identity.singleflight import ReviewLoad
from mcproxy.observe.metrics.breakdown import Sums

if TYPE_CHECKING:
    from mcproxy.dispatch.flow_control_set import FlowControls
    from mcproxy.proxy.request import Request


_NUMBERS = {
    **{name: name for name in ("waiting", "running", "cached", "places")},
    "largestShare": "largest_share",
}
"""Keys of the document and attributes of `ReviewLoad`. `largestShare` is of the client or user with most places."""
_CACHES = {"tokens": "tokens", "access": "decisions"}


def of_servers(names: Iterable[str], requests: Collection[Request]) -> list[Figures]:
    """Return the live figures of the servers `names`. A request without a server is not counted."""
    in_flight = Counter(request.server.name for request in requests if request.server is not None)
    return [{"name": name, "inFlight": in_flight[name]} for name in names]


def with_names(
    config: Iterable[model.Server], live: Iterable[Mapping[str, Any]], change: SampleDifference
) -> list[Figures]:
    """Return an entry for each server of the configuration, from the sums over all processes."""
    by_name = {entry["name"]: entry for entry in live}
    return [
        {
            "name": server.name,
            "serverNames": list(server.server_names),
            "default": server.default,
            "listeners": list(server.listeners),
            "backend": _backend(server.backend),
            **_of_totals(change.now.servers.get(server.name, Sums())),
            **change.of_server(server.name),
            "inFlight": by_name.get(server.name, {}).get("inFlight", 0),
        }
        for server in config
    ]


def _of_totals(sums: Sums) -> Figures:
    return {"requestsTotal": sums.requests, "errorsTotal": sums.errors, "refusedTotal": sums.refused}


def _backend(backend: model.Backend) -> Figures:
    if isinstance(backend, model.ClusterBackend):
        return {"cluster": backend.cluster}
    if isinstance(backend, model.AggregateBackendConfig):
        return {"aggregate": backend.aggregate}
    if isinstance(backend, model.TunnelsBackend):
        return {"tunnels": list(backend.tunnels)}
    return {"clusters": list(backend.clusters)}


def of_flow_controls(flow_controls: FlowControls) -> list[Figures]:
    """Return the figures of flow controls with a limit, for the requests of this process only."""
    return [
        {
            "name": name,
            "inUse": control.in_use,
            "inUseLongRunning": control.in_use_long_running,
            "waiting": control.waiting,
            "refusedTotal": control.refused,
            "tokens": control.tokens,
        }
        for name, control in flow_controls.controls.items()
    ]


def with_limits(config: Iterable[model.FlowControl], live: Iterable[Mapping[str, Any]]) -> list[Figures]:
    """Return an entry for each flow control of the configuration, from the sums over all processes.

    `use` is the used fraction of the limit, 0 to 1; None if the limit is per user or cluster, which are not counted
    separately here.
    """
    by_name = {entry["name"]: entry for entry in live}
    return [_with_limit(item, by_name.get(item.name, {})) for item in config]


def _with_limit(item: model.FlowControl, live: Mapping[str, Any]) -> Figures:
    in_use, long_running = live.get("inUse", 0), live.get("inUseLongRunning", 0)
    tokens = live.get("tokens")
    limit: Figures = {}
    use: float | None = None
    if item.type is FlowControlType.TOKEN_BUCKET:
        limit = {"qps": item.qps, "burst": item.burst}
        use = None if tokens is None else _part(item.burst - tokens, item.burst)
    elif item.type is FlowControlType.MAX_REQUESTS_INFLIGHT:
        limit = {"max": item.max, "maxLongRunning": item.max_long_running}
        parts = [_part(in_use, item.max), _part(long_running, item.max_long_running)]
        use = max((part for part in parts if part is not None), default=None) if item.per is Per.ALL else None
    if item.queue is not None:
        limit["queue"] = item.queue.size
    return {
        "name": item.name,
        "schema": str(item.type),
        "per": str(item.per),
        "shared": item.shared,
        "limit": limit,
        "inUse": in_use,
        "inUseLongRunning": long_running,
        "waiting": live.get("waiting", 0),
        "refusedTotal": live.get("refusedTotal", 0),
        "use": use,
    }


def _part(used: float, maximum: int | None) -> float | None:
    if maximum is None:
        return None
    return round(min(1.0, max(0.0, used / maximum)), 3) if maximum else 1.0


def of_shared_limits(figures: Figures | None) -> Figures:
    """Return the state of limits over replicas under the key `sharedState`; empty if no limit is shared (None)."""
    return {} if figures is None else {"sharedState": figures}


def of_reviews(loads: Iterable[tuple[str, str, ReviewLoad]]) -> Figures:
    """Return the figures `reviews` and `caches`, from ``(kind, name, load)`` of each reviewer.

    `name` is the authentication whose tokens are reviewed (kind "tokens"), or the cluster that authorizes requests
    ("access").
    """
    reviewers: dict[tuple[str, str], Figures] = {}
    caches = dict.fromkeys(_CACHES.values(), 0)
    for kind, name, load in loads:
        entry = reviewers.setdefault((kind, name), {"kind": kind, "name": name, **dict.fromkeys(_NUMBERS, 0)})
        for key, attribute in _NUMBERS.items():
            entry[key] += getattr(load, attribute)
        caches[_CACHES[kind]] += load.cached
    found = list(reviewers.values())
    return {
        "reviews": {
            "waiting": sum(entry["waiting"] for entry in found),
            "running": sum(entry["running"] for entry in found),
            "reviewers": found,
        },
        "caches": caches,
    }
