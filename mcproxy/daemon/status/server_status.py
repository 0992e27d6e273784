"""Servers: their kinds, their requests in flight, and the number of all requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.recent_rates import Change
from mcproxy.observe.metrics.breakdown import Sums

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request


def of_servers(names: Iterable[str], requests: Collection[Request]) -> list[Figures]:
    """Return the live figures of the servers `names`; a request that no server was found for counts nowhere."""
    in_flight = Counter(request.server.name for request in requests if request.server is not None)
    return [{"name": name, "inFlight": in_flight[name]} for name in names]


def with_names(config: Iterable[model.Server], live: Iterable[Mapping[str, Any]], change: Change) -> list[Figures]:
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
    if isinstance(backend, model.AggregateBackend):
        return {"aggregate": backend.aggregate}
    return {"clusters": list(backend.clusters)}
