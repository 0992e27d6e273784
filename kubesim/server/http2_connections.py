"""The HTTP/2 connections of one endpoint, and the choice of protocol for new connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from h2.settings import SettingCodes

from kubesim.faults import Faults
from kubesim.request.fault_injection import reset_transport
from kubesim.server.http2_connection import EndpointState, HTTP2Connection, HTTP2Settings

ALPN = ["h2", "http/1.1"]


class HTTP2Connections:
    """The open connections of one endpoint."""

    def __init__(self, endpoint: int, faults: Faults, context: ssl.SSLContext, settings: HTTP2Settings) -> None:
        self.state = EndpointState(endpoint, faults, settings)
        self.connections: set[HTTP2Connection] = set()
        self._context = context
        context.set_alpn_protocols(ALPN)

    def accept(self, make_protocol: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
        """Return a factory for the protocols of new TLS connections, by ALPN; `make_protocol` is aiohttp's server."""
        return lambda: _Negotiated(self, make_protocol)

    def offer(self, *, http2: bool) -> None:
        """Offer HTTP/2 to new connections, or HTTP/1.1 alone."""
        self._context.set_alpn_protocols(ALPN if http2 else ALPN[1:])

    def serve(self, transport: asyncio.BaseTransport, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """Serve a connection for which HTTP/2 was negotiated."""
        connection = HTTP2Connection(self.state, make_protocol, self.connections.discard)
        self.connections.add(connection)
        self.state.connections_seen += 1
        connect(transport, connection)

    def change_settings(self, *, max_concurrent_streams: int | None, initial_window: int | None) -> None:
        """Announce other settings, on open connections too."""
        state = self.state
        changed: dict[SettingCodes | int, int] = {}
        if max_concurrent_streams is not None:
            state.settings = replace(state.settings, max_concurrent_streams=max_concurrent_streams)
            changed[SettingCodes.MAX_CONCURRENT_STREAMS] = max_concurrent_streams
        if initial_window is not None:
            state.settings = replace(state.settings, initial_window=initial_window)
            changed[SettingCodes.INITIAL_WINDOW_SIZE] = initial_window
        for connection in self.connections if changed else ():
            connection.change_settings(changed)

    def goaway(self, code: int, last: int | None = None) -> None:
        """Send GOAWAY on all open connections."""
        for connection in list(self.connections):
            connection.goaway(code, last)

    def silence(self) -> None:
        """Let all open connections read and answer nothing."""
        for connection in self.connections:
            connection.silence()

    def resume(self) -> None:
        """Undo `silence`."""
        for connection in list(self.connections):
            connection.resume()

    def reset(self) -> None:
        """End all open connections with a TCP RST."""
        for connection in list(self.connections):
            reset_transport(connection.transport)

    def as_dict(self) -> dict[str, Any]:
        streams = sorted((len(each.streams) for each in self.connections), reverse=True)
        return {"connections": len(self.connections), "streams": streams, **self.state.as_dict()}


def connect(transport: asyncio.BaseTransport, protocol: asyncio.BaseProtocol) -> None:
    """Hand a connection over to `protocol`."""
    assert isinstance(transport, asyncio.Transport)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)


class _Negotiated(asyncio.Protocol):
    """The protocol of a TLS connection until its handshake is done, which is when asyncio calls connection_made."""

    def __init__(self, owner: HTTP2Connections, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._owner = owner
        self._make_protocol = make_protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            self._owner.serve(transport, self._make_protocol)
        else:
            connect(transport, self._make_protocol())
