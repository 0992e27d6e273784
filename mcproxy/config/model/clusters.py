"""The section `clusters`: endpoints, TLS, credentials, identity, health checks and connections of each cluster."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated

from mcproxy.config.model.keys import (
    NOT_A_KEY,
    ClusterName,
    Count,
    FileName,
    Key,
    Name,
    PEMFile,
    Seconds,
    Secret,
    ServerName,
    one_of,
    within,
)


class UpstreamIdentity(enum.StrEnum):
    """How users are conveyed to a cluster (reference: identity)."""

    IMPERSONATE = "Impersonate"
    REQUEST_HEADER = "RequestHeader"
    PASSTHROUGH = "Passthrough"
    PROXY = "Proxy"


class UpstreamProtocol(enum.StrEnum):
    """The HTTP version of connections to a cluster."""

    AUTO = "Auto"  # HTTP/2 if the endpoint offers it by ALPN
    HTTP1 = "HTTP1"
    HTTP2 = "HTTP2"


@dataclass(frozen=True, slots=True, kw_only=True)
class HTTPProxy:
    """An HTTP proxy that opens connections to other servers (CONNECT, RFC 9110 9.3.6).

    `url` is normalised, without user and password. `password` is None exactly if `user` is.
    """

    url: str
    """The proxy, as http://HOST:PORT."""
    host: Annotated[str, NOT_A_KEY]
    port: Annotated[int, NOT_A_KEY]
    user: str | None = None
    """The user name for the proxy (Basic authentication). The proxy is reached without TLS, so user and password go to
    it in clear."""
    password: Annotated[Secret | None, NOT_A_KEY] = None
    password_file: FileName | None = None  # absolute; the source of `password`; None if that is from a kubeconfig
    """File with the user's password for the proxy. A changed file is read at the next reload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """One kube-apiserver. `url` is normalised: scheme, host, port and path apart, no trailing slash on the path.

    The endpoint behind a tunnel has the scheme "tunnel", the tunnel's name as its host, and the port 0.
    """

    name: Annotated[str, Key(required=False)]  # as given, else the URL
    """The endpoint's name, in logs and for dispatch policies. Left out: its URL."""
    scheme: Annotated[str, NOT_A_KEY]  # "https" | "http" | "tunnel"
    host: Annotated[str, NOT_A_KEY]
    port: Annotated[int, NOT_A_KEY]
    path: Annotated[str, NOT_A_KEY] = ""  # "" or "/prefix"
    disabled: bool = False
    """Take no new requests; running ones continue."""
    weight: Annotated[int, within(1, 1000)] = 1
    """Its share of the requests, in proportion to the weights of the others."""
    tunnel: Name | None = None
    """The tunnel to the endpoint, instead of a url: its cluster dials out. A path beside it picks one of several
    clusters there, as /clusters/NAME."""

    @property
    def url(self) -> str:
        if self.tunnel is not None:
            return f"tunnel:{self.tunnel}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTLS:
    ca: Annotated[PEMFile | None, Key("caFile")] = None
    """PEM file with the authorities that are trusted. Left out: those of the system."""
    server_name: ServerName | None = None
    """The name that the certificate must have, also sent as SNI. Left out: the URL's host."""
    insecure_skip_verify: bool = False
    """Do not verify certificates at all. Anyone on the network path can then read and change everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """client.authentication.k8s.io exec credential plugin."""

    command: FileName  # absolute, or found on PATH
    """The program. A name with a slash is a file name, relative to this file; others are looked up on PATH."""
    args: Annotated[tuple[str, ...], Key(secret=True)] = ()
    """Its arguments."""
    env: Annotated[tuple[tuple[str, str], ...], Key(secret=True)] = field(default=(), repr=False)
    """Environment variables for it, in addition to the daemon's."""
    api_version: Annotated[str, one_of("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")] = (
        "client.authentication.k8s.io/v1"
    )
    """The version of the protocol that it speaks."""
    provide_cluster_info: bool = False
    """Pass it the cluster in KUBERNETES_EXEC_INFO."""
    install_hint: str = ""
    """A hint for the operator, shown if the program is missing."""
    #: The folder that a relative command is relative to; not needed, since the loader makes commands absolute.
    working_dir: Annotated[str | None, NOT_A_KEY] = None
    #: JSON for spec.cluster.config of KUBERNETES_EXEC_INFO.
    cluster_config: Annotated[str | None, NOT_A_KEY] = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The proxy's own credential for a cluster.

    At most one of token, token_file, basic and exec; certificate and key come in a pair.
    """

    token: Secret | None = None
    """A bearer token; better "${NAME}" from the environment, or a tokenFile."""
    token_file: FileName | None = None
    """File with a bearer token; read again when it changes."""
    basic: tuple[str, Secret] | None = None  # user name, password (kubeconfig only)
    certificate: Annotated[PEMFile | None, Key("certFile")] = None
    """PEM file with the client certificate."""
    key: Annotated[PEMFile | None, Key("keyFile")] = None
    """PEM file with the client certificate's key."""
    exec: ExecPlugin | None = None
    """A program that provides credentials, as in a kubeconfig (client.authentication.k8s.io)."""


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The client certificate with which X-Remote-* headers are trusted (identity RequestHeader)."""

    certificate: Annotated[PEMFile, Key("certFile")]
    """PEM file with the client certificate, signed by the cluster's request header authority."""
    key: Annotated[PEMFile, Key("keyFile")]
    """PEM file with the client certificate's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    path: str = "/readyz"
    """The path of the request; 200 is healthy."""
    interval: Seconds = 5.0
    """Time between checks."""
    timeout: Seconds = 3.0
    """Time for the response."""
    unhealthy_after: Annotated[int, within(1, 1000)] = 3
    """Failed checks in a row that make an endpoint unhealthy."""
    healthy_after: Annotated[int, within(1, 1000)] = 1
    """Good checks in a row that make it healthy again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    protocol: UpstreamProtocol = UpstreamProtocol.AUTO
    """The HTTP version. Auto: HTTP/2 where the endpoint agrees to it by TLS (ALPN), else HTTP/1.1. HTTP2: only that,
    over https. Upgrades (exec, attach, portforward), requests below a proxy subresource, health checks and requests of
    the proxy itself always go over HTTP/1.1."""
    max_idle: Count = 1024
    """Maximum number of idle connections; within it, as many are kept as the load of the last minute needed."""
    max_connections: Count = 0
    """Connections open at the same time, counted separately for HTTP/2 and HTTP/1.1; further requests wait. Divided
    among the processes where daemon.workers is more than 1, at least one for each. 0 is no limit."""
    idle_timeout: Seconds = 90.0
    """How long an idle connection is kept at most; 0 is no limit."""
    connect_timeout: Seconds = 5.0
    """Time to connect, TLS handshake included; 0 is no limit."""
    response_timeout: Seconds = 60.0
    """Time to the first byte of the response to a short request (not watch, logs, exec…), and how long the cluster may
    read nothing of a request's body; 0 is no limit."""


@dataclass(frozen=True, slots=True)
class KubeconfigReference:
    """Where endpoints, tls and credentials of a cluster were taken from."""

    file: FileName  # absolute
    """The kubeconfig; file names in it are relative to it."""
    context: Annotated[str, Key(required=False)]
    """The context. Left out: its current-context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    name: ClusterName
    """The name of the cluster, also in paths: /clusters/NAME/…."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels to select clusters by."""
    #: The loader has read it into endpoints, tls and credentials; it is kept for `mcproxy dump`.
    kubeconfig: KubeconfigReference | None = None
    """Take the address, TLS and credentials from a kubeconfig."""
    endpoints: Annotated[tuple[EndpointConfig, ...], Key(required=False)]
    """The cluster's kube-apiservers. Requests go to the healthy ones in turn."""
    tls: ClusterTLS = ClusterTLS()
    """How the kube-apiservers' certificates are verified, on every connection."""
    credentials: Credentials = Credentials()
    """The proxy's own credential towards the cluster: a token, a tokenFile or exec, and/or a client certificate."""
    identity: UpstreamIdentity = UpstreamIdentity.IMPERSONATE
    """How users are conveyed to the cluster. Impersonate: in Impersonate-* headers, with the proxy's own credentials,
    which need the right to impersonate. RequestHeader: in X-Remote-* headers, trusted because of the client certificate
    in frontProxy, or at the end of a tunnel because of the edge's requestHeader.listeners. Passthrough: by the client's
    own credentials and Impersonate-* headers; a server with authentication reviews the impersonation first, which needs
    credentials here, or an authorizer with only rules. Proxy: every request has the identity of the proxy."""
    impersonate_extras: tuple[str, ...] = ()  # lower case
    """Keys of a user's extra that identity Impersonate sends. Each needs a right of its own in the cluster; other keys
    are not sent, and a client that requests one by Impersonate-Extra-* is refused. ["*"] passes on all keys."""
    front_proxy: FrontProxy | None = None
    """The client certificate for identity RequestHeader. Not needed if all endpoints are behind tunnels. The
    credentials are still used for health checks and other requests of the proxy itself; without any, those requests use
    this certificate as well and name the user system:kube-aggregator of the group system:masters, as kube-aggregator
    does."""
    health_check: HealthCheck = HealthCheck()
    """How endpoints are checked."""
    connections: Connections = Connections()
    """Connections to each endpoint."""
    proxy: HTTPProxy | None = None
    """The HTTP proxy through which all connections to the endpoints are opened (CONNECT), as proxy-url of a kubeconfig.
    It resolves their names, and TLS is with the endpoints. Left out: none; environment variables such as HTTPS_PROXY
    are ignored."""
    preserve_host: bool = False
    """Pass on the client's Host header instead of the endpoint's own."""
    flow_controls: tuple[Name, ...] = ()
    """Names of flow controls for all requests to the cluster, of every server and policy. If the policy names the same
    flow control, a request counts once."""

    @property
    def is_behind_tunnels(self) -> bool:
        """Whether every endpoint is behind a tunnel: the edge names the proxy by its hubUser, credentials or not."""
        return bool(self.endpoints) and all(endpoint.tunnel is not None for endpoint in self.endpoints)
