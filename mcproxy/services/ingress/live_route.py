"""The live objects of a route: the choice of a request's backend, its metric labels and its redirect to TLS."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import MAX_BODY, PathType
from mcproxy.net.name_table import NameTable
from mcproxy.services.ingress.backend import Backend
from mcproxy.services.ingress.endpoint_health import BackendEndpoint
from mcproxy.services.ingress.router import Route, RouteChanges
from mcproxy.upstream.balancing.round_robin import SmoothWeightedRoundRobin


class BackendShares:
    """The backends of a rule and their shares of its requests.

    Requests for a backend without endpoints do not go to other backends: they get 500 or 503 (Gateway API,
    HTTPBackendRef), unless the rule has `spill`. A client with an affinity cookie stays with its pod's backend while
    that backend has a weight and the pod is a candidate (`endpoint_balancer`).
    """

    __slots__ = ("_among", "_smooth", "_spill", "_sticky", "backends", "weights")

    def __init__(self, shares: Sequence[tuple[Backend, int]], *, spill: bool, previous: BackendShares | None) -> None:
        """`previous`: the shares of the rule before a reload; the rotation continues if the weights are unchanged."""
        self.backends = tuple(backend for backend, _ in shares)
        self.weights = tuple(weight for _, weight in shares)
        self._spill = spill
        self._among = tuple(index for index, weight in enumerate(self.weights) if weight)
        self._sticky = tuple(self.backends[index] for index in self._among if self.backends[index].affinity is not None)
        smooth = SmoothWeightedRoundRobin(len(shares))
        if previous is not None and previous.weights == self.weights:
            smooth = previous._smooth.reordered(range(len(self.weights)))
        self._smooth: SmoothWeightedRoundRobin = smooth.with_weights(self.weights)

    def choose(self, fields: bytes) -> tuple[Backend, BackendEndpoint | None] | None:
        """Return the backend for a request with these fields, and the endpoint that its cookie names, if any.

        Returns None if no backend has a weight.
        """
        for backend in self._sticky:
            assert backend.affinity is not None
            named = backend.affinity.endpoint_of(fields)
            if named is not None and backend.balancer.may_choose(named):
                return backend, named
        among = self._among
        if self._spill:
            among = tuple(index for index in among if self.backends[index].balancer.has_endpoints) or among
        if not among:
            return None
        return self.backends[among[0] if len(among) == 1 else self._smooth.select(among, among)], None


class LiveRoute:
    """The live objects of a route, made with the Runtime."""

    __slots__ = (
        "body_bytes",
        "changes",
        "cookie_path",
        "ingress",
        "label",
        "labels",
        "limits_calls",
        "only",
        "redirect_port",
        "service",
        "shares",
        "tls_hosts",
    )

    def __init__(
        self, route: Route, shares: BackendShares | None, tls_hosts: NameTable[bool] | None, redirect_port: int
    ) -> None:
        """`shares`: None for a redirect. `tls_hosts`: the hosts whose plain-text requests are redirected to TLS."""
        self.shares = shares
        backends = () if shares is None else shares.backends
        self.only: Backend | None = backends[0] if route.rule is None or route.rule.backend is not None else None
        """The backend, if there is only one and no share has to be computed."""
        self.ingress = route.ingress.name
        self.label = route.label
        self.service = backends[0].service if len(backends) == 1 else ""
        self.labels = (self.ingress, self.label, self.service)
        """Labels of metrics for a route with one backend, or for requests whose backend is not chosen yet."""
        self.cookie_path = _cookie_path(route)
        self.tls_hosts = tls_hosts
        self.redirect_port = redirect_port
        self.changes = None if route.filters is None else RouteChanges(route)
        written = None if route.filters is None else route.filters.body_bytes
        self.body_bytes = MAX_BODY if written is None else written
        """Maximum of bytes of a request's body; 0: no limit."""
        self.limits_calls = written is not None
        """Whether the limit applies to gRPC calls too."""

    def labels_of(self, backend: Backend | None) -> tuple[str, str, str]:
        """Return ingress, rule and service, the labels of metrics."""
        return self.labels if backend is None or backend is self.only else (self.ingress, self.label, backend.service)

    def location(self, host: bytes, target: bytes) -> bytes | None:
        """Return the Location for a request without TLS for a host (`host_name`); None if it is not redirected."""
        if self.tls_hosts is None or not self.tls_hosts.find(host.decode("latin-1")):
            return None
        port = b"" if self.redirect_port == 443 else b":%d" % self.redirect_port
        return b"https://%b%b%b" % (host, port, target)


def _cookie_path(route: Route) -> bytes:
    """Return the Path of a cookie: the rule's path without a final slash (`/web/` matches /web too); "/" for all paths.

    A Regex rule has "/". A semicolon would end the attribute, so the Path is cut before it.
    """
    if route.path_type == PathType.REGEX:
        return b"/"
    path = (route.path or "/").split(";")[0]
    if ";" in route.path:
        path = path.rpartition("/")[0]
    return (path.rstrip("/") or "/").encode()
