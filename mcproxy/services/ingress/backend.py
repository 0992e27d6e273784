"""A backend of ingresses: the choice of its endpoints, its retry budget; and the routes of requests that lead to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mcproxy.config.model import Affinity, IngressBackend
from mcproxy.net.name_table import NameTable
from mcproxy.services.ingress.backend_endpoint import BackendEndpoint
from mcproxy.services.ingress.backend_members import Member
from mcproxy.services.ingress.cookie_affinity import CookieAffinity
from mcproxy.services.ingress.endpoint_balancer import Balancer
from mcproxy.services.ingress.router import Route

RETRY_SHARE = 0.2
"""Requests that may be sent again, for each request: a backend that is down gets a fifth more, not double."""
MOST_RETRIES = 50.0
"""Retries that are saved up at most; as many may follow each other."""
FIRST_RETRIES = 10.0
"""Retries that a backend has at its beginning."""


class Backend:
    """One backend under one configuration; what its endpoints are is in `members`, which others may have too."""

    __slots__ = ("_budget", "_unsubscribe", "affinity", "balancer", "config", "members", "name")

    def __init__(
        self,
        config: IngressBackend,
        members: Mapping[str, Member],
        random: Callable[[], float],
        keys: Sequence[bytes],
        previous: Backend | None = None,
    ) -> None:
        """`members` are by cluster; `keys` are those of cookies. `previous` is the one that it takes the place of."""
        self.config = config
        self.balancer: Balancer
        self._budget: float
        self.name = f"{config.namespace}/{config.service}:{config.port}"
        self.members = dict(members)
        self.balancer = Balancer(
            members,
            {name: config.weight(name) for name in members},
            config.strategy,
            random,
            None if previous is None else previous.balancer,
        )
        self.affinity = CookieAffinity(config, keys) if config.affinity is Affinity.COOKIE else None
        self._budget = FIRST_RETRIES if previous is None else previous._budget
        self._unsubscribe = [member.subscribe(self._changed) for member in members.values()]
        self._changed()

    def stop(self) -> None:
        """No configuration has it any more."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def _changed(self) -> None:
        self.balancer.changed()
        if self.affinity is not None:
            self.affinity.follow(member.endpoints for member in self.members.values())

    @property
    def missing(self) -> bool:
        """Whether no cluster has the Service, or its port; False while one that may get requests was not asked."""
        weights = self.config.weight
        return all(member.known.missing for cluster, member in self.members.items() if weights(cluster))

    def first(self, named: BackendEndpoint | None) -> BackendEndpoint | None:
        """Return the endpoint for a request that was not sent yet; None if there is none.

        `named`: the one that the request's affinity cookie names.
        """
        if self._budget < MOST_RETRIES:
            self._budget += RETRY_SHARE
        if named is not None and self.balancer.may_choose(named):
            return named
        return self.balancer.pick()

    def another(self, tried: Sequence[BackendEndpoint]) -> BackendEndpoint | None:
        """Return an endpoint for a request that has failed at `tried`; None if there is none or it is one too many."""
        if self._budget < 1:
            return None
        found = self.balancer.pick(tried)
        if found is not None:
            self._budget -= 1
        return found


class LiveRoute:
    """What a request needs of its route, made with the Runtime: the backend, and what does not differ by request."""

    __slots__ = (
        "authority",
        "backend",
        "cookie_path",
        "ingress",
        "label",
        "labels",
        "redirect_port",
        "service",
        "tls_hosts",
    )

    def __init__(self, route: Route, backend: Backend, tls_hosts: NameTable[bool] | None, redirect_port: int) -> None:
        """`tls_hosts`: the hosts for which requests without TLS are redirected, if there are any."""
        self.backend = backend
        self.ingress = route.ingress.name
        self.label = route.label
        self.service = f"{route.backend.namespace}/{route.backend.service}"
        #: of requests without a host (HTTP/1.0)
        self.authority = f"{route.backend.service}.{route.backend.namespace}".encode()
        self.labels = (self.ingress, self.label, self.service)
        """As metrics have them."""
        self.cookie_path = _cookie_path(route)
        self.tls_hosts = tls_hosts
        self.redirect_port = redirect_port

    def location(self, host: bytes, target: bytes) -> bytes | None:
        """Return where a request without TLS for a host (`host_name`) is redirected; None: it is not."""
        if self.tls_hosts is None or not self.tls_hosts.find(host.decode("latin-1")):
            return None
        port = b"" if self.redirect_port == 443 else b":%d" % self.redirect_port
        return b"https://%b%b%b" % (host, port, target)


def _cookie_path(route: Route) -> bytes:
    """Return the Path of a cookie: that of the rule, without a final slash (`/web/` matches /web too); "/" for all.

    A semicolon, which would end the attribute, cannot be in it: then the cookie is for the path before it.
    """
    path = (route.path or "/").split(";")[0]
    if ";" in route.path:
        path = path.rpartition("/")[0]
    return (path.rstrip("/") or "/").encode()
