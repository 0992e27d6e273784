"""A treq client that uses the connections of one endpoint. Imported lazily, since it imports treq."""

from __future__ import annotations

from typing import Any

from treq.client import HTTPClient  # noqa: TID253  (this module is the lazily imported one)
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IAgentEndpointFactory, IBodyProducer, IResponse
from zope.interface import implementer

from mcproxy.upstream.control import ControlError
from mcproxy.upstream.endpoint import Endpoint

_MAX_HEAD = 256 * 1024
_HIGH_WATER = 256 * 1024  # bytes of a streamed body that wait for their reader before the server is made to wait


@implementer(IStreamClientEndpoint)
class _ControlConnections:
    """Connects treq's protocol by `Endpoint.connect_control`, which verifies the certificate."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        protocol = protocolFactory.buildProtocol(None)  # type: ignore[arg-type]  # twisted.web's ignores the address
        assert protocol is not None
        return self._endpoint.connect_control(_BoundedHead(protocol)).addCallback(lambda _: protocol)


class _BoundedHead(Protocol):
    """Passes a connection's events on to twisted.web's client; closes the connection on an endless response head.

    twisted.web limits the length of a line of the head, not their number.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._size = 0

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self._client.makeConnection(transport)

    def dataReceived(self, data: bytes) -> None:
        parser = self._client._parser  # private, but nothing public tells the head from the body
        if parser is None or parser.state not in ("STATUS", "HEADER"):
            self._size = 0
        else:
            self._size += len(data)
            if self._size > _MAX_HEAD:
                assert self.transport is not None
                self.transport.abortConnection()  # type: ignore[attr-defined]
                return
        self._client.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._client.connectionLost(reason)


@implementer(IAgentEndpointFactory)
class _SingleEndpointFactory:
    """Resolves every URL to this endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._connections = _ControlConnections(endpoint)

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        return self._connections


@implementer(IAgent)
class _IdentityEncodingAgent:
    """Refuses compressed responses: treq's decoder is not bounded, and a small one may expand to gigabytes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def request(
        self, method: bytes, uri: bytes, headers: Headers | None = None, bodyProducer: IBodyProducer | None = None
    ) -> Deferred[IResponse]:
        headers = Headers() if headers is None else headers.copy()
        headers.setRawHeaders("accept-encoding", ["identity"])
        return self._agent.request(method, uri, headers, bodyProducer).addCallback(_refuse_encoded)


class EncodedResponse(Exception):
    """The server compressed its response although `identity` was requested."""


class _DiscardBody(Protocol):
    """Receives an unwanted body: closes the connection."""

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


def _refuse_encoded(response: IResponse) -> IResponse:
    coding = response.headers.getRawHeaders("content-encoding", [])
    if any(value.strip().lower() not in ("", "identity") for value in coding):
        response.deliverBody(_DiscardBody())  # type: ignore[no-untyped-call]
        raise EncodedResponse
    return response


def make_client(
    reactor: IReactorTime, endpoint: Endpoint, *, idle_connections: int, idle_seconds: float
) -> tuple[HTTPClient, HTTPConnectionPool]:
    """Return a client for URLs of `endpoint` and its pool, which the caller closes."""
    pool: Any = HTTPConnectionPool(reactor, persistent=True)  # type: ignore[no-untyped-call]
    pool.maxPersistentPerHost = idle_connections
    pool.cachedConnectionTimeout = idle_seconds
    agent = Agent.usingEndpointFactory(reactor, _SingleEndpointFactory(endpoint), pool=pool)  # type: ignore[no-untyped-call]
    return HTTPClient(_IdentityEncodingAgent(agent)), pool


class BodyTooLarge(Exception):
    """The answer's body is longer than the caller wants."""


class TruncatedBody(Exception):
    """The connection ended before the body did."""


class _Collector(Protocol):
    """Collects a body up to a size, then ends the connection."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self._failure: Exception | None = None
        self.body: Deferred[bytes] = Deferred(lambda _: self._stop())

    def dataReceived(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._pieces.clear()
            self._failure = BodyTooLarge()
            self._stop()
        else:
            self._pieces.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.body.called:
            return
        if self._failure is None and not isinstance(reason.value, ResponseDone | PotentialDataLoss):
            self._failure = TruncatedBody()
        if self._failure is None:
            self.body.callback(b"".join(self._pieces))
        else:
            self.body.errback(self._failure)

    def _stop(self) -> None:
        if self.transport is not None:
            self.transport.loseConnection()


def collect(response: Any, limit: int) -> Deferred[bytes]:
    """Return the body; fails with `BodyTooLarge` or `TruncatedBody`. Cancelling ends the connection."""
    if response.length == 0:
        return succeed(b"")
    collector = _Collector(limit)
    response.deliverBody(collector)
    return collector.body


def fields_of(response: Any) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header fields of a response, as `ControlResponse.headers`."""
    return tuple((name, value) for name, values in response.headers.getAllRawHeaders() for value in values)


class ControlStream(Protocol):
    """A response whose body is read piece by piece, by one reader (`ControlClient.stream`).

    While nobody reads, no more than 256 KB (and a read of the socket) are kept: then TCP makes the server wait.
    """

    def __init__(self, response: Any, broken: str) -> None:
        """`broken` is the cause that a reader gets if the connection ends before the body does."""
        self.status: int = response.code
        self.headers = fields_of(response)
        self._broken = broken
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False
        self._failure: ControlError | None = None
        self._reader: Deferred[None] | None = None
        response.deliverBody(self)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header field; `name` in lower case."""
        return next((value for known, value in self.headers if known.lower() == name), None)

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end; raises ControlError. Cancelling closes the stream."""
        if not self._pieces and not self._ended:
            self._reader = Deferred(lambda _: self._cancelled())
            await self._reader
        if not self._pieces:
            if self._failure is not None:
                raise self._failure
            return b""
        pieces, self._pieces, self._size = self._pieces, [], 0
        if self._paused and not self._ended:
            self._paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_all(self, limit: int) -> bytes:
        """Return the rest of the body; raises BodyTooLarge, after which the stream is closed, or ControlError."""
        pieces = []
        size = 0
        while piece := await self.read():
            size += len(piece)
            if size > limit:
                self.close()
                raise BodyTooLarge
            pieces.append(piece)
        return b"".join(pieces)

    def close(self, cause: str = "closed") -> None:
        """End the connection, unless the whole body has been received; a reader gets ControlError with `cause`."""
        if not self._ended:
            self._pieces.clear()
            self._end(ControlError(cause))
            if self.transport is not None:
                self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if self._ended:
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.callback(None)
        if self._size > _HIGH_WATER and not self._paused and not self._ended:
            self._paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self._ended:
            whole = isinstance(reason.value, ResponseDone | PotentialDataLoss)
            self._end(None if whole else ControlError(self._broken))

    def _cancelled(self) -> None:
        self._reader = None
        self.close()

    def _end(self, failure: ControlError | None) -> None:
        self._ended = True
        self._failure = failure
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.callback(None)
