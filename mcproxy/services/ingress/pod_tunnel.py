"""One connection to a port of a pod inside a WebSocket of the API server: `SPDY/3.1+portforward.k8s.io`.

    engine - socket pair - PodTunnel - SPDY/3.1 frames in binary messages - API server - kubelet - the pod's port

The socket pair makes the tunnel a usual connection, whose transports carry TLS, HTTP/2 and WebSocket. A forwarded
connection has two streams with the same `requestID`: an error stream, whose sending side is closed at once, and a data
stream. Data is sent after the replies to both streams, because the peer drops earlier data.

Source: KEP-4006, client-go `tools/portforward/{portforward,tunneling_connection}.go`, kubelet
`cri/streaming/portforward/httpstream.go`, moby/spdystream. Every cluster uses moby/spdystream, which neither counts
windows nor sends WINDOW_UPDATE: a sender that obeyed SPDY's window of 64 KiB would stall for ever. So the back-pressure
of the WebSocket's connection applies, as with kubectl. This suffices because a tunnel carries one connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IProtocol, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import classImplements

from mcproxy.http.tunnel import TunnelSide
from mcproxy.kube.spdy_frames import Data, Event, GoAway, Ping, RstStream, SpdyError, SpdySession, SynReply, SynStream
from mcproxy.kube.websocket_frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    WebSocketError,
    WebSocketFrameReader,
    WebSocketMessage,
    frame,
)
from mcproxy.net.connect_errors import ConnectFailed
from mcproxy.net.failures import is_done
from mcproxy.net.plain_stream import PlainStream

if TYPE_CHECKING:
    from mcproxy.http.transport import Transport
    from mcproxy.net.socket_stream import SocketStream

#: Maximum of bytes of a WebSocket message from the API server, which sends 32 KiB at a time.
MAX_MESSAGE: Final = 1 << 20
#: Maximum of kept bytes of the kubelet's message on the error stream.
MAX_ERROR: Final = 1024
#: Seconds for which a tunnel closed by its user can still send buffered data.
CLOSING: Final = 10.0

_ERROR: Final = 1
_DATA: Final = 3
_NORMAL: Final = b"\x03\xe8"  # status code 1000 of a CLOSE


class PodTunnel:
    """The tunnel's end of the socket pair, an IProtocol. States: opening -> open -> over."""

    def __init__(self, reactor: Any, port: int, where: str, broken: Callable[[str], None]) -> None:
        """`where`: name of the pod's port for errors. `broken` is called with the cause when an open tunnel breaks."""
        self.opened: Deferred[None] = Deferred()
        """Fires after the replies to both streams; fails with ConnectError."""
        self.user: SocketStream | None = None
        """The stream over the other end of the pair."""
        self._reactor = reactor
        self._port = port
        self._where = where
        self._broken = broken
        self._spdy = SpdySession()
        self._messages = WebSocketFrameReader(masked=False, limit=MAX_MESSAGE)
        self._far = _FarEnd(self)
        self._side = TunnelSide(self._far)
        self._near: Transport | None = None
        self._replied: set[int] = set()
        self._error = b""
        self._error_ended = False
        self._pod_ended = False  # the pod has ended its side
        self._user_ended = False  # the user has ended its side
        self._user_closed = False
        self._blocked = False  # the API server reads slowly
        self._over = False
        self._timer: Any = None

    def start(self, server: TunnelSide) -> socket.socket:
        """Begin the streams on an open WebSocket; return the user's end of the pair, non-blocking."""
        near, far = socket.socketpair()
        for each in (near, far):
            each.setblocking(False)
        PlainStream(self._reactor, near, "").attach(cast(IProtocol, self))
        server.splice(self._side)
        common = {"port": str(self._port), "requestid": "0"}
        self._send(
            self._spdy.syn_stream(_ERROR, {"streamtype": "error", **common})
            + self._spdy.syn_stream(_DATA, {"streamtype": "data", **common})
        )
        return far

    def closed(self, _: SocketStream | None = None) -> None:
        """Close the tunnel after its buffered data, because the user's end of the pair is closed."""
        self._user_closed = True
        if self._user_ended:
            self._end(clean=True)
        elif not self._over:
            self._timer = self._reactor.callLater(CLOSING, self.abort)

    def abort(self) -> None:
        """Close at once."""
        self._timer = None
        self._end(clean=False)

    # -- from the API server ------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Process bytes of the WebSocket."""
        try:
            for message in self._messages.feed(data):
                if self._over:
                    return
                self._message(message)
        except (WebSocketError, SpdyError) as error:
            self._fail(f"the API server sent what is no port-forward: {error}")

    def server_ended(self) -> None:
        """End the tunnel, because the WebSocket's connection has ended, or the server's half of it."""
        self._fail("the API server ended the connection", reported=False)

    def block(self, blocked: bool) -> None:
        """Pause while the API server reads slowly, or resume."""
        self._blocked = blocked
        if self._near is not None and blocked:
            self._near.pauseProducing()
        elif self._near is not None:
            self._near.resumeProducing()

    def _message(self, message: WebSocketMessage) -> None:
        if message.opcode == BINARY:
            for event in self._spdy.feed(message.payload):
                if self._over:
                    return
                self._event(event)
        elif message.opcode == PING:
            if not self._blocked:  # replies to a peer that does not read would pile up
                self._side.received(frame(PONG, message.payload, os.urandom(4)))
        elif message.opcode == CLOSE:
            reason = message.payload[2:].decode("utf-8", "replace")
            self._fail(f"the API server closed the WebSocket ({_one_line(reason)})", reported=bool(reason))
        elif message.opcode != PONG:
            raise WebSocketError("a message of text")

    def _event(self, event: Event) -> None:
        if isinstance(event, Data):
            self._data(event)
        elif isinstance(event, SynReply):
            if event.stream not in (_ERROR, _DATA):
                raise SpdyError("a reply to no stream")
            self._reply(event.stream)
            if event.fin and not self._over:
                self._data(Data(event.stream, b"", True))
        elif isinstance(event, RstStream):
            if event.stream == _DATA or (event.stream == _ERROR and not self._error_ended):
                self._fail(self._error_message() or "the kubelet reset the stream")
        elif isinstance(event, Ping):
            if not event.ident % 2 and not self._blocked:  # even ids are the peer's pings, odd ones replies to ours
                self._send(SpdySession.ping(event.ident))
        elif isinstance(event, SynStream):
            raise SpdyError("an unrequested stream")
        elif isinstance(event, GoAway) and not self.opened.called:
            self._fail("the kubelet takes no more streams")

    def _reply(self, stream: int) -> None:
        self._replied.add(stream)
        if len(self._replied) == 2 and not self.opened.called:
            self._send(SpdySession.data(_ERROR, b"", fin=True))
            if self._near is not None and not self._blocked:
                self._near.resumeProducing()
            self.opened.callback(None)

    def _data(self, event: Data) -> None:
        if event.stream == _ERROR:
            self._error += event.payload[: MAX_ERROR - len(self._error)]
            self._error_ended = self._error_ended or event.fin
            if self._error and (event.fin or len(self._error) == MAX_ERROR):
                self._fail(self._error_message())
        elif event.stream != _DATA or self._pod_ended:
            raise SpdyError("data of a stream that is not open")
        elif self._near is not None:
            self._near.write(event.payload)
            if event.fin and self._error:
                self._fail(self._error_message())
            elif event.fin:
                self._pod_ended = True
                self._near.unregisterProducer()  # a transport with a producer waits for more data
                self._near.loseWriteConnection()

    def _error_message(self) -> str:
        return _one_line(self._error.decode("utf-8", "replace"))

    # -- from the user: an IProtocol that can be half-closed -----------------------------------------------------

    def makeConnection(self, transport: Any) -> None:
        self._near = transport
        transport.pauseProducing()  # until the streams are open
        transport.registerProducer(self, True)

    def connectionMade(self) -> None:
        """Do nothing: `makeConnection` has done everything."""

    def dataReceived(self, data: bytes) -> None:
        self._send(SpdySession.data(_DATA, data))

    def readConnectionLost(self) -> None:
        self._user_ended = True
        self._send(SpdySession.data(_DATA, b"", fin=True))
        if self._user_closed:
            self._end(clean=True)

    def writeConnectionLost(self) -> None:
        """Do nothing after the pod's end of its side: the user can still send."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._near = None
        self._end(clean=is_done(reason))

    # -- IPushProducer: pauses while the user reads slowly -------------------------------------------------------

    def pauseProducing(self) -> None:
        self._side.pause()

    def resumeProducing(self) -> None:
        self._side.resume()

    def stopProducing(self) -> None:
        """Do nothing: the transport is closed, and `connectionLost` follows."""

    # -- ending -------------------------------------------------------------------------------------------------

    def _send(self, frames: bytes) -> None:
        if not self._over:
            self._side.received(frame(BINARY, frames, os.urandom(4)))

    def _fail(self, cause: str, *, reported: bool = True) -> None:
        """End a broken tunnel. `reported`: whether to call `broken`.

        After the pod has ended its side, a break is no failure, because the pod may be gone.
        """
        if self._over or self._pod_ended:
            self._end(clean=self._pod_ended)
            return
        if reported and self.opened.called:
            self._broken(cause)
        self._end(clean=False, cause=cause)

    def _end(self, *, clean: bool, cause: str = "closed") -> None:
        if self._over:
            return
        if clean:
            self._side.received(frame(CLOSE, _NORMAL, os.urandom(4)))
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        near, self._near = self._near, None
        if near is not None:
            near.unregisterProducer()
            if clean:
                near.loseConnection()
            else:
                near.abortConnection()
        if self.user is not None and not clean:
            self.user.abortConnection()  # otherwise the user would see an orderly end
        self._side.connection_lost(clean)
        if not self.opened.called:
            self.opened.errback(ConnectFailed(f"{self._where}: {cause}"))


class _FarEnd:
    """The local end of the WebSocket for its `TunnelSide`: a `TunnelEnd` and its transport."""

    def __init__(self, tunnel: PodTunnel) -> None:
        self.transport = cast("Transport", self)
        self._tunnel = tunnel

    def write(self, data: bytes) -> None:
        self._tunnel.received(data)

    def pauseProducing(self) -> None:
        self._tunnel.block(True)

    def resumeProducing(self) -> None:
        self._tunnel.block(False)

    def unregisterProducer(self) -> None:
        """Do nothing: there is no producer."""

    def loseWriteConnection(self) -> None:
        self._tunnel.server_ended()

    def loseConnection(self) -> None:
        self._tunnel.server_ended()

    def abortConnection(self) -> None:
        self._tunnel.server_ended()

    def tunnel_ended(self) -> None:
        """Do nothing: `PodTunnel` has ended the tunnel."""

    def transport_taken(self) -> None:
        """Do nothing: nobody takes this transport, since the tunnel is spliced at once."""


classImplements(PodTunnel, IProtocol, IHalfCloseableProtocol, IPushProducer)


def _one_line(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:300]
