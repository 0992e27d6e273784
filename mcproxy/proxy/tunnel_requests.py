"""Accepts tunnels: requests of edges for /mcproxy.io/v1/tunnels/NAME, on a server with the backend `tunnels`.

A user who may not open a tunnel gets the same 403 whether the tunnel exists or not. After the 101 the connection
belongs to `tunnels.hub`, and the request has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from mcproxy.http.messages import split_fields
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.proxy.filters import while_connected
from mcproxy.requests.coroutines import settled
from mcproxy.tunnels import protocol
from mcproxy.tunnels.hub import TunnelHub, TunnelRefused
from mcproxy.tunnels.open_connections import Opener
from mcproxy.tunnels.turned import TurnedConnection

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import VirtualServer

_RETRY_AFTER = 5  # seconds, in refusals that another attempt may not get
_PATH = protocol.PATH.encode()
_INSTANCE = protocol.INSTANCE.lower().encode()
_TICKET = protocol.TICKET.lower().encode()


class TunnelServer:
    """The tunnels of one server."""

    __slots__ = ("_hub", "_server_named", "names")

    def __init__(
        self, names: Collection[str], hub: TunnelHub, server_named: Callable[[str], VirtualServer | None]
    ) -> None:
        """`names`: the tunnels that edges may open here. `server_named` returns a server of the configuration in
        force.
        """
        self.names = frozenset(names)
        self._hub = hub
        self._server_named = server_named

    async def serve(self, request: Request, target: bytes) -> None:
        """Answer a request: 101, and the connection becomes one of a tunnel. Raises StatusError."""
        path = target.partition(b"?")[0]
        if not path.startswith(_PATH):
            raise StatusError(404, f"only tunnels are served here, below {protocol.PATH}", details={})
        name = path[len(_PATH) :].decode("latin-1")
        user, client = request.user.name, request.client.log_address
        try:
            await self._open(request, name, user)
        except TunnelRefused as refusal:
            self._hub.refused(name if name in self.names else "", refusal, user, client)
            if refusal.status in (429, 503):
                raise retry_after(refusal.status, refusal.message, _RETRY_AFTER) from None
            raise StatusError(refusal.status, refusal.message, details={}) from None

    async def _open(self, request: Request, name: str, user: str) -> None:
        head = request.exchange.head
        hub = self._hub
        if name not in self.names or not hub.may_open(name, user):
            raise TunnelRefused(403, f'user "{user}" may not open a tunnel of this name', "user")
        if head.upgrade is None or head.upgrade.lower() != protocol.UPGRADE or head.method != b"GET":
            token = protocol.UPGRADE.decode()
            raise TunnelRefused(400, f"a tunnel is opened by GET over HTTP/1.1 with Upgrade: {token}", "malformed")
        if head.length:
            raise TunnelRefused(400, "a request that opens a tunnel has no body", "malformed")
        instance, ticket = _only_value(head.fields, _INSTANCE), _only_value(head.fields, _TICKET)
        if instance is None and ticket is None:  # `check --connect`, which opens no tunnel
            raise StatusError(400, protocol.NO_INSTANCE, details={})
        if instance is None or not protocol.is_instance(instance):
            raise TunnelRefused(400, protocol.NO_INSTANCE, "malformed")
        opener = self._opener(request, name, user)
        if ticket is None:
            await while_connected(request, Deferred.fromCoroutine(hub.claim(name, instance, opener.peer)))
            connection = self._switch(request)
            if connection is not None:
                hub.open_control(connection, opener, instance)
            return
        redeemed = await while_connected(request, Deferred.fromCoroutine(hub.redeem(name, ticket)))
        connection = self._switch(request)
        if connection is not None:
            hub.open_data(redeemed, connection, opener)
        else:
            hub.abandon(redeemed)

    def _switch(self, request: Request) -> TurnedConnection | None:
        """Respond with 101, and return the connection; None if the edge has disconnected meanwhile."""
        exchange = request.exchange
        if exchange.ended:
            return None
        factory, transport = exchange.connection.factory, exchange.connection.transport
        side = exchange.switch_protocols(b"", request.own_fields(), protocol.UPGRADE)
        connection = TurnedConnection.of(side)
        if connection is not None:
            factory.exempt(transport)
        return connection

    def _opener(self, request: Request, name: str, user: str) -> Opener:
        peer, headers, client = request.client.peer, request.identity_headers, request.client.address
        path = _PATH + name.encode()
        assert request.server is not None
        server_name = request.server.name

        async def is_accepted() -> bool:
            server = self._server_named(server_name)
            if server is None or server.tunnels is None or name not in server.tunnels.names:
                return False
            try:
                found = server.authenticator.authenticate(peer, headers, path, client=client, server=server_name)
                caller = await settled(found)
            except StatusError as refusal:
                return refusal.code != 401  # while an authenticator is unavailable, the tunnel continues
            return caller.user.name == user

        return Opener(
            tunnel=name,
            user=user,
            peer=request.client.log_address,
            listener=request.exchange.connection.factory,
            is_accepted=is_accepted,
        )


def _only_value(fields: bytes, name: bytes) -> bytes | None:
    """Return the value of a field, None if it is absent. Raises TunnelRefused if it is there twice."""
    found = [value for other, value in split_fields(fields) if other == name]
    if len(found) > 1:
        raise TunnelRefused(400, f"the field {name.decode()} is there {len(found)} times", "malformed")
    return found[0] if found else None
