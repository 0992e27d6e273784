"""The sections `listeners` (addresses, TLS, protocols, limits) and `certificates`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.keys import (
    NOT_A_KEY,
    Bytes,
    Count,
    FileMode,
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
from mcproxy.config.model.tunnels import Dial


class Serves(enum.StrEnum):
    """The use of a listener."""

    API = "API"
    ADMIN = "Admin"
    INGRESS = "Ingress"


ADMIN_PATHS = ("/", "/status", "/config", "/debug/requests", "/bootstrap", "/metrics", "/healthz", "/livez", "/readyz")
"""The paths that an Admin listener serves."""
HARMLESS_PATHS = frozenset({"/metrics", "/healthz", "/livez", "/readyz"})
"""Paths that need no authentication, since they show no users or request paths, and only names from the file."""


class HTTPProtocol(enum.StrEnum):
    """A version of HTTP that a listener serves."""

    HTTP2 = "HTTP2"
    HTTP1 = "HTTP1"


@dataclass(frozen=True, slots=True)
class TCPBind:
    """`host` is an address or name as written ("0.0.0.0", "::", "127.0.0.1"); port 0 asks the system for one."""

    host: Annotated[str, NOT_A_KEY]
    port: Annotated[int, NOT_A_KEY]
    free_bind: bool = False
    """Bind an address that this machine does not have (yet), such as one that a failover brings."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixBind:
    path: Annotated[str, NOT_A_KEY]
    mode: FileMode = 0o600
    """The permissions of a unix socket, in octal and in quotes. To connect, a user needs the permission to write."""
    group: str | None = None
    """The name of the group of a unix socket. Left out: the daemon's group."""

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class SystemdBind:
    """A socket handed over by systemd, found by its FileDescriptorName.

    Its address is known only at run time. There `daemon.service` refuses a listener without TLS except on loopback and
    unix sockets, as the loader does for other binds.
    """

    name: Annotated[str, NOT_A_KEY]

    def __str__(self) -> str:
        return f"systemd:{self.name}"


Bind = TCPBind | UnixBind | SystemdBind


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTLS:
    certificates: Annotated[tuple[Name, ...], Key(required=False)]
    """Names of certificates, chosen by the client's server name; the first is the default. An Ingress listener also has
    those in the tls of its ingresses, which take precedence for their hosts; if it leaves this out, the first of those
    is the default."""
    min_version: Annotated[str, one_of("1.2", "1.3")] = "1.2"
    """The lowest TLS version that is accepted."""
    #: For an Ingress listener: certificate names by server names (exact, or a wildcard of one label), from the `tls` of
    #: its ingresses. They take precedence over the names of `certificates`.
    hosts: Annotated[tuple[tuple[str, str], ...], NOT_A_KEY] = ()

    @property
    def all_certificates(self) -> tuple[str, ...]:
        """The names of all selectable certificates, the default first."""
        return tuple(dict.fromkeys((*self.certificates, *(certificate for _, certificate in self.hosts))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connections: Count = 20000
    """Connections open at the same time. At the limit, the connection that has been idle longest, of the client with
    the most connections, is closed; if none is idle, the new one is closed. The connections of all workers count
    together; each worker closes its own."""
    connections_per_client: Count = 0
    """Connections of one client open at the same time; 0 is no limit. At the limit, the one that has been idle longest
    is closed. A client is an IPv4 address or the /64 of an IPv6 address, that of the PROXY header where there is one;
    connections to unix sockets are not limited."""
    streams: Annotated[int, within(1, 10**9)] = 250
    """Requests of one HTTP/2 connection that are served at the same time (MAX_CONCURRENT_STREAMS); a client opens
    another connection for more."""
    head_bytes: Bytes = 64 * 1024
    """Maximum size of a request's head; beyond it, 431."""
    target_bytes: Bytes = 32 * 1024
    """Maximum size of a request's path and query; beyond it, 414."""
    headers: Count = 200
    """Maximum number of header fields of a request; beyond it, 431. X-Remote-Group and Impersonate-Group, one for each
    group, are not counted: there may be 5,000."""
    body_bytes: Bytes = 0
    """Maximum size of a request's body; beyond it, 413."""
    handshake_timeout: Seconds = 10.0
    """Time for the TLS handshake."""
    head_timeout: Seconds = 10.0
    """Time for a request's head to arrive completely; beyond it, 408."""
    idle_timeout: Seconds = 300.0
    """How long a connection may stay open between requests."""
    stall_timeout: Seconds = 60.0
    """How long the client of a short request may read no byte of the response, or send none of the body, before its
    connection is aborted; 0 is no limit. Watches, followed logs and tunnels may stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    name: Name
    """The name that servers and ingresses refer to the listener by."""
    serves: Serves = Serves.API
    """What is served here. API: the virtual API servers. Admin: the state of the daemon itself, read-only: status page,
    metrics, health checks. Ingress: the ingresses, HTTP to services in the clusters."""
    bind: Annotated[Bind | None, SchemaDefinition("bind")] = None
    """Where to listen: host:port, [v6]:port, unix:/absolute/path, or systemd:NAME for a socket handed over by
    systemd."""
    dial: Dial | None = None
    """Dial hubs instead of listening: they send their requests over these connections (tunnels)."""
    proxy_protocol_from: Annotated[tuple[IPNetwork, ...] | None, Key("proxyProtocol.from")] = None
    """Networks whose connections must begin with a PROXY header; from all others the header is rejected."""
    trusted_proxies: tuple[IPNetwork, ...] = ()
    """Networks whose X-Forwarded-* headers are trusted."""
    tls: ListenerTLS | None = None
    """TLS. An API listener needs it unless it is on a loopback address or a unix socket; an Ingress listener may be
    plain anywhere."""
    protocols: tuple[HTTPProtocol, ...] = (HTTPProtocol.HTTP1,)
    """The versions of HTTP that are spoken, best first; a client and the listener agree on one by TLS (ALPN). Without
    tls only HTTP1, the default there; an Ingress listener without tls may have HTTP2 too, for clients with prior
    knowledge (h2c), as gRPC has. Upgrades (exec, attach, portforward) are HTTP/1.1: without HTTP1 clients cannot open
    them."""
    goaway_chance: Annotated[float, within(0, 0.02)] = 0.0
    """The share of HTTP/2 requests after which the client is asked to open another connection (GOAWAY), so that lasting
    connections spread over replicas again; as kube-apiserver's --goaway-chance. The request itself, and others on the
    connection, are served. 0: never."""
    limits: Limits = Limits()
    """Limits of this listener. 0 is no limit, but for streams."""
    paths: tuple[Annotated[str, one_of(*ADMIN_PATHS)], ...] = ADMIN_PATHS
    """Of an Admin listener: what it serves; everything else is 404. /: the status page; /status: the same as JSON;
    /config: the effective configuration, secrets masked; /debug/requests: the requests in flight, with users and paths;
    /bootstrap: below it, the roles that API servers of apiServices need. Left out: all."""
    authentication: Name | None = None
    """Of an Admin listener: the name of the set of authenticators whose users may see it. Required beyond loopback and
    unix sockets, unless paths has nothing but /metrics, /healthz, /livez and /readyz. Left out: everybody who can
    connect."""
    authorization: Name | None = None
    """Of an Admin listener: the name of the authorizer that decides which users may see which path (verb get,
    nonResourceURLs). Left out: every user whom the authentication accepts."""

    @property
    def address(self) -> str:
        """The address, which identifies the listener over reloads: that of `bind`, or "dial:" and the tunnel."""
        return f"dial:{self.dial.tunnel}" if self.dial is not None else str(self.bind)


# -- The section `certificates` ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    name: Name
    """The name that listeners refer to the certificate by."""
    chain: Annotated[PEMFile, Key("certFile")]
    """PEM file with the certificate chain, leaf first. A file that is replaced, with its key, is used within two
    seconds (daemon.watchFiles), else from the next reload on."""
    key: Annotated[PEMFile, Key("keyFile")]
    """PEM file with the private key, not encrypted."""
    server_names: Annotated[tuple[ServerName, ...], Key(required=False)]  # lower case
    """The server names that this certificate is for. Left out: the names in the certificate."""
