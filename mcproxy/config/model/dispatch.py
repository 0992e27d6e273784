"""`dispatch` of a server: policies, the rules that they and authorizers have, and the section `flowControls`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.keys import Key, Seconds

# -- rules, which authorizers and dispatch policies have in the same form ----------------------------------------------

Items = Annotated[tuple[str, ...], Key(omit_empty=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """RBAC-like; lists as written, each item checked: "*", plain, "-inverted", and globs where the field has them."""

    verbs: Items = ()
    users: Items = ()
    service_accounts: Annotated[tuple[tuple[str, str], ...], Key(omit_empty=True)] = ()  # (namespace, name)
    user_groups: Items = ()
    api_groups: Items = ()
    resources: Items = ()
    resource_names: Items = ()
    namespaces: Items = ()
    clusters: Items = ()
    non_resource_urls: Annotated[tuple[str, ...], Key("nonResourceURLs", omit_empty=True)] = ()


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


# -- the section `flowControls` ----------------------------------------------------------------------------------------


class FlowControlType(enum.StrEnum):
    """How requests are limited."""

    EXEMPT = "Exempt"
    MAX_REQUESTS_INFLIGHT = "MaxRequestsInflight"
    TOKEN_BUCKET = "TokenBucket"


class Per(enum.StrEnum):
    """Whose requests share one limit."""

    ALL = "All"
    USER = "User"
    CLUSTER = "Cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    size: int
    timeout: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControl:
    name: str
    type: FlowControlType
    shared: bool = False  # the limit holds over all replicas of the proxy together (`daemon.sharedState`)
    qps: float = 0.0  # TokenBucket
    burst: int = 0  # TokenBucket
    max: int | None = None  # MaxRequestsInflight: requests that are not long-running; 0 refuses all
    max_long_running: int | None = None  # MaxRequestsInflight; None: no limit
    per: Per = Per.ALL
    queue: Queue | None = None  # None: refused at once
