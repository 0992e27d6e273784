"""HTTP/2 clients and clusters for the harness, on the `h2` package, which is not our code.

What it says is wrong about the proxy's frames is a peer's `problem`: tests look that there is none.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error, ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame
from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from zope.interface import implementer

from mcproxy.config import model
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.tls_contexts import client_context
from tests.proxy.harness import CA, NAME, Harness, Upstream, UpstreamEnd, listener

Fields = Iterable[tuple[bytes, bytes]]


class _Engine(H2Connection):
    """The package's engine, but GOAWAY ends nothing: streams that it spares go on (RFC 9113 6.8).

    And too many streams do not end the connection: the tests refuse them, as Go does.
    """

    @property
    def open_inbound_streams(self) -> int:
        return 0

    @property
    def inbound_streams(self) -> int:
        """How many are open."""
        return super().open_inbound_streams

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Any], list[events.Event]]:
        event = events.ConnectionTerminated()
        event.error_code, event.last_stream_id = frame.error_code, frame.last_stream_id
        return [], [event]


class PeerStream:
    """One stream as one end sees it."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number
        self.fields: dict[bytes, bytes] = {}
        self.informational: list[bytes] = []  # statuses of 1xx
        self.data = b""
        self.trailers: dict[bytes, bytes] = {}
        self.ended = False  # the other end has ended it in an orderly way
        self.finished = False  # this end has
        self.reset: int | None = None  # the other end's RST_STREAM
        self.reads = True  # gives back what it has read
        self.sent = 0  # bytes of data that the windows have let go
        self._unread = 0
        self._queued: list[bytes] = []
        self._last: Fields | bool = False  # what ends the stream after what is queued: trailers, or True

    @property
    def over(self) -> bool:
        """Neither end will send anything more."""
        return self.reset is not None or self.peer.lost is not None or (self.ended and self.finished)

    @property
    def status(self) -> int:
        """Of the response; 0 before it."""
        return int(self.fields.get(b":status", b"0"))

    def head(self, fields: Fields, *, end: bool = False) -> None:
        """Send a head."""
        self.finished |= end
        self.peer.engine.send_headers(self.number, list(fields), end_stream=end)
        self.peer.flush()

    def send(self, data: bytes) -> None:
        """Send data as far as the windows allow, the rest when they open."""
        self._queued.append(data)
        self.pump()

    def end(self, trailers: Fields | None = None) -> None:
        """End the stream after what is queued."""
        self._last = list(trailers) if trailers else True
        self.pump()

    def cancel(self, code: int = ErrorCodes.CANCEL) -> None:
        """Send RST_STREAM."""
        self.finished = True
        self._queued.clear()
        if self.reset is None and self.peer.lost is None:
            self.reset = -1
            with contextlib.suppress(StreamClosedError):  # its end is among the events still to come
                self.peer.engine.reset_stream(self.number, code)
            self.peer.flush()

    def read_on(self) -> None:
        """Give the window back from now on."""
        self.reads = True
        if self._unread and not self.ended and self.reset is None and self.peer.lost is None:
            with contextlib.suppress(StreamClosedError, KeyError):  # what closed it is among the events still to come
                self.peer.engine.increment_flow_control_window(self._unread, self.number)
            self.peer.flush()
        self._unread = 0

    def pump(self) -> None:
        """Send what the windows allow."""
        if self.peer.lost is None and self.reset is None and not self.finished:
            with contextlib.suppress(StreamClosedError, KeyError):
                self._pump()
            self.peer.flush()

    def _pump(self) -> None:
        engine = self.peer.engine
        while self._queued:
            room = min(engine.local_flow_control_window(self.number), engine.max_outbound_frame_size)
            if room <= 0:
                break
            data = self._queued[0]
            engine.send_data(self.number, data[:room])
            self.sent += len(data[:room])
            self._queued[0:1] = [data[room:]] if len(data) > room else []
        if not self._queued and self._last is not False:
            self.finished = True
            if self._last is True:
                engine.end_stream(self.number)
            else:
                engine.send_headers(self.number, list(self._last), end_stream=True)

    def received(self, event: Any) -> None:
        """An event of this stream."""
        match event:
            case events.InformationalResponseReceived():
                self.informational.append(dict(event.headers)[b":status"])
            case events.RequestReceived() | events.ResponseReceived():
                self.fields = dict(event.headers)
            case events.DataReceived():
                self.data += event.data
                size = event.flow_controlled_length
                if size:
                    self.peer.engine.increment_flow_control_window(size)  # of the connection: other streams' too
                    self._unread += size
                    if self.reads:
                        self.read_on()
            case events.TrailersReceived():
                self.trailers = dict(event.headers)
            case events.StreamEnded():
                self.ended = True
            case events.StreamReset():
                self.reset = int(event.error_code)


class Peer(Protocol):
    """One end of a connection."""

    client_side = True

    def __init__(self) -> None:
        config = H2Configuration(client_side=self.client_side, header_encoding=False)
        self.engine = _Engine(config)
        self.streams: dict[int, PeerStream] = {}
        self.lost: BaseException | None = None
        self.goaways: list[tuple[int, int]] = []  # the last stream's number and the code of each that came
        self.pings_received = 0
        self.problem: H2Error | None = None  # what the proxy did wrong

    def connectionMade(self) -> None:
        self.engine.initiate_connection()
        self.flush()

    def flush(self) -> None:
        data = self.engine.data_to_send()
        if data and self.lost is None and self.transport is not None:
            self.transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        try:
            found = self.engine.receive_data(data)
        except H2Error as error:
            self.problem = error
            self.abort()
            return
        for event in found:
            self._received(event)
        self.flush()

    def _received(self, event: Any) -> None:
        if isinstance(event, events.ConnectionTerminated):
            self.goaways.append((int(event.last_stream_id or 0), int(event.error_code or 0)))
        elif isinstance(event, events.PingReceived):
            self.pings_received += 1
        elif isinstance(event, events.WindowUpdated | events.RemoteSettingsChanged):
            for stream in list(self.streams.values()):
                if not stream.over:
                    stream.pump()
        elif (number := getattr(event, "stream_id", None)) is not None:
            of = self.streams.get(number) or self.streams.setdefault(number, PeerStream(self, number))
            of.received(event)
            self.stream_event(of, event)

    def stream_event(self, stream: PeerStream, event: Any) -> None:
        """Hook: something came on a stream."""

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = reason.value

    def goaway(self, last: int, code: int = ErrorCodes.NO_ERROR) -> None:
        """Send GOAWAY and go on: the package's own state would be closed by it."""
        if self.lost is None:
            assert self.transport is not None
            self.transport.write(GoAwayFrame(0, last_stream_id=last, error_code=code).serialize())

    def fall_silent(self) -> None:
        """Read nothing more, and so answer nothing, as if the network swallowed it; the connection stays open."""
        self.transport.pauseProducing()  # type: ignore[union-attr]

    def close(self) -> None:
        if self.lost is None and self.transport is not None:
            self.transport.loseConnection()

    def abort(self) -> None:
        if self.lost is None and self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]


class H2Client(Peer):
    """A client of the proxy."""

    def ask(
        self,
        method: bytes = b"GET",
        path: bytes = b"/api/v1/namespaces/a/pods/b",
        fields: Fields = (),
        *,
        end: bool = True,
    ) -> PeerStream:
        """Begin a request; with `end` it has no body."""
        stream = PeerStream(self, self.engine.get_next_available_stream_id())
        self.streams[stream.number] = stream
        pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", NAME.encode()), (b":path", path)]
        stream.head([*pseudo, *fields], end=end)
        return stream

    @property
    def port(self) -> int:
        port: int = self.transport.getHost().port  # type: ignore[union-attr]
        return port


@functools.cache
def _client_context() -> SSL.Context:
    return client_context(CA.cert_pem.bytes(), None, verify=True)


async def h2_client(harness: Harness, port: int = 0) -> H2Client:
    """A connected client of HTTP/2, which the harness closes."""
    client = H2Client()
    settings = ClientTLS(_client_context(), NAME, verify=True, sessions=None)
    where = port or harness.port()
    await connect(harness.reactor, "127.0.0.1", where, client, tls=settings, timeout=60.0, alpn=(b"h2",))
    harness.closing(client.abort)
    return client


class H2UpstreamEnd(Peer):
    """One HTTP/2 connection of the proxy to an upstream; health checks are answered and forgotten."""

    client_side = False

    def __init__(self, upstream: H2Upstream) -> None:
        super().__init__()
        self._upstream = upstream
        self.settled = False  # the proxy has acknowledged our SETTINGS
        self.over_limit = 0  # streams that it opened since, although as many as may be were open
        self._checks: set[int] = set()  # the streams of health checks
        initial: dict[Any, int] = {**self.engine.local_settings, **upstream.settings}
        self.engine.local_settings = Settings(client=False, initial_values=initial)

    def _received(self, event: Any) -> None:
        self.settled |= isinstance(event, events.SettingsAcknowledged)
        if isinstance(event, events.RequestReceived) and dict(event.headers)[b":path"].endswith(b"/readyz-check"):
            self._checks.add(event.stream_id)
            # h2 has read all frames before the first event: a check that is cancelled at once has no stream any more.
            with contextlib.suppress(ProtocolError):
                if self._full:
                    self.over_limit += self.settled
                    self.engine.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
                else:
                    self.engine.send_headers(event.stream_id, [(b":status", b"200")], end_stream=True)
        elif getattr(event, "stream_id", None) not in self._checks:
            super()._received(event)

    @property
    def _full(self) -> bool:
        """Whether the newest stream is one too many."""
        limit = self._upstream.settings.get(SettingCodes.MAX_CONCURRENT_STREAMS, 1 << 31)
        return self.engine.inbound_streams > limit

    def stream_event(self, stream: PeerStream, event: Any) -> None:
        if isinstance(event, events.RequestReceived) and self._full:
            self.over_limit += self.settled
            stream.cancel(ErrorCodes.REFUSED_STREAM)
            return
        if self._upstream.stream_event is not None and not stream.finished:
            self._upstream.stream_event(stream, event)


class _ByALPN(Protocol):
    """What the handshake agreed on decides which protocol a connection has."""

    def __init__(self, upstream: H2Upstream, addr: Any) -> None:
        self._upstream = upstream
        self._addr = addr
        self._chosen: Any = None

    def dataReceived(self, data: bytes) -> None:
        if self._chosen is None:
            name = self.transport.negotiatedProtocol  # type: ignore[union-attr]
            self._chosen = self._upstream.of_protocol(name, self._addr)
            self._chosen.makeConnection(self.transport)
        self._chosen.dataReceived(data)

    def connectionLost(self, reason: Any = None) -> None:
        if self._chosen is not None:
            self._chosen.connectionLost(reason)


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    def __init__(self, protocols: tuple[bytes, ...]) -> None:
        self._context = SSL.Context(SSL.TLS_METHOD)
        CA.issue_cert("127.0.0.1").configure_cert(self._context)

        def choose(_: SSL.Connection, offered: list[bytes]) -> Any:
            return next((name for name in protocols if name in offered), SSL.NO_OVERLAPPING_PROTOCOLS)

        self._context.set_alpn_select_callback(choose)

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        return SSL.Connection(self._context, None)


class H2Upstream(Upstream):
    """A TLS server of HTTP/2 and HTTP/1.1; `stream_event` hears of all that comes on streams but health checks'."""

    def __init__(self, reactor: Any, offers: tuple[bytes, ...] = (b"h2", b"http/1.1")) -> None:
        self.h2: list[H2UpstreamEnd] = []
        self.stream_event: Callable[[PeerStream, Any], None] | None = None
        self.settings: dict[int, int] = {}
        self._creator = _Creator(offers)
        super().__init__(reactor)

    def listen(self, reactor: Any, port: int) -> Any:
        return reactor.listenSSL(port, _Switch(self), self._creator, interface="127.0.0.1")

    def of_protocol(self, name: bytes | None, addr: Any) -> UpstreamEnd | H2UpstreamEnd:
        if name != b"h2":
            return self.buildProtocol(addr)
        self.h2.append(H2UpstreamEnd(self))
        return self.h2[-1]

    @property
    def streams(self) -> list[PeerStream]:
        """All requests but health checks that came over HTTP/2."""
        return [stream for end in self.h2 for stream in end.streams.values()]

    def endpoint(self, name: str = "a", path: str = "") -> model.EndpointConfig:
        return model.EndpointConfig(name=name, scheme="https", host="127.0.0.1", port=self.port, path=path)

    def stop(self) -> Any:
        for end in self.h2:
            end.abort()
        return super().stop()


class _Switch(Factory):
    noisy = False

    def __init__(self, upstream: H2Upstream) -> None:
        self._upstream = upstream

    def buildProtocol(self, addr: Any) -> _ByALPN:
        return _ByALPN(self._upstream, addr)


H2_TLS = model.ClusterTLS(ca=model.PEMFile("ca", CA.cert_pem.bytes()))
"""With which a cluster of `H2Upstream`s is trusted."""


def http2_listener(**fields: Any) -> model.ListenerConfig:
    """One for either version."""
    return listener(protocols=(model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1), **fields)
