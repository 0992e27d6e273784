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
from kubesim.diagnostics.audit import AuditLog
from kubesim.diagnostics.faults import Faults
from kubesim.diagnostics.starting import StartingEndpoints
from kubesim.storage.store import StorageOptions, Store


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
