"""The frozen configuration: what a checked file means, with every default filled in and every file name absolute.

The loader (`config.load`) is the only maker of these objects; tests may make them by hand. They hold no live part:
`daemon.runtime` turns a `Config` into one. Equality is by value, so that a reload can tell what did not change; files
that a part reads (certificates, tokens) are compared by what they contain, which is why their bytes stand here.

Units: durations are seconds (float), sizes are bytes (int), 0 is "no limit" wherever a limit stands.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

IPNetwork = IPv4Network | IPv6Network


class Serves(enum.StrEnum):
    """What a listener is for."""

    API = "API"


class Identity(enum.StrEnum):
    """How a cluster is told who calls (reference: identity)."""

    IMPERSONATE = "Impersonate"
    REQUEST_HEADER = "RequestHeader"
    PASSTHROUGH = "Passthrough"
    PROXY = "Proxy"


class Strategy(enum.StrEnum):
    """How an endpoint is chosen among the ready ones (reference: dispatch)."""

    ROUND_ROBIN = "RoundRobin"
    LEAST_REQUESTS = "LeastRequests"
    CONSISTENT_HASH = "ConsistentHash"


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


class Protocol(enum.StrEnum):
    """Which HTTP version is spoken to a cluster."""

    AUTO = "Auto"
    HTTP1 = "HTTP1"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a configuration file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Secret:
    """A string that never shows itself: not in repr, str, a dump or a traceback's locals."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself; call it only where it goes onto the wire."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


@dataclass(frozen=True, slots=True)
class PEMFile:
    """A PEM file as it was when the configuration was loaded.

    `path` is absolute, or the place of embedded data (``east.kubeconfig#users[0]``); `data` may be a key, so repr
    leaves it out.
    """

    path: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    control_socket: str | None = None
    shutdown_delay: float = 0.0
    drain_timeout: float = 30.0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class TCPBind:
    """`host` is an address or name as written ("0.0.0.0", "::", "127.0.0.1"); port 0 asks the system for one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixBind:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class SystemdBind:
    """A socket handed over by systemd, found by its FileDescriptorName.

    Its address is known only at run time: whoever takes it over must refuse a listener without TLS on anything but
    loopback and unix sockets, as the loader does for the other kinds.
    """

    name: str

    def __str__(self) -> str:
        return f"systemd:{self.name}"


Bind = TCPBind | UnixBind | SystemdBind


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTLS:
    certificates: tuple[str, ...]  # names; the first is the default
    min_version: str = "1.2"  # "1.2" | "1.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connections: int = 20000
    head_bytes: int = 64 * 1024
    target_bytes: int = 32 * 1024
    headers: int = 200
    body_bytes: int = 0
    handshake_timeout: float = 10.0
    head_timeout: float = 10.0
    idle_timeout: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    name: str
    bind: Bind
    serves: Serves = Serves.API
    proxy_protocol_from: tuple[IPNetwork, ...] | None = None  # None: PROXY protocol is off
    trusted_proxies: tuple[IPNetwork, ...] = ()
    tls: ListenerTLS | None = None
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    name: str
    chain: PEMFile  # leaf first
    key: PEMFile
    server_names: tuple[str, ...]  # lower case; exact names, one-label wildcards or IP addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One kube-apiserver. `url` is normalised: scheme, host, port and path apart, no trailing slash on the path."""

    name: str  # as given, else the URL
    scheme: str  # "https" | "http"
    host: str
    port: int
    path: str = ""  # "" or "/prefix"
    disabled: bool = False  # takes no new requests
    weight: int = 1  # turns in a round of RoundRobin; at least 1

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTLS:
    ca: PEMFile | None = None  # None: the system's authorities
    server_name: str | None = None  # verified instead of the endpoint's host, and sent as SNI
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """client.authentication.k8s.io exec credential plugin."""

    command: str  # absolute, or found on PATH
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_version: str = "client.authentication.k8s.io/v1"
    provide_cluster_info: bool = False
    install_hint: str = ""
    working_dir: str | None = None  # a relative command is relative to it; the loader makes commands absolute instead
    cluster_config: str | None = field(default=None, repr=False)  # JSON for spec.cluster.config of KUBERNETES_EXEC_INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The proxy's own credential for a cluster.

    At most one of token, token_file, basic and exec; certificate and key come in a pair.
    """

    token: Secret | None = None
    token_file: str | None = None  # read again when it changes
    basic: tuple[str, Secret] | None = None  # user name, password (kubeconfig only)
    certificate: PEMFile | None = None
    key: PEMFile | None = None
    exec: ExecPlugin | None = None


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The client certificate with which X-Remote-* headers are believed (identity RequestHeader)."""

    certificate: PEMFile
    key: PEMFile


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    path: str = "/readyz"
    interval: float = 5.0
    timeout: float = 3.0
    unhealthy_after: int = 3
    healthy_after: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    protocol: Protocol = Protocol.AUTO
    max_idle: int = 64
    max_connections: int = 0
    idle_timeout: float = 90.0
    connect_timeout: float = 5.0
    response_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class KubeconfigReference:
    """Where endpoints, tls and credentials of a cluster were taken from."""

    file: str  # absolute
    context: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    endpoints: tuple[Endpoint, ...]
    tls: ClusterTLS = ClusterTLS()
    credentials: Credentials = Credentials()
    identity: Identity = Identity.IMPERSONATE
    impersonate_extras: tuple[str, ...] = ()  # keys, lower case
    front_proxy: FrontProxy | None = None  # given where identity is RequestHeader
    flow_controls: tuple[str, ...] = ()  # names; limits on the whole cluster, whoever dispatches to it
    health_check: HealthCheck = HealthCheck()
    connections: Connections = Connections()
    preserve_host: bool = False
    kubeconfig: KubeconfigReference | None = None  # already read into the fields above; kept for `mcproxy dump`


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A line of a token file."""

    token: Secret
    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenFile:
    path: str  # absolute
    tokens: tuple[StaticToken, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReview:
    cluster: str | None = None  # None: the only cluster of the server that uses this set
    audiences: tuple[str, ...] = ()
    cache_success: float = 120.0
    cache_failure: float = 10.0


@dataclass(frozen=True, slots=True)
class JWKSFile:
    path: str  # absolute
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OIDC:
    """One issuer of ID tokens. Keys come from `jwks`, else from `jwks_url`, else from the issuer's discovery."""

    issuer: str  # https URL, compared with the claim byte for byte
    audiences: tuple[str, ...]  # at least one; a token needs one of them
    jwks: JWKSFile | None = None
    jwks_url: str | None = None
    ca: PEMFile | None = None  # for discovery and jwks_url; None: the system's authorities
    username_claim: str = "sub"
    username_prefix: str = ""
    groups_claim: str | None = None
    groups_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """TokenReview by a server that is no cluster: the endpoint is the review's own URL."""

    kubeconfig: KubeconfigReference
    endpoint: Endpoint
    tls: ClusterTLS = ClusterTLS()
    credentials: Credentials = Credentials()
    cache_success: float = 120.0
    cache_failure: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """Who may say who calls, by X-Remote-*."""

    ca: PEMFile
    allowed_names: tuple[str, ...] = ()  # common names; empty: any certificate of the authorities


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymous:
    enabled: bool = False
    paths: tuple[str, ...] = ()  # exact paths; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """A named set of authenticators; a server names one."""

    name: str
    client_ca: PEMFile | None = None
    token_file: TokenFile | None = None
    oidc: tuple[OIDC, ...] = ()
    token_review: TokenReview | None = None
    webhook: Webhook | None = None
    request_header: RequestHeader | None = None
    anonymous: Anonymous = Anonymous()
    allow_system_names: bool = False
    share_service_accounts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """RBAC-like; lists as written, each item checked: "*", plain, "-inverted", and globs where the field has them."""

    verbs: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    service_accounts: tuple[tuple[str, str], ...] = ()  # (namespace, name)
    user_groups: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReview:
    cluster: str | None = None  # None: the one that the request goes to
    cache_allowed: float = 300.0
    cache_denied: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """A named authorizer; with both parts, what no rule allows is reviewed."""

    name: str
    subject_access_review: SubjectAccessReview | None = None
    rules: tuple[Rule, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    size: int
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowControl:
    name: str
    type: FlowControlType
    max: int | None = None  # MaxRequestsInflight: requests that are not long-running; 0 refuses all
    max_long_running: int | None = None  # MaxRequestsInflight; None: no limit
    qps: float = 0.0  # TokenBucket
    burst: int = 0  # TokenBucket
    per: Per = Per.ALL
    queue: Queue | None = None  # None: refused at once


@dataclass(frozen=True, slots=True)
class ClusterBackend:
    cluster: str


@dataclass(frozen=True, slots=True)
class ClustersBackend:
    """No API at the root; each cluster under /clusters/NAME/… (`"*"` is already spelt out)."""

    clusters: tuple[str, ...]


Backend = ClusterBackend | ClustersBackend


@dataclass(frozen=True, slots=True)
class Reject:
    code: int = 403
    message: str = "this request is not served here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One dispatch policy; the first of a server with a matching rule applies."""

    name: str  # as given, else its place in the list: "dispatch[0]"
    rules: tuple[Rule, ...]
    endpoints: tuple[str, ...] = ()  # names; empty: all of the cluster
    strategy: Strategy = Strategy.ROUND_ROBIN
    flow_control: str | None = None
    access_log: bool | None = None
    reject: Reject | None = None
    backend: ClusterBackend | None = None  # another cluster than the server's


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    listeners: tuple[str, ...]  # names; already spelt out where the file leaves them out
    server_names: tuple[str, ...] = ()  # lower case; exact or one-label wildcard
    default: bool = False
    backend: Backend
    authentication: str | None = None  # the name of a set; None: nobody is authenticated
    authorization: str | None = None  # None: the clusters themselves decide
    dispatch: tuple[Policy, ...] | None = None  # None: everything passes
    access_log: bool = True

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters that requests can ask for."""
        return (self.backend.cluster,) if isinstance(self.backend, ClusterBackend) else self.backend.clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLog:
    file: str = "-"  # absolute path, or "-" for stdout
    format: str = "json"  # "json" | "combined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    level: str = "info"  # debug | info | warn | error
    access: AccessLog | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One loaded configuration. Sections keep the order of the file."""

    daemon: Daemon = Daemon()
    listeners: tuple[Listener, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    authentication: tuple[Authentication, ...] = ()
    authorization: tuple[Authorization, ...] = ()
    flow_controls: tuple[FlowControl, ...] = ()
    servers: tuple[Server, ...] = ()
    logging: Logging = Logging()
    files: tuple[str, ...] = ()  # every YAML file read, main file first
