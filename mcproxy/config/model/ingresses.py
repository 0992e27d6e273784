"""The section `ingresses`: HTTP from outside to services in several clusters."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.dispatch import Strategy
from mcproxy.config.model.keys import (
    Bytes,
    ClusterName,
    IPNetwork,
    Key,
    Name,
    PEMFile,
    SchemaDefinition,
    Seconds,
    ServerName,
    one_of,
    within,
)

HeaderValue = Annotated[str, SchemaDefinition("headerValue")]


class PathType(enum.StrEnum):
    EXACT = "Exact"
    PREFIX = "Prefix"  # by path elements: /foo matches /foo and /foo/bar, not /foobar
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
    HTTP2 = "HTTP2"  # without TLS: by prior knowledge
    HTTPS = "HTTPS"  # always with TLS, even without `tls`; ALPN selects the version
    GRPC = "GRPC"  # as HTTP2


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityCookie:
    name: Annotated[str | None, SchemaDefinition("token")] = None
    """Its name. Left out: one of the backend's own."""
    max_age: Seconds = 0.0
    """How long clients keep it, in whole seconds; 0 is until the browser closes."""
    same_site: SameSite = SameSite.LAX
    """With which requests from other sites browsers send it. None needs TLS; without TLS, Lax is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashBy:
    """What identifies a client, for Strategy.CONSISTENT_HASH; its address where a request has no value."""

    header: Annotated[str | None, SchemaDefinition("token")] = None
    """The value of a header field of this name."""
    cookie: Annotated[str | None, SchemaDefinition("token")] = None
    """The value of a cookie of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTLS:
    """TLS to pods."""

    ca: Annotated[PEMFile | None, Key("caFile")] = None
    """PEM file with the authorities of the pods' certificates. Left out: those of the system."""
    server_name: ServerName | None = None
    """The name that their certificates must have. Left out: SERVICE.NAMESPACE.svc."""
    insecure_skip_verify: bool = False
    """Do not verify the certificates: anyone who can answer at an address of a pod can read and change everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendHealthCheck:
    path: str = "/"
    """The path; 2xx and 3xx are good."""
    interval: Seconds = 10.0
    """The time between two checks of one endpoint."""
    timeout: Seconds = 3.0
    """How long an answer may take."""
    unhealthy_after: Annotated[int, within(1, 1000)] = 3
    """Failed checks in a row until the endpoint gets no requests."""
    healthy_after: Annotated[int, within(1, 1000)] = 1
    """Good checks in a row until it gets requests again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressBackend:
    """A Service of one name in several clusters, and how its pods are reached."""

    namespace: Annotated[str, SchemaDefinition("namespace")]
    """The namespace of the Service, in all clusters."""
    service: Annotated[str, SchemaDefinition("serviceName")]
    """The name of the Service, in all clusters."""
    port: Annotated[int | str, SchemaDefinition("servicePort")]
    """The port of the Service: its number or its name."""
    clusters: tuple[ClusterName, ...]
    """The clusters whose endpoints take requests."""
    weights: tuple[tuple[str, Annotated[int, within(0, 10**6)]], ...] = ()  # as written; see `weight`
    """The shares of clusters, compared with each other. A cluster without one has 1; one with 0 gets no requests."""
    via: Via = Via.ENDPOINTS
    """Endpoints: requests go to the addresses of pods, which must be routable from here. PortForward: to pods through
    the clusters' API servers (pods/NAME/portforward), with the proxy's own credentials: HTTP/1.1, HTTP/2 and gRPC as
    they are, slower. APIServer: through the clusters' API servers (services/NAME:PORT/proxy), with the proxy's own
    credentials."""
    affinity: Affinity = Affinity.NONE
    """Cookie: by a cookie, the requests of a client go to one endpoint as long as it is available."""
    cookie: AffinityCookie | None = None
    """The cookie of affinity: Cookie. It is HttpOnly, and Secure over TLS; its value names the endpoint by a keyed
    hash."""
    strategy: Strategy = Strategy.ROUND_ROBIN
    """How one of a cluster's endpoints is chosen. ConsistentHash: each client has one endpoint, of all clusters by
    their weights, as long as it is available; when endpoints come and go, few clients move."""
    hash_by: HashBy | None = None
    """What identifies a client, with strategy: ConsistentHash. Left out, and for requests without it: the client's
    address."""
    slow_start: Seconds = 0.0
    """How long a new or recovered endpoint gets less than its share of requests, a tenth of it at the beginning. 0: it
    gets its full share at once. Not with ConsistentHash."""
    ip_family: IPFamily | None = None
    """The address family that is used of a dual-stack Service. Left out: its primary one."""
    protocol: BackendProtocol = BackendProtocol.AUTO
    """The version of HTTP that pods speak. Auto: as the appProtocol of the Service's port says (kubernetes.io/h2c,
    kubernetes.io/ws, https, grpc), else HTTP/1.1; with tls what both sides speak (ALPN). HTTP2 without tls: with prior
    knowledge (h2c). GRPC: as HTTP2. HTTPS: with TLS, without tls by the authorities of the system; the version by
    ALPN."""
    tls: BackendTLS | None = None
    """TLS to pods. Left out: none, unless the appProtocol of the port is https. With via: APIServer only
    insecureSkipVerify: true, since API servers do not verify pods."""
    health_check: BackendHealthCheck | None = None
    """Checks by GET requests to each endpoint, which gets no other requests while they fail. Left out: none; endpoints
    that fail requests are avoided for a while anyway."""
    retries: Annotated[int, within(0, 2)] = 1
    """How many further endpoints get an idempotent request when one fails before it has answered; 0: none. A request
    tries three endpoints at most, including those to which no connection could be made."""
    retry_on: tuple[Annotated[int, one_of(429, 500, 502, 503, 504)], ...] = ()
    """Statuses that count as failures of an endpoint: an idempotent request is sent to another one (retries), if its
    body is still buffered (64 KiB)."""
    connect_timeout: Seconds = 5.0
    """How long connecting to an endpoint may take."""
    response_timeout: Seconds = 60.0
    """How long an endpoint may take to send the head of its response, and how long it may read nothing of a request's
    body; 0 is no limit. Streams may last longer."""
    read_timeout: Seconds = 60.0
    """How long an endpoint may pause within a response, or the client within its request, before it is aborted; 0 is no
    limit. Calls of gRPC and tunnels may be silent. Rare events need 0, or a pod that sends something now and then."""
    allowed_cidrs: Annotated[tuple[IPNetwork, ...], Key("allowedCIDRs")] = ()
    """The networks in which endpoints may be, whatever a cluster says: its pod networks. Others get no requests. Empty:
    all addresses but loopback, link-local and unspecified ones."""

    def weight(self, cluster: str) -> int:
        """Return the share of requests of one of `clusters`, compared with the other clusters' weights."""
        return dict(self.weights).get(cluster, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderEdits:
    """Changes of header fields; each name occurs once, ignoring case."""

    set_: Annotated[tuple[tuple[str, HeaderValue], ...], Key("set")] = ()
    """Fields that replace those with the same name."""
    add: tuple[tuple[str, HeaderValue], ...] = ()
    """Fields that are added to those with the same name."""
    remove: tuple[str, ...] = ()
    """Names of fields that are removed."""

    def __bool__(self) -> bool:
        return bool(self.set_ or self.add or self.remove)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """A part that is None stays as in the client's request."""

    scheme: Annotated[str | None, one_of("http", "https")] = None
    """The scheme."""
    host: ServerName | None = None
    """The name of the host."""
    port: Annotated[int | None, within(1, 65535)] = None
    """The port; the scheme's default is not written. Left out: the client's, or with scheme that scheme's default."""
    path: Annotated[str | None, SchemaDefinition("rewrittenPath")] = None
    """The path, as rewritePath."""
    prefix: Annotated[str | None, SchemaDefinition("rewrittenPath")] = None
    """What replaces the path of a Prefix, as rewritePrefix."""
    code: Annotated[int, one_of(301, 302, 303, 307, 308)] = 302
    """The status."""


MAX_BODY = 1024 * 1024
"""Default limit of a request's body (bytes), as nginx's client_max_body_size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFilters:
    """A rule's changes of requests and responses."""

    request_headers: HeaderEdits = HeaderEdits()
    """Changes of the header fields that pods get."""
    response_headers: HeaderEdits = HeaderEdits()
    """Changes of the header fields that clients get."""
    rewrite_host: ServerName | None = None
    """The Host that pods get. Left out: the client's. X-Forwarded-Host has the client's in any case."""
    rewrite_path: Annotated[str | None, SchemaDefinition("rewrittenPath")] = None
    r"""The path that pods get in place of the client's; the query stays. With pathType: Regex \1 to \9 stand for what
    the groups of the pattern captured."""
    rewrite_prefix: Annotated[str | None, SchemaDefinition("rewrittenPath")] = None
    """What replaces the path of a Prefix: with path: /web and rewritePrefix: / pods get /x for /web/x."""
    redirect: Redirect | None = None
    """Answer with a redirect, in place of a backend. Parts that are left out stay as in the client's request, as does
    the query."""
    timeout: Seconds = 0.0
    """How long all attempts together may take until the response begins; beyond it 504. 0 is no limit other than the
    backend's responseTimeout for each. Streams may last longer."""
    body_bytes: Bytes | None = None  # None: MAX_BODY, except for gRPC calls
    """Maximum size of a request's body; beyond it, 413. 0 is no limit. Left out: 1Mi, but for calls of gRPC, which are
    streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedBackend:
    weight: Annotated[int, within(0, 10**6)] = 1
    """The share, compared with the others; 0: no requests."""
    backend: IngressBackend
    """The service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressPath:
    """A path that requests match, further conditions, and where they go."""

    path: str
    """The path, without query; with pathType: Regex a pattern for it."""
    path_type: PathType
    """Exact: this path alone. Prefix: this path and all below it, element by element: /foo matches /foo/bar and not
    /foobar. Regex: the whole path matches the pattern, in the syntax of RE2; a dollar sign is written $$. An Exact path
    comes before the longest Prefix, and that before a Regex."""
    methods: tuple[str, ...] = ()
    """Methods, one of which a request must have. Left out: all. Of rules with the same path that match, one with
    methods comes first, then one with more headers, then with more of query, then the first in the file."""
    headers: tuple[tuple[str, HeaderValue], ...] = ()  # by name in lower case
    """Header fields that a request must have, all of them, with exactly these values; the case of names does not
    count."""
    query: tuple[tuple[str, str], ...] = ()
    """Parameters that the query of a request must have, all of them, with exactly these values, decoded; of several
    with one name the first counts."""
    filters: RouteFilters | None = None
    """Changes of requests and responses."""
    backend: IngressBackend | None = None
    """The service. Exactly one of backend, backends and filters.redirect is required."""
    backends: Annotated[tuple[WeightedBackend, ...], Key(omit_empty=True)] = ()
    """Several services, each with its share of the requests. The share of a service that no cluster has gets 500, that
    of one without an endpoint 503."""
    spill: bool = False
    """Give the share of a backend without an endpoint to the others."""

    @property
    def shares(self) -> tuple[tuple[IngressBackend, int], ...]:
        """The backends with their weights; empty for a redirect."""
        if self.backend is not None:
            return ((self.backend, 1),)
        return tuple((each.backend, each.weight) for each in self.backends)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressRule:
    host: str = ""  # lower case
    """A DNS name, or *. and a DNS name, in which the star is one label, or several with wildcardLabels: Any. Left out:
    every host."""
    paths: tuple[IngressPath, ...]
    """The paths of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressTLS:
    hosts: tuple[ServerName, ...] = ()  # lower case
    """Server names that get the certificate: exact ones, or wildcards of one label. Left out: those of the
    certificate."""
    certificate: Name
    """The name of a certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    name: Name
    """The name of the ingress, in status, metrics and messages."""
    #: Filled in by the loader if the file omits them.
    listeners: Annotated[tuple[Name, ...], Key(omit_empty=True, required=False)]
    """Names of the listeners that serve it. Left out: all that serve Ingress."""
    tls: tuple[IngressTLS, ...] = ()
    """Certificates by host, on those of its listeners that have tls."""
    redirect_to_tls: Annotated[bool, Key("redirectToTLS")] = True
    """Redirect (308) what comes for a host of tls over a listener without TLS to https, if another of its listeners has
    TLS. Requests that a proxy in trustedProxies got over https (X-Forwarded-Proto) are served."""
    redirect_port: Annotated[int, within(1, 65535)] = 443
    """The port that redirects to https name, as clients see it."""
    wildcard_labels: WildcardLabels = WildcardLabels.ONE
    """What the star in hosts of its rules stands for. One: one label, as in Kubernetes' Ingress. Any: one or more, as
    in the Gateway API. Certificates stay those of one label."""
    default_backend: IngressBackend | None = None
    """The backend of requests for the hosts of its rules that no path matches. That of the first ingress that has one
    also gets requests for hosts that no rule has. Left out: 404."""
    rules: tuple[IngressRule, ...] = ()
    """Which host and path goes to which service. An exact host comes before a wildcard, and that before no host; of the
    paths an Exact one, then the longest Prefix, then a Regex."""

    @property
    def backends(self) -> tuple[IngressBackend, ...]:
        """All backends, each once, in the order of the file; the default backend is last."""
        default = () if self.default_backend is None else (self.default_backend,)
        shares = (share for rule in self.rules for path in rule.paths for share in path.shares)
        return tuple(dict.fromkeys((*(backend for backend, _ in shares), *default)))
