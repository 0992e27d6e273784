"""`dispatch` of a server: policies."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mcproxy.config.model.rules import Rule


@dataclass(frozen=True, slots=True)
class ClusterBackend:
    cluster: str


class Strategy(enum.StrEnum):
    """How an endpoint is chosen among the ready ones (reference: dispatch)."""

    ROUND_ROBIN = "RoundRobin"
    LEAST_REQUESTS = "LeastRequests"
    CONSISTENT_HASH = "ConsistentHash"


@dataclass(frozen=True, slots=True)
class Reject:
    code: int = 403
    message: str = "this request is not served here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One dispatch policy; the first of a server with a matching rule applies."""

    name: str  # as given, else its place in the list: "dispatch[0]"
    rules: tuple[Rule, ...]
    reject: Reject | None = None
    endpoints: tuple[str, ...] = ()  # names; empty: all of the cluster
    strategy: Strategy = Strategy.ROUND_ROBIN
    backend: ClusterBackend | None = None  # another cluster than the server's
    flow_control: str | None = None
    access_log: bool | None = None
