"""`dispatch` of a server: policies, the rules that they and authorizers have, and the section `flowControls`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.keys import ClusterName, Count, Key, Name, Seconds, within

# -- rules, which have the same form in authorizers and dispatch policies ----------------------------------------------

Items = Annotated[tuple[str, ...], Key(omit_empty=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """RBAC-like; lists as written, each item checked: "*", plain, "-inverted", and globs where the field has them."""

    verbs: Items = ()
    """Verbs of requests: get, list, watch, create, update, patch, delete, deletecollection; for other URLs, the HTTP
    method in lower case. Opening exec, attach or portforward is create with any method, both of pods and of a kubelet
    below nodes/NAME/proxy. "*" is all but impersonate and the verbs of constrained impersonation
    (impersonate:user-info, impersonate-on:user-info:get), which must be written out, -get all but get; empty: none."""
    users: Items = ()
    """Names of users; a star at the end stands for any rest, -NAME for all but NAME. Empty: all, unless there are
    serviceAccounts."""
    service_accounts: Annotated[tuple[tuple[str, str], ...], Key(omit_empty=True)] = ()  # (namespace, name)
    """Service accounts that match besides the users."""
    user_groups: Items = ()
    """Groups: the user must be in one of them; a star at the end stands for any rest, -NAME for users who are not in
    NAME. Empty: all users."""
    api_groups: Items = ()
    """API groups of resources; "" is the core group, "*" all, -NAME all but NAME. Empty: no resource matches."""
    resources: Items = ()
    """Resources: RESOURCE (without its subresources), RESOURCE/SUBRESOURCE, */SUBRESOURCE, "*" for all with their
    subresources, -NAME for all but NAME. Empty: no resource matches."""
    resource_names: Items = ()
    """Names of objects; a star at the end stands for any rest, -NAME for all but NAME, "" for requests without a name.
    Empty: all."""
    namespaces: Items = ()
    """Namespaces; a star at the end stands for any rest, -NAME for all but NAME, "" for requests outside of namespaces
    and over all of them. Empty: all."""
    clusters: Items = ()
    """Clusters, where a server has several; a star at the end stands for any rest, -NAME for all but NAME. Empty:
    all."""
    non_resource_urls: Annotated[tuple[str, ...], Key("nonResourceURLs", omit_empty=True)] = ()
    """Paths of requests that are not for a resource; a star at the end stands for any rest. Empty: no such request
    matches."""


@dataclass(frozen=True, slots=True)
class ClusterBackend:
    cluster: ClusterName
    """The name of the cluster."""


class Strategy(enum.StrEnum):
    """How an endpoint is chosen among the ready ones (reference: dispatch)."""

    ROUND_ROBIN = "RoundRobin"
    LEAST_REQUESTS = "LeastRequests"
    CONSISTENT_HASH = "ConsistentHash"


@dataclass(frozen=True, slots=True)
class Reject:
    code: Annotated[int, within(400, 599)] = 403
    """The status code of the response."""
    message: str = "this request is not served here"
    """The message of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One dispatch policy; the first of a server with a matching rule applies."""

    name: Annotated[Name, Key(required=False)]  # as given, else its place in the list: "dispatch[0]"
    """The policy's name in logs. Left out: its place in the list."""
    rules: tuple[Rule, ...]
    """The policy applies to requests that one of the rules matches. All lists of a rule must match."""
    reject: Reject | None = None
    """Refuse its requests."""
    endpoints: tuple[str, ...] = ()  # names
    """Names or URLs of the cluster's endpoints that requests go to. Empty: all."""
    strategy: Strategy = Strategy.ROUND_ROBIN
    """How one of the ready endpoints is chosen: in turn, the one with the fewest requests in flight, or always the same
    one for a user."""
    backend: ClusterBackend | None = None
    """The cluster that its requests go to, instead of the server's own."""
    flow_control: Name | None = None
    """The name of the limit on its requests. Left out: none."""
    access_log: bool | None = None
    """Whether its requests are in the access log, unless the server's accessLog is false. Left out: the server's
    setting."""


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
    size: Annotated[int, within(1, 10**6)]
    """Requests that may wait at the same time; with per User or Cluster, for each of them. MaxRequestsInflight: as many
    long-running ones in addition."""
    timeout: Seconds
    """How long a request may wait before it gets 429."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControl:
    name: Name
    """The name that clusters and policies refer to the flow control by."""
    type: FlowControlType
    """How requests are limited. Exempt: only by the cluster's own flow controls. MaxRequestsInflight: by their number
    at the same time. TokenBucket: by their rate."""
    shared: bool = False
    """Whether the limit holds over all replicas of the proxy together, which count in daemon.sharedState: each replica
    has a share that follows its load, or an equal one while the engine cannot be reached. false: over the workers of
    one daemon."""
    qps: float = 0.0
    """TokenBucket: requests per second in the long run; fractions are allowed."""
    burst: Annotated[int, within(1, 10**9)] = 0
    """TokenBucket: requests at once, after a pause."""
    max: Count | None = None
    """MaxRequestsInflight: requests at the same time, other than long-running ones; 0 refuses all. Left out: no
    limit."""
    max_long_running: Count | None = None
    """MaxRequestsInflight: long-running requests at the same time (watch, logs that are followed, exec, attach,
    portforward, proxy, and any other upgrade from its 101 on); 0 refuses all. Left out: no limit."""
    per: Per = Per.ALL
    """Whose requests share one limit: each user's, each cluster's, or all."""
    queue: Queue | None = None
    """Where requests over the limit wait: users take turns, each user's requests in their order. In a full queue, the
    newest request of the user with the most queued makes room and gets 429. Left out: they are refused at once."""
