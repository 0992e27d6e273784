"""The section `clusters`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mcproxy.config.model.common import PEMFile, Secret


class Identity(enum.StrEnum):
    """How users are conveyed to a cluster (reference: identity)."""

    IMPERSONATE = "Impersonate"
    REQUEST_HEADER = "RequestHeader"
    PASSTHROUGH = "Passthrough"
    PROXY = "Proxy"


class UpstreamProtocol(enum.StrEnum):
    """Which HTTP version is spoken to a cluster."""

    AUTO = "Auto"  # HTTP/2 where ALPN says that the endpoint speaks it
    HTTP1 = "HTTP1"
    HTTP2 = "HTTP2"


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
    """The client certificate with which X-Remote-* headers are trusted (identity RequestHeader)."""

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
    protocol: UpstreamProtocol = UpstreamProtocol.AUTO
    max_idle: int = 1024
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
    impersonate_extras: tuple[str, ...] = ()  # keys, lower case; ("*",): all
    front_proxy: FrontProxy | None = None  # given where identity is RequestHeader
    flow_controls: tuple[str, ...] = ()  # names; limits on the whole cluster, whatever their server and policy
    health_check: HealthCheck = HealthCheck()
    connections: Connections = Connections()
    preserve_host: bool = False
    kubeconfig: KubeconfigReference | None = None  # already read into the fields above; kept for `mcproxy dump`
