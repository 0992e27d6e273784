"""A route of requests as it is live: its backends, and what does not differ by request."""

from __future__ import annotations

from mcproxy.config.model import MAX_BODY, PathType
from mcproxy.net.name_table import NameTable
from mcproxy.services.ingress.backend import Backend
from mcproxy.services.ingress.backend_shares import BackendShares
from mcproxy.services.ingress.route_changes import RouteChanges
from mcproxy.services.ingress.router import Route


class LiveRoute:
    """What a request needs of its route, made with the Runtime."""

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
        """`shares`: None for a redirect. `tls_hosts`: the hosts whose requests without TLS are redirected, if any."""
        self.shares = shares
        backends = () if shares is None else shares.backends
        self.only: Backend | None = backends[0] if route.rule is None or route.rule.backend is not None else None
        """The one backend, of which no share is to be worked out."""
        self.ingress = route.ingress.name
        self.label = route.label
        self.service = backends[0].service if len(backends) == 1 else ""
        self.labels = (self.ingress, self.label, self.service)
        """As metrics have them, while no backend is chosen or where there is one."""
        self.cookie_path = _cookie_path(route)
        self.tls_hosts = tls_hosts
        self.redirect_port = redirect_port
        self.changes = None if route.filters is None else RouteChanges(route)
        written = None if route.filters is None else route.filters.body_bytes
        self.body_bytes = MAX_BODY if written is None else written
        """Of a request's body at most; 0: no limit."""
        self.limits_calls = written is not None
        """Whether that counts for calls of gRPC too."""

    def labels_of(self, backend: Backend | None) -> tuple[str, str, str]:
        """Return ingress, rule and service as metrics have them."""
        return self.labels if backend is None or backend is self.only else (self.ingress, self.label, backend.service)

    def location(self, host: bytes, target: bytes) -> bytes | None:
        """Return where a request without TLS for a host (`host_name`) is redirected; None: it is not."""
        if self.tls_hosts is None or not self.tls_hosts.find(host.decode("latin-1")):
            return None
        port = b"" if self.redirect_port == 443 else b":%d" % self.redirect_port
        return b"https://%b%b%b" % (host, port, target)


def _cookie_path(route: Route) -> bytes:
    """Return the Path of a cookie: that of the rule, without a final slash (`/web/` matches /web too); "/" for all.

    Of a pattern there is none. A semicolon, which would end the attribute, cannot be in it: then the cookie is for the
    path before it.
    """
    if route.path_type == PathType.REGEX:
        return b"/"
    path = (route.path or "/").split(";")[0]
    if ";" in route.path:
        path = path.rpartition("/")[0]
    return (path.rstrip("/") or "/").encode()
