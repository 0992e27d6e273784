"""The section `ingresses`: HTTP from outside to services in several clusters."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.dispatch import Strategy
from mcproxy.config.model.keys import Form, IPNetwork, Key, PEMFile, Seconds


class PathType(enum.StrEnum):
    EXACT = "Exact"
    PREFIX = "Prefix"  # element by element: /foo matches /foo and /foo/bar, not /foobar
    REGEX = "Regex"  # the whole path, by `kube.linear_regex`


class WildcardLabels(enum.StrEnum):
    """The labels of a host that the star of a rule's wildcard stands for."""

    ONE = "One"  # networking.k8s.io/v1
    ANY = "Any"  # one or more: gateway.networking.k8s.io


class Via(enum.StrEnum):
    """How requests reach the pods of a service."""

    ENDPOINTS = "Endpoints"  # at their own addresses, which must be routable from here
    PORT_FORWARD = "PortForward"  # through pods/NAME/portforward of their cluster
    API_SERVER = "APIServer"  # through services/NAME:PORT/proxy of their cluster


class Affinity(enum.StrEnum):
    """How the requests of a client are kept at one endpoint (session affinity)."""

    NONE = "None"
    COOKIE = "Cookie"


class SameSite(enum.StrEnum):
    """To which requests a browser adds a cookie (RFC 6265bis 4.1.2.7)."""

    LAX = "Lax"
    STRICT = "Strict"
    NONE = "None"  # to all; only of a cookie over TLS


class IPFamily(enum.StrEnum):
    IPV4 = "IPv4"
    IPV6 = "IPv6"


class BackendProtocol(enum.StrEnum):
    """The HTTP version of connections to pods."""

    #: By the Service port's appProtocol (kubernetes.io/h2c, kubernetes.io/ws, https, grpc), else HTTP/1.1; with TLS by
    #: ALPN.
    AUTO = "Auto"
    HTTP1 = "HTTP1"
    HTTP2 = "HTTP2"  # without TLS by prior knowledge
    HTTPS = "HTTPS"  # with TLS, where `tls` is not written, too; the version by ALPN
    GRPC = "GRPC"  # as HTTP2


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityCookie:
    name: str | None = None  # None: made of the backend's
    max_age: Seconds = 0.0  # whole seconds; 0: until the browser ends
    same_site: SameSite = SameSite.LAX


@dataclass(frozen=True, slots=True, kw_only=True)
class HashBy:
    """What a client is told apart by, for Strategy.CONSISTENT_HASH; without a value, by its address."""

    header: str | None = None  # a name, in whatever case
    cookie: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTLS:
    """TLS to pods."""

    ca: Annotated[PEMFile | None, Key("caFile")] = None  # None: the system's authorities
    server_name: str | None = None  # verified, and sent as SNI; None: SERVICE.NAMESPACE.svc
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendHealthCheck:
    path: str = "/"  # with a query, if any
    interval: Seconds = 10.0
    timeout: Seconds = 3.0
    unhealthy_after: int = 3
    healthy_after: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressBackend:
    """A Service of one name in several clusters, and how its pods are reached."""

    namespace: str
    service: str
    port: int | str  # of the Service: its number or its name
    clusters: tuple[str, ...]  # never empty
    weights: tuple[tuple[str, int], ...] = ()  # as written; a cluster without one has 1, and 0 is none; see `weight`
    via: Via = Via.ENDPOINTS
    affinity: Affinity = Affinity.NONE
    cookie: AffinityCookie | None = None  # of Affinity.COOKIE
    strategy: Strategy = Strategy.ROUND_ROBIN
    hash_by: HashBy | None = None  # None: by the client's address
    slow_start: Seconds = 0.0  # in which an endpoint that has come, or is back, gets to its share
    ip_family: IPFamily | None = None  # None: the Service's primary one
    protocol: BackendProtocol = BackendProtocol.AUTO
    tls: BackendTLS | None = None
    health_check: BackendHealthCheck | None = None  # None: pods are not asked
    retries: int = 1  # further attempts of an idempotent request, each at another endpoint
    retry_on: tuple[int, ...] = ()  # statuses on which it is sent to another endpoint too
    connect_timeout: Seconds = 5.0
    response_timeout: Seconds = 60.0  # until the head of the response; 0: no limit
    read_timeout: Seconds = 60.0  # between two pieces of the response; 0: no limit
    #: Pod addresses that are used; empty: all but loopback, link-local and unspecified ones.
    allowed_cidrs: Annotated[tuple[IPNetwork, ...], Key("allowedCIDRs")] = ()

    def weight(self, cluster: str) -> int:
        """Return the share of requests of one of `clusters`, compared with the other clusters' weights."""
        return dict(self.weights).get(cluster, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderEdits:
    """Changes of a head's fields; a name is one once, in whatever case."""

    set_: Annotated[tuple[tuple[str, str], ...], Key("set")] = ()  # in place of all of that name
    add: tuple[tuple[str, str], ...] = ()  # beside those that there are
    remove: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.set_ or self.add or self.remove)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """What is None stays as the client has asked."""

    scheme: str | None = None  # http or https
    host: str | None = None
    port: int | None = None  # None: the client's, or with `scheme` that scheme's own
    path: str | None = None  # with \1 … of a Regex
    prefix: str | None = None  # in place of the path of a Prefix
    code: int = 302


MAX_BODY = 1024 * 1024
"""Bytes of a request's body where no rule says another number, as nginx's client_max_body_size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFilters:
    """What a rule changes of requests and responses."""

    request_headers: HeaderEdits = HeaderEdits()
    response_headers: HeaderEdits = HeaderEdits()
    rewrite_host: str | None = None
    rewrite_path: str | None = None  # with \1 … of a Regex
    rewrite_prefix: str | None = None  # in place of the path of a Prefix
    redirect: Redirect | None = None
    timeout: Seconds = 0.0  # until the response begins, over all attempts; 0: no limit
    #: 0: no limit; None: MAX_BODY, but for calls of gRPC, which are streams.
    body_bytes: Annotated[int | None, Form.SIZE] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedBackend:
    weight: int = 1  # 0: no requests
    backend: IngressBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressPath:
    """A path that requests match, further conditions, and where they go."""

    path: str  # as written; begins with a slash
    path_type: PathType
    methods: tuple[str, ...] = ()  # any of them; empty: all
    headers: tuple[tuple[str, str], ...] = ()  # all of them, by name in lower case
    query: tuple[tuple[str, str], ...] = ()  # all of them
    filters: RouteFilters | None = None
    backend: IngressBackend | None = None  # None: `backends`, or a redirect
    backends: Annotated[tuple[WeightedBackend, ...], Key(omit_empty=True)] = ()
    spill: bool = False  # the share of one of `backends` that has no endpoint goes to the others

    @property
    def shares(self) -> tuple[tuple[IngressBackend, int], ...]:
        """The backends with their weights; empty for a redirect."""
        if self.backend is not None:
            return ((self.backend, 1),)
        return tuple((each.backend, each.weight) for each in self.backends)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressRule:
    host: str = ""  # lower case; "": every host; "*.example.com": `wildcard_labels` in place of the star
    paths: tuple[IngressPath, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressTLS:
    hosts: tuple[str, ...]  # lower case; empty: those that the certificate covers
    certificate: str  # the name of a certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    name: str
    #: Names; already resolved where the file leaves them out.
    listeners: Annotated[tuple[str, ...], Key(omit_empty=True)]
    tls: tuple[IngressTLS, ...] = ()
    #: On listeners without TLS: 308 to https, for hosts of `tls`.
    redirect_to_tls: Annotated[bool, Key("redirectToTLS")] = True
    redirect_port: int = 443  # the port in that redirect
    wildcard_labels: WildcardLabels = WildcardLabels.ONE
    default_backend: IngressBackend | None = None
    rules: tuple[IngressRule, ...] = ()

    @property
    def backends(self) -> tuple[IngressBackend, ...]:
        """All backends, each once, in the order of the file; the default one last."""
        default = () if self.default_backend is None else (self.default_backend,)
        shares = (share for rule in self.rules for path in rule.paths for share in path.shares)
        return tuple(dict.fromkeys((*(backend for backend, _ in shares), *default)))
