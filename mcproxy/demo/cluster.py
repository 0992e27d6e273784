"""The state of one simulated cluster: what its endpoints (ports) share.

Everything that a request may change hangs off `SimulatedCluster`; handlers get it, nothing else is global. Time and
randomness come in from outside so that tests decide them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mcproxy.demo.apimachinery.resources import Registry
from mcproxy.demo.apimachinery.user import User
from mcproxy.demo.diagnostics.audit import AuditLog
from mcproxy.demo.diagnostics.faults import Faults
from mcproxy.demo.diagnostics.starting import StartingEndpoints
from mcproxy.demo.storage.store import StorageOptions, Store

JSONDict = dict[str, Any]


@dataclass(frozen=True)
class ClusterOptions(StorageOptions):
    """What differs between simulated clusters."""

    anonymous_auth: bool = True
    constrained_impersonation: bool = True
    """The words of Kubernetes 1.36; False gives those of earlier versions."""


class SimulatedCluster:
    """One cluster. `now` gives aware UTC datetimes."""

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
        """The CA of the client certificates that make a user (CN = name, O = groups)."""
        self.front_proxy_ca_pem: bytes = b""
        """The CA of front proxies, whose X-Remote-* headers are believed."""
        self.state: dict[str, Any] = {}
        """Room for what single modules keep per cluster (signing keys, counters), each under its own module name."""

    def timestamp(self) -> str:
        """Now, as in creationTimestamp."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def uid(self) -> str:
        """A new object's uid."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def name_suffix(self) -> str:
        """The five characters that generateName adds."""
        return "".join(self.random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
