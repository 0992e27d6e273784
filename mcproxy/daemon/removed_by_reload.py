"""Requests that a reload ends, since it has removed an object that they use. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.daemon.live_listener import LiveListener
from mcproxy.http.exchange import ServerContext
from mcproxy.http.server_factory import ServerFactory
from mcproxy.proxy.request import Request

if TYPE_CHECKING:
    from mcproxy.services.ingress.ingress_request import IngressRequest


class RemovedByReload:
    """Whether a reload has removed what a request uses: its listener, server, cluster or endpoint.

    A cluster that its server no longer serves, and a server that its listener no longer has, count as removed.
    """

    def __init__(
        self, config: model.Config, gone: Collection[ServerFactory], listeners: Iterable[LiveListener]
    ) -> None:
        self._gone = gone
        self._listeners: dict[ServerContext, str] = {live.factory: live.config.name for live in listeners}
        self._servers = {server.name: server for server in config.servers}
        self._clusters = {server.name: frozenset(server.reached_clusters) for server in config.servers}
        self._owners = {
            server.name: {(each.group, each.version): each.cluster for each in server.api_services}
            for server in config.servers
        }
        self._addresses = {
            (cluster.name, endpoint.url) for cluster in config.clusters for endpoint in cluster.endpoints
        }

    def changed_owner(self, request: Request) -> bool:
        """Whether the group-version of a request has another owner now, or one that it had not, or none any more."""
        server, info, service = request.server, request.info, request.api_service
        if server is None or info is None:
            return False
        owners = self._owners.get(server.name, {})
        if service is not None:
            return owners.get((service.group, service.version)) != service.cluster
        # A path that names one of several clusters is for that cluster's own API.
        of_root = server.only_cluster is not None or request.served is not None
        return of_root and info.is_resource and (info.group, info.version) in owners

    def __call__(self, request: Request) -> bool:
        factory, server = request.exchange.connection.factory, request.server
        if factory in self._gone:
            return True
        if server is not None:
            now = self._servers.get(server.name)
            if now is None or self._listeners.get(factory, "") not in (*now.listeners, ""):
                return True
            if request.cluster is not None and request.cluster.name not in self._clusters[server.name]:
                return True
            if request.served is not None and request.served.aggregate != _aggregate(now):
                return True
        endpoint = request.endpoint
        return endpoint is not None and (endpoint.cluster_name, endpoint.config.url) not in self._addresses


def _aggregate(server: model.Server) -> str:
    return server.backend.aggregate if isinstance(server.backend, model.AggregateBackend) else ""


def removed_ingress_requests(
    requests: Collection[IngressRequest], config: model.Config, gone: Collection[Any]
) -> list[IngressRequest]:
    """Return the requests whose listener (by its factory: `gone`) or route a reload has removed."""
    backends = {each for ingress in config.ingresses for each in ingress.backends}
    services = {(each.namespace, each.service, each.port, cluster) for each in backends for cluster in each.clusters}
    return [each for each in requests if each.exchange.connection.factory in gone or _is_removed(each, services)]


def _is_removed(request: IngressRequest, services: Collection[tuple[str, str, int | str, str]]) -> bool:
    live, endpoint = request.backend, request.endpoint
    if live is None or endpoint is None:
        return False
    backend = live.config
    return (backend.namespace, backend.service, backend.port, endpoint.cluster) not in services
