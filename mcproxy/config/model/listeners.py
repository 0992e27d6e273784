"""The sections `listeners` and `certificates`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.keys import NOT_A_KEY, Bytes, FileMode, IPNetwork, Key, PEMFile, Seconds


class Serves(enum.StrEnum):
    """The use of a listener."""

    API = "API"
    ADMIN = "Admin"
    INGRESS = "Ingress"


ADMIN_PATHS = ("/", "/status", "/config", "/debug/requests", "/bootstrap", "/metrics", "/healthz", "/livez", "/readyz")
"""The paths that an Admin listener serves."""
HARMLESS_PATHS = frozenset({"/metrics", "/healthz", "/livez", "/readyz"})
"""Paths of these that need no authentication: they show no users, no request paths, and only names from the file."""


class HTTPProtocol(enum.StrEnum):
    """A version of HTTP that a listener serves."""

    HTTP2 = "HTTP2"
    HTTP1 = "HTTP1"


@dataclass(frozen=True, slots=True)
class TCPBind:
    """`host` is an address or name as written ("0.0.0.0", "::", "127.0.0.1"); port 0 asks the system for one."""

    host: Annotated[str, NOT_A_KEY]
    port: Annotated[int, NOT_A_KEY]
    free_bind: bool = False  # bind even if this machine does not have the address (IP_FREEBIND)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixBind:
    path: Annotated[str, NOT_A_KEY]
    mode: FileMode = 0o600
    group: str | None = None  # its name; None: the daemon's

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class SystemdBind:
    """A socket handed over by systemd, found by its FileDescriptorName.

    Its address is known only at run time: `daemon.service` refuses a listener without TLS on anything but loopback and
    unix sockets, as the loader does for the other kinds.
    """

    name: Annotated[str, NOT_A_KEY]

    def __str__(self) -> str:
        return f"systemd:{self.name}"


Bind = TCPBind | UnixBind | SystemdBind


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTLS:
    certificates: tuple[str, ...]  # names; the first is the default
    min_version: str = "1.2"  # "1.2" | "1.3"
    #: Resolved, of an Ingress listener: names of certificates for server names (exact, or a wildcard of one label) as
    #: the `tls` of its ingresses has them. They come before the names that `certificates` are for.
    hosts: Annotated[tuple[tuple[str, str], ...], NOT_A_KEY] = ()

    @property
    def all_certificates(self) -> tuple[str, ...]:
        """The names of all certificates that may be chosen, the default first."""
        return tuple(dict.fromkeys((*self.certificates, *(certificate for _, certificate in self.hosts))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connections: int = 20000
    connections_per_client: int = 0
    streams: int = 250  # of one HTTP/2 connection at the same time; at least 1
    head_bytes: Bytes = 64 * 1024
    target_bytes: Bytes = 32 * 1024
    headers: int = 200
    body_bytes: Bytes = 0
    handshake_timeout: Seconds = 10.0
    head_timeout: Seconds = 10.0
    idle_timeout: Seconds = 300.0
    stall_timeout: Seconds = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    name: str
    serves: Serves = Serves.API
    bind: Bind
    #: None: PROXY protocol is off.
    proxy_protocol_from: Annotated[tuple[IPNetwork, ...] | None, Key("proxyProtocol.from")] = None
    trusted_proxies: tuple[IPNetwork, ...] = ()
    tls: ListenerTLS | None = None
    #: Best first. Without TLS HTTP/1.1 alone, but for Ingress: HTTP/2 there begins with its preface (prior knowledge).
    protocols: tuple[HTTPProtocol, ...] = (HTTPProtocol.HTTP1,)
    goaway_chance: float = 0.0  # of each HTTP/2 request: that its connection takes no more after it
    limits: Limits = Limits()
    paths: tuple[str, ...] = ADMIN_PATHS  # of an Admin listener, like the next two
    authentication: str | None = None  # the name of a set; None: everybody who can connect
    authorization: str | None = None  # the name of an authorizer; None: every user whom the authentication accepts


# -- The section `certificates` ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    name: str
    chain: Annotated[PEMFile, Key("certFile")]  # leaf first
    key: Annotated[PEMFile, Key("keyFile")]
    server_names: tuple[str, ...]  # lower case; exact names, one-label wildcards or IP addresses
