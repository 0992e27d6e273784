"""The state of one simulated cluster, shared by its endpoints (ports).

All state that a request may change is in `SimulatedCluster`, which handlers receive; there are no globals. Time and
randomness are injected, so that tests control them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubesim.apimachinery.resources import Registry
from kubesim.apimachinery.user import User
from kubesim.audit import AuditLog
from kubesim.faults import Faults
from kubesim.storage.store import StorageOptions, Store


class StartingEndpoints:
    """The endpoints of a cluster that are starting: their ports are open, and they have not read the RBAC roles yet.

    A kube-apiserver authorizes from the caches of its informers. Until these have synced, about a second after its port
    is open, RBAC refuses every request, /readyz included, with the ordinary 403. Only members of system:masters are
    allowed, for whom no role is looked up; the health checks answer 500 to them, because the post-start hooks have not
    finished. Times are Unix seconds.
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def begin(self, endpoint: int, until: float) -> None:
        """Mark an endpoint as without roles until a time, or until `finish`."""
        self._until[endpoint] = until

    def finish(self, endpoint: int) -> None:
        """Mark an endpoint as having read the roles."""
        self._until.pop(endpoint, None)

    def includes(self, endpoint: int, now: float) -> bool:
        """Return whether the endpoint is starting."""
        until = self._until.get(endpoint)
        if until is None:
            return False
        if now >= until:
            self.finish(endpoint)
            return False
        return True


@dataclass(frozen=True)
class ClusterOptions(StorageOptions):
    """The options of a simulated cluster."""

    anonymous_auth: bool = True
    constrained_impersonation: bool = True
    """Rules and messages of Kubernetes 1.36 (KEP-5284); False: those of earlier versions."""
    loopback_endpoints: bool = False
    """Whether EndpointSlices may have loopback addresses, which an API server refuses: pods are on this machine."""


class SimulatedCluster:
    """One cluster. `now` returns aware UTC datetimes."""

    def __init__(
        self,
        name: str,
        *,
        options: ClusterOptions | None = None,
        now: Callable[[], datetime] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.options = options or ClusterOptions()
        self.now: Callable[[], datetime] = now or (lambda: datetime.now(UTC))
        self.random = rng or random.Random()
        self.store = Store(options=self.options, rng=self.random)
        self.resources = Registry()
        self.audit = AuditLog()
        self.faults = Faults()
        self.starting = StartingEndpoints()
        self.tokens: dict[str, User] = {}
        """Static bearer tokens."""
        self.client_ca_pem: bytes = b""
        """The CA of client certificates (CN is the user name, O are the groups)."""
        self.front_proxy_ca_pem: bytes = b""
        """The CA of front proxies, whose X-Remote-* headers are trusted."""
        self.state: dict[str, Any] = {}
        """State of single modules (signing keys, counters), by module name."""
        self.pod_network = "10.244"
        """The prefix of pod addresses."""
        self.routes_to: tuple[Path, ...] = ()
        """The directories of simulated clusters whose pods can be reached from this one's."""

    def timestamp(self) -> str:
        """Return the time in the form of creationTimestamp."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def uid(self) -> str:
        """Return a uid for a new object."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def name_suffix(self) -> str:
        """Return the five random characters that generateName appends."""
        return "".join(self.random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
