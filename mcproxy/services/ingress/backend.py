"""A backend of ingresses: its endpoints, the choice between them, and its budget of retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mcproxy.config.model import Affinity, IngressBackend, Strategy
from mcproxy.services.ingress.backend_endpoints import BackendMember
from mcproxy.services.ingress.cookie_affinity import CookieAffinity
from mcproxy.services.ingress.endpoint_balancer import EndpointBalancer, client_key
from mcproxy.services.ingress.endpoint_health import BackendEndpoint

RETRY_SHARE = 0.2
"""Retries that each request adds to the budget: a failing backend gets a fifth more requests, not twice as many."""
MOST_RETRIES = 50.0
"""Maximum of the retry budget, and so of retries in a row."""
FIRST_RETRIES = 10.0
"""Retry budget of a new backend."""


class Backend:
    """One backend under one configuration; its endpoints are in `members`, which several backends can share."""

    __slots__ = (
        "_budget",
        "_unsubscribe",
        "affinity",
        "authority",
        "balancer",
        "client_key",
        "config",
        "members",
        "name",
        "service",
    )

    def __init__(
        self,
        config: IngressBackend,
        members: Mapping[str, BackendMember],
        random: Callable[[], float],
        keys: Sequence[bytes],
        previous: Backend | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`members`: the endpoints, by cluster. `keys`: of affinity cookies. `previous`: the backend to replace."""
        self.config = config
        self.balancer: EndpointBalancer
        self._budget: float
        self.service = f"{config.namespace}/{config.service}"
        self.name = f"{self.service}:{config.port}"
        #: Host field for requests without a host (HTTP/1.0)
        self.authority = f"{config.service}.{config.namespace}".encode()
        self.members = dict(members)
        self.balancer = EndpointBalancer(
            members,
            {name: config.weight(name) for name in members},
            config.strategy,
            random,
            None if previous is None else previous.balancer,
            slow_start=config.slow_start,
            clock=clock,
        )
        #: Returns ConsistentHash's key for a request, from its fields and its client's address.
        self.client_key: Callable[[bytes, str], bytes] | None = None
        if config.strategy is Strategy.CONSISTENT_HASH:
            self.client_key = client_key(config.hash_by)
        self.affinity = CookieAffinity(config, keys) if config.affinity is Affinity.COOKIE else None
        self._budget = FIRST_RETRIES if previous is None else previous._budget
        self._unsubscribe = [member.subscribe(self._changed) for member in members.values()]
        self._changed()

    def stop(self) -> None:
        """Stop: no configuration has the backend any more."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def _changed(self) -> None:
        self.balancer.changed()
        if self.affinity is not None:
            self.affinity.follow(member.endpoints for member in self.members.values())

    @property
    def missing(self) -> bool:
        """Whether no cluster with a weight has the Service or its port; False while one such cluster is unknown."""
        weights = self.config.weight
        return all(member.known.missing for cluster, member in self.members.items() if weights(cluster))

    def first(self, named: BackendEndpoint | None, key: bytes = b"") -> BackendEndpoint | None:
        """Return the endpoint for the first attempt of a request; None if there is none.

        `named`: the endpoint in the request's affinity cookie. `key`: the key of its client (`client_key`).
        """
        if self._budget < MOST_RETRIES:
            self._budget += RETRY_SHARE
        if named is not None and self.balancer.may_choose(named):
            return named
        return self.balancer.pick((), key)

    def another(self, tried: Sequence[BackendEndpoint], key: bytes = b"") -> BackendEndpoint | None:
        """Return an endpoint to retry a request that failed at `tried`; None if no endpoint or no budget is left."""
        if self._budget < 1:
            return None
        found = self.balancer.pick(tried, key)
        if found is not None:
            self._budget -= 1
        return found
