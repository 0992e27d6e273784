"""The section `tunnels`: clusters that dial out; and `dial` of a listener, the other end of a tunnel.

A cluster behind NAT or a firewall cannot be dialled, so the mcproxy beside it (the edge) dials the one in front (the
hub). Then the roles turn: the hub sends requests over the edge's connection. For the hub a tunnel is an endpoint; for
the edge it is a listener.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.clusters import HTTPProxy
from mcproxy.config.model.keys import FileName, Key, Name, PEMFile, Seconds, ServerName, within


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """One tunnel that this hub accepts."""

    name: Name
    """The name that endpoints and the edge refer to the tunnel by."""
    users: tuple[str, ...]
    """The users who may open it, as the authentication of the server names them."""
    max_connections: Annotated[int, within(1, 10000)] = 32
    """Connections of the tunnel open at the same time, in addition to its control connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialTLS:
    """How an edge verifies its hubs, and the certificate that it shows them."""

    ca: Annotated[PEMFile, Key("caFile")]
    """PEM file with the authorities of the hubs' certificates."""
    certificate: Annotated[PEMFile | None, Key("certFile")] = None
    """PEM file with the client certificate whose user may open the tunnel."""
    key: Annotated[PEMFile | None, Key("keyFile")] = None
    """PEM file with the client certificate's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialCredentials:
    """A bearer token whose user may open the tunnel."""

    token_file: FileName
    """File with the bearer token; read again when it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """How a listener gets its connections: by dialling hubs."""

    tunnel: Name
    """The name of the tunnel, as in the section tunnels of the hub."""
    urls: tuple[str, ...]
    """The hubs, as https://HOST:PORT: all replicas, each by an address of its own. A tunnel to every one is kept open
    always."""
    server_name: ServerName | None = None
    """The name that the hubs' certificates must have, also sent as SNI. Left out: each URL's host."""
    tls: DialTLS
    """How the hubs' certificates are verified, and the client certificate for them."""
    credentials: DialCredentials | None = None
    """A bearer token for the hubs, instead of a client certificate."""
    proxy: HTTPProxy | None = None
    """The HTTP proxy on the way to the hubs (CONNECT). Left out: none; environment variables are ignored."""
    keep_alive: Seconds = 15.0
    """After this time without a byte from the hub, it is asked for one (PING). 10 s later the connection is closed."""
    max_connections: Annotated[int, within(1, 10000)] = 32
    """Connections to each hub open at the same time, in addition to the control connection, whatever the hub asks
    for."""
