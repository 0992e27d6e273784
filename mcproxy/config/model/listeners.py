"""The section `listeners`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mcproxy.config.model.common import IPNetwork


class Serves(enum.StrEnum):
    """What a listener is for."""

    API = "API"
    ADMIN = "Admin"


ADMIN_PATHS = ("/", "/status", "/config", "/debug/requests", "/metrics", "/healthz", "/livez", "/readyz")
"""What an Admin listener serves."""
HARMLESS_PATHS = frozenset({"/metrics", "/healthz", "/livez", "/readyz"})
"""Of these what anybody may see: they have no users, no paths of clients, and nothing of the file but names."""


class HTTPProtocol(enum.StrEnum):
    """A version of HTTP that a listener speaks."""

    HTTP2 = "HTTP2"
    HTTP1 = "HTTP1"


@dataclass(frozen=True, slots=True)
class TCPBind:
    """`host` is an address or name as written ("0.0.0.0", "::", "127.0.0.1"); port 0 asks the system for one."""

    host: str
    port: int
    free_bind: bool = False  # bind even if this machine does not have the address (IP_FREEBIND)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixBind:
    path: str
    mode: int = 0o600
    group: str | None = None  # its name; None: the daemon's

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class SystemdBind:
    """A socket handed over by systemd, found by its FileDescriptorName.

    Its address is known only at run time: `daemon.service` refuses a listener without TLS on anything but loopback and
    unix sockets, as the loader does for the other kinds.
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
    connections_per_client: int = 0
    head_bytes: int = 64 * 1024
    target_bytes: int = 32 * 1024
    headers: int = 200
    body_bytes: int = 0
    handshake_timeout: float = 10.0
    head_timeout: float = 10.0
    idle_timeout: float = 300.0
    stall_timeout: float = 60.0
    streams: int = 250  # of one HTTP/2 connection at the same time; at least 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    name: str
    bind: Bind
    serves: Serves = Serves.API
    proxy_protocol_from: tuple[IPNetwork, ...] | None = None  # None: PROXY protocol is off
    trusted_proxies: tuple[IPNetwork, ...] = ()
    tls: ListenerTLS | None = None
    protocols: tuple[HTTPProtocol, ...] = (HTTPProtocol.HTTP1,)  # best first; without TLS HTTP/1.1 alone
    goaway_chance: float = 0.0  # of each HTTP/2 request: that its connection takes no more after it
    limits: Limits = Limits()
    paths: tuple[str, ...] = ADMIN_PATHS  # of an Admin listener, like the next two
    authentication: str | None = None  # the name of a set; None: everybody who can connect
    authorization: str | None = None  # the name of an authorizer; None: every user whom the authentication accepts
