"""Responses that are read piece by piece, over real TLS on loopback, and over plain TCP for what no server sends."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.control_stream import BodyTooLarge
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.upstream.fakes import cluster_config, real_pools
from tests.upstream.https_server import NOT_DONE_YET
from tests.upstream.test_control import Site, served


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    yield from served(reactor, "127.0.0.1")


async def stream(cluster: Cluster, path: str = "/watch", head_timeout: float = 60.0, **more: Any) -> Any:
    return await cluster.control.stream(cluster.endpoints[0], path, head_timeout=head_timeout, **more)


async def test_the_head_comes_first_and_then_the_pieces(site: Site) -> None:
    requests: list[Any] = []

    def respond(request: Any) -> Any:
        request.setHeader("x-answer", "yes")
        request.write(b"one\n")
        requests.append(request)
        return NOT_DONE_YET

    site.server.respond = respond
    cluster = site.cluster(credentials=model.Credentials(token=model.Secret("s3cret")))
    answer = await stream(cluster, headers=(("accept", "application/json"),))
    assert answer.status == 200
    assert answer.header(b"x-answer") == b"yes"
    assert await answer.read() == b"one\n"
    requests[0].write(b"two\n")
    assert await answer.read() == b"two\n"
    requests[0].finish()
    assert await answer.read() == b""
    assert await answer.read() == b""
    seen = site.server.seen[0]
    assert seen.headers["authorization"] == "Bearer s3cret"
    assert seen.headers["accept"] == "application/json"
    assert seen.headers["accept-encoding"] == "identity"
    assert (await stream(cluster)).status == 200
    assert site.server.seen[1].connection == seen.connection, "the connection was not kept"
    requests[1].finish()


async def test_an_empty_body_ends_at_once(site: Site) -> None:
    def respond(request: Any) -> bytes:
        request.setResponseCode(304)
        return b""

    site.server.respond = respond
    answer = await stream(site.cluster())
    assert (answer.status, await answer.read_all(0)) == (304, b"")


async def test_a_body_that_is_read_whole_is_bounded(site: Site) -> None:
    site.server.respond = lambda request: b"x" * 100_000
    cluster = site.cluster()
    assert len(await (await stream(cluster)).read_all(100_000)) == 100_000
    with pytest.raises(BodyTooLarge):
        await (await stream(cluster)).read_all(99_999)


async def test_a_server_waits_for_a_slow_reader(site: Site) -> None:
    size = 64 * 1024 * 1024
    site.server.respond = lambda request: b"x" * size
    answer = await stream(site.cluster())
    while not answer._paused:
        await deferLater(site.reactor, 0.01)
    await deferLater(site.reactor, 0.1)  # for what must not come
    kept = len(await answer.read())
    assert 256 * 1024 < kept < 600 * 1024
    total = kept
    while piece := await answer.read():
        total += len(piece)
    assert total == size


async def test_a_connection_that_breaks_gives_what_came_and_then_an_error(site: Site) -> None:
    def respond(request: Any) -> Any:
        request.write(b"begin")
        requests.append(request)
        return NOT_DONE_YET

    requests: list[Any] = []
    site.server.respond = respond
    answer = await stream(site.cluster())
    while not answer._size:
        await deferLater(site.reactor, 0.01)
    requests[0].channel.transport.abortConnection()
    while not answer._ended:
        await deferLater(site.reactor, 0.01)
    assert await answer.read() == b"begin"
    with pytest.raises(ControlError, match="a broke off the connection, or its answer, on /watch"):
        await answer.read()


async def test_a_head_that_does_not_come_ends_at_the_timeout(site: Site) -> None:
    cluster = site.cluster()
    await (await stream(cluster)).read_all(100)  # a connection: that it is not there in time is another error
    site.server.respond = lambda request: NOT_DONE_YET
    with pytest.raises(ControlError, match=r"no answer from a on /watch within 0\.2 s"):
        await stream(cluster, head_timeout=0.2)


@pytest.mark.slow
async def test_the_timeout_ends_with_the_head(site: Site) -> None:
    def respond(request: Any) -> Any:
        request.write(b"begin")
        requests.append(request)
        return NOT_DONE_YET

    requests: list[Any] = []
    site.server.respond = respond
    begun = site.reactor.seconds()
    answer = await stream(site.cluster(), head_timeout=3.0)
    while site.reactor.seconds() < begun + 4.0:
        await deferLater(site.reactor, 0.1)
    requests[0].finish()
    assert await answer.read_all(100) == b"begin"


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_an_end_on_our_side_closes_the_connection(site: Site, how: str) -> None:
    ended: list[Any] = []

    def respond(request: Any) -> Any:
        request.notifyFinish().addErrback(ended.append)
        request.write(b"begin")
        return NOT_DONE_YET

    site.server.respond = respond
    answer = await stream(site.cluster())
    assert await answer.read() == b"begin"
    reading = Deferred.fromCoroutine(answer.read())
    if how == "close":
        answer.close("the endpoint is out")
        with pytest.raises(ControlError, match="the endpoint is out"):
            await reading
    else:
        reading.cancel()
        with pytest.raises(CancelledError):
            await reading
    while not ended:
        await deferLater(site.reactor, 0.01)


async def test_a_401_reads_the_rotated_token_and_tries_once_more(site: Site, tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    cluster = site.cluster(credentials=model.Credentials(token_file=str(path)))

    def respond(request: Any) -> bytes:
        request.setResponseCode(200 if request.getHeader("authorization") == "Bearer newer" else 401)
        return b"body"

    site.server.respond = respond
    refused = await stream(cluster)
    assert refused.status == 401
    refused.close()
    path.write_text("newer")
    answer = await stream(cluster)
    assert (answer.status, await answer.read_all(100)) == (200, b"body")
    assert [seen.headers["authorization"] for seen in site.server.seen] == ["Bearer old", "Bearer old", "Bearer newer"]


async def test_a_compressed_answer_is_refused(site: Site) -> None:
    def respond(request: Any) -> bytes:
        request.setHeader("content-encoding", "gzip")
        return gzip.compress(b"x" * 1_000_000)

    site.server.respond = respond
    with pytest.raises(ControlError, match="compressed"):
        await stream(site.cluster())


class _Babbler(Protocol):
    """Answers a request with a head that never ends."""

    sent = 0

    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(b"HTTP/1.1 200 OK\r\n")
        self.transport.registerProducer(self, False)  # type: ignore[attr-defined]

    def resumeProducing(self) -> None:
        assert self.transport is not None
        line = b"X-More: " + b"x" * 8000 + b"\r\n"
        self.sent += len(line)
        type(self).sent = self.sent
        self.transport.write(line)

    def stopProducing(self) -> None:
        pass


async def plain_server(reactor: Any, protocol: Callable[[], Protocol]) -> tuple[Any, Cluster]:
    port = reactor.listenTCP(0, Factory.forProtocol(protocol), interface="127.0.0.1")
    endpoint = model.EndpointConfig(name="a", scheme="http", host="127.0.0.1", port=port.getHost().port)
    return port, Cluster(cluster_config(endpoint), UpstreamContext.of(reactor, real_pools(reactor)))


async def test_a_head_without_end_is_cut_off(reactor: Any, nothing_left_open: None) -> None:
    port, cluster = await plain_server(reactor, _Babbler)
    with pytest.raises(ControlError, match="broke off"):
        await stream(cluster)
    assert 256 * 1024 < _Babbler.sent < 16 * 1024 * 1024  # what the sockets hold besides
    cluster.stop()
    await port.stopListening()
