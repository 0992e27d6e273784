"""The HTTP/2 server engine on TLS sockets: large bodies both ways, clients that do not read, ends of connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred

from mcproxy.config.model import Limits, TCPBind
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h2.frame_sender import CONNECTION_HIGH
from mcproxy.http.h2.h2_server import H2ServerConnection
from mcproxy.http.messages import ProtocolError
from mcproxy.http.server_factory import ServerFactory
from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.net.connect import connect
from mcproxy.net.listen import Listener
from tests.http.h1.harness import Handled
from tests.net.peers import client_tls, reactor, speaking, until
from tests.proxy.http2_peers import H2Client

SIZE = 2_000_000
PIECE = 60_000


class Downloads(Handled):
    """Answers with `size` bytes, as fast as the client reads."""

    def __init__(self, exchange: Exchange, size: int) -> None:
        super().__init__(exchange)
        self.left = size
        exchange.attach(self)
        exchange.respond(200, b"", b"", -1)
        self.proceed()

    def proceed(self) -> None:
        while self.left and not self.paused and not self.exchange.ended:
            piece = min(self.left, PIECE)
            self.left -= piece
            self.exchange.write(bytes(piece))
            self.exchange.flush()
        if not self.left:
            self.exchange.end()

    def resume_response(self) -> None:
        self.paused = False
        self.proceed()


class Site:
    """A listener whose requests are downloads of /SIZE, or wait in `requests`."""

    def __init__(self, **limits: Any) -> None:
        self.requests: list[Handled] = []
        self.deadlines = Deadlines(reactor())
        self.factory = ServerFactory(self.deadlines, Limits(**limits), self._handle, self._refusal)
        self.listener = Listener(reactor(), self.factory, speaking(H2, HTTP1_1), TCPBind("127.0.0.1", 0))
        self.listener.start()
        self.clients: list[H2Client] = []

    def _handle(self, exchange: Exchange) -> None:
        target = exchange.head.target[1:]
        if target.isdigit():
            self.requests.append(Downloads(exchange, int(target)))
        else:
            self.requests.append(Handled(exchange))
            exchange.attach(self.requests[-1])

    def _refusal(self, connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
        return b"", problem.message.encode()

    async def client(self) -> H2Client:
        client = H2Client()
        self.clients.append(client)
        address = self.listener.address
        assert isinstance(address, TCPBind)
        await connect(reactor(), "127.0.0.1", address.port, client, tls=client_tls(), timeout=60, alpn=(H2,))
        return client

    def close(self) -> Deferred[None]:
        for client in self.clients:
            client.abort()
        for stream in self.listener:
            stream.abortConnection()
        self.listener.stop_accepting()
        return Deferred.fromCoroutine(self._closed())

    async def _closed(self) -> None:
        await until(lambda: not self.listener.connections and all(client.lost for client in self.clients))
        self.deadlines.stop()


@pytest.fixture
def site() -> Iterator[Site]:
    found = Site()
    yield found
    pytest_twisted.blockon(found.close())


async def test_downloads_of_several_streams(site: Site) -> None:
    client = await site.client()
    streams = [client.ask(b"GET", b"/%d" % SIZE) for _ in range(2)]
    await until(lambda: all(stream.ended for stream in streams))
    assert [len(stream.data) for stream in streams] == [SIZE] * 2
    assert client.problem is None
    assert site.factory.protection == {}
    assert [handled.exchange.bytes_out for handled in site.requests] == [SIZE] * 2


async def test_a_client_that_reads_one_stream_of_many(site: Site) -> None:
    client = await site.client()
    unread = [client.ask(b"GET", b"/%d" % SIZE) for _ in range(50)]
    for stream in unread:
        stream.reads = False
    read = client.ask(b"GET", b"/%d" % SIZE)
    await until(lambda: read.ended)
    assert len(read.data) == SIZE
    assert not any(stream.ended for stream in unread)
    [connection] = site.factory.connections
    assert isinstance(connection, H2ServerConnection)
    assert connection.sender.queued < CONNECTION_HIGH + 50 * PIECE
    unread[7].read_on()
    await until(lambda: unread[7].ended)


async def test_an_upload(site: Site) -> None:
    client = await site.client()
    stream = client.ask(b"POST", b"/up", end=False)
    stream.send(bytes(SIZE))
    stream.end()
    await until(lambda: site.requests and site.requests[0].trailers is not None)
    assert len(site.requests[0].body) == SIZE
    site.requests[0].answer()
    await until(lambda: stream.ended)
    assert stream.data == b"ok"


async def test_a_client_that_reads_nothing_from_its_socket(site: Site) -> None:
    client = await site.client()
    transport: Any = client.transport
    streams = [client.ask(b"GET", b"/50000000") for _ in range(3)]
    client.engine.increment_flow_control_window(2**30)
    for stream in streams:
        client.engine.increment_flow_control_window(2**30, stream.number)
    client.flush()
    transport.pauseProducing()
    await until(lambda: len(site.requests) == 3 and all(handled.paused for handled in site.requests))
    [connection] = site.factory.connections
    assert isinstance(connection, H2ServerConnection)
    assert connection.sender.queued < CONNECTION_HIGH + 3 * PIECE
    other = await site.client()
    quick = other.ask(b"GET", b"/1000")
    await until(lambda: quick.ended)
    transport.resumeProducing()
    await until(lambda: all(stream.data for stream in streams))


async def test_a_client_that_goes_away(site: Site) -> None:
    client, other = await site.client(), await site.client()
    for one in (client, other):
        one.ask(b"GET", b"/watch")
        one.ask(b"GET", b"/50000000").reads = False
    await until(lambda: len(site.requests) == 4)
    client.abort()
    await until(lambda: sum(handled.cancellations for handled in site.requests) == 2)
    assert len(site.factory.connections) == 1
    other.close()
    await until(lambda: sum(handled.cancellations for handled in site.requests) == 4)
    assert not site.factory.connections


async def test_a_drain_over_tls(site: Site) -> None:
    client = await site.client()
    stream = client.ask(b"GET", b"/watch")
    await until(lambda: site.requests)
    site.factory.drain()
    await until(lambda: len(client.goaways) == 1)
    site.requests[0].answer()
    assert client.lost is None
    await until(lambda: client.lost is not None)
    assert stream.number == 1


async def test_an_idle_connection_that_makes_room_says_what_was_not_served(site: Site) -> None:
    client = await site.client()
    stream = client.ask(b"GET", b"/1000")
    await until(lambda: stream.ended and site.listener.connections)
    [connection] = site.listener
    assert connection.idle_since is not None
    connection.close()
    await until(lambda: client.lost is not None)
    assert client.goaways == [(1, 0)]
