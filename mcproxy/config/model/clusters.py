"""The section `clusters`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated

from mcproxy.config.model.keys import NOT_A_KEY, Key, PEMFile, Seconds, Secret


class UpstreamIdentity(enum.StrEnum):
    """How users are conveyed to a cluster (reference: identity)."""

    IMPERSONATE = "Impersonate"
    REQUEST_HEADER = "RequestHeader"
    PASSTHROUGH = "Passthrough"
    PROXY = "Proxy"


class UpstreamProtocol(enum.StrEnum):
    """The HTTP version of connections to a cluster."""

    AUTO = "Auto"  # HTTP/2 where the endpoint offers it by ALPN
    HTTP1 = "HTTP1"
    HTTP2 = "HTTP2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One kube-apiserver. `url` is normalised: scheme, host, port and path apart, no trailing slash on the path."""

    name: str  # as given, else the URL
    scheme: Annotated[str, NOT_A_KEY]  # "https" | "http"
    host: Annotated[str, NOT_A_KEY]
    port: Annotated[int, NOT_A_KEY]
    path: Annotated[str, NOT_A_KEY] = ""  # "" or "/prefix"
    disabled: bool = False  # takes no new requests
    weight: int = 1  # turns in a round of RoundRobin; at least 1

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTLS:
    ca: Annotated[PEMFile | None, Key("caFile")] = None  # None: the system's authorities
    server_name: str | None = None  # verified instead of the endpoint's host, and sent as SNI
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """client.authentication.k8s.io exec credential plugin."""

    command: str  # absolute, or found on PATH
    args: Annotated[tuple[str, ...], Key(secret=True)] = ()
    env: Annotated[tuple[tuple[str, str], ...], Key(secret=True)] = field(default=(), repr=False)
    api_version: str = "client.authentication.k8s.io/v1"
    provide_cluster_info: bool = False
    install_hint: str = ""
    #: A relative command is relative to it; the loader makes commands absolute instead.
    working_dir: Annotated[str | None, NOT_A_KEY] = None
    #: JSON for spec.cluster.config of KUBERNETES_EXEC_INFO.
    cluster_config: Annotated[str | None, NOT_A_KEY] = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The proxy's own credential for a cluster.

    At most one of token, token_file, basic and exec; certificate and key come in a pair.
    """

    token: Secret | None = None
    token_file: str | None = None  # read again when it changes
    basic: tuple[str, Secret] | None = None  # user name, password (kubeconfig only)
    certificate: Annotated[PEMFile | None, Key("certFile")] = None
    key: Annotated[PEMFile | None, Key("keyFile")] = None
    exec: ExecPlugin | None = None


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The client certificate with which X-Remote-* headers are trusted (identity RequestHeader)."""

    certificate: Annotated[PEMFile, Key("certFile")]
    key: Annotated[PEMFile, Key("keyFile")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    path: str = "/readyz"
    interval: Seconds = 5.0
    timeout: Seconds = 3.0
    unhealthy_after: int = 3
    healthy_after: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    protocol: UpstreamProtocol = UpstreamProtocol.AUTO
    max_idle: int = 1024
    max_connections: int = 0
    idle_timeout: Seconds = 90.0
    connect_timeout: Seconds = 5.0
    response_timeout: Seconds = 60.0


@dataclass(frozen=True, slots=True)
class KubeconfigReference:
    """Where endpoints, tls and credentials of a cluster were taken from."""

    file: str  # absolute
    context: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    kubeconfig: KubeconfigReference | None = None  # already read into the next three; kept for `mcproxy dump`
    endpoints: tuple[Endpoint, ...]
    tls: ClusterTLS = ClusterTLS()
    credentials: Credentials = Credentials()
    identity: UpstreamIdentity = UpstreamIdentity.IMPERSONATE
    impersonate_extras: tuple[str, ...] = ()  # keys, lower case; ("*",): all
    front_proxy: FrontProxy | None = None  # given where identity is RequestHeader
    health_check: HealthCheck = HealthCheck()
    connections: Connections = Connections()
    preserve_host: bool = False
    flow_controls: tuple[str, ...] = ()  # names; limits on the whole cluster, whatever their server and policy
