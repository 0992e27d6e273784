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

from mcproxy.upstream.control_stream import BodyTooLarge
from mcproxy.upstream.endpoint import Endpoint

_MAX_HEAD = 256 * 1024


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
