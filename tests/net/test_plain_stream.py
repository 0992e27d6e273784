"""Plain streams: the same life as TLS, with FIN for close_notify."""

from __future__ import annotations

import socket
import struct

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher

from mcproxy.config.model import TCPBind
from mcproxy.net.connect import connect
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.net.socket_stream import HIGH_WATER
from tests.net.conftest import Serve
from tests.net.peers import HalfCloseRecorder, Recorder, Recorders, in_thread, raw, reactor, until

PAYLOAD = bytes(range(256)) * 16384


async def joined(listener: Listener, protocol: Recorder | None = None) -> Recorder:
    client = protocol or Recorder()
    assert isinstance(listener.address, TCPBind)
    await connect(reactor(), "127.0.0.1", listener.address.port, client, tls=None, timeout=60)
    return client


async def test_large_transfers_arrive_whole_in_both_directions_at_once(serve: Serve, recorders: Recorders) -> None:
    client = await joined(serve(ListenerSettings()))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    client.stream.writeSequence([PAYLOAD[:10], PAYLOAD[10:20]])
    client.stream.writeSequence([PAYLOAD[20:100_000], PAYLOAD[100_000:]])
    server.stream.write(PAYLOAD[::-1])
    await until(lambda: len(client.received) == len(server.received) == len(PAYLOAD))
    assert server.received == PAYLOAD
    assert client.received == PAYLOAD[::-1]
    client.stream.loseConnection()
    await server.lost
    await client.lost
    assert isinstance(client.reason, ConnectionDone)
    assert isinstance(server.reason, ConnectionDone)


async def test_half_close_each_way(serve: Serve) -> None:
    factory = Recorders(HalfCloseRecorder)
    listener = serve(ListenerSettings(), factory=factory)

    def peer() -> bytes:
        with raw(listener) as sock:
            sock.sendall(b"question")
            sock.shutdown(socket.SHUT_WR)
            got = b""
            while data := sock.recv(65536):
                got += data
            return got

    answer = in_thread(peer)
    await until(lambda: factory.all and "read ended" in factory.all[0].events)
    server = factory.all[0]
    assert server.received == b"question"
    server.stream.write(PAYLOAD)
    server.stream.loseWriteConnection()
    assert await answer == PAYLOAD
    await server.lost
    assert isinstance(server.reason, ConnectionDone)


async def test_a_protocol_without_half_close_is_lost_at_FIN(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings())
    with raw(listener) as sock:
        sock.shutdown(socket.SHUT_WR)
        await until(lambda: recorders.all)
        await recorders.all[0].lost
    assert isinstance(recorders.all[0].reason, ConnectionDone)


async def test_a_reset_is_a_lost_connection(serve: Serve) -> None:
    factory = Recorders(HalfCloseRecorder)
    listener = serve(ListenerSettings(), factory=factory)
    sock = raw(listener)
    await until(lambda: factory.all)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    await factory.all[0].lost
    assert isinstance(factory.all[0].reason, ConnectionLost)


async def test_what_the_peer_sent_before_it_went_is_still_handed_on(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings())
    sock = raw(listener)
    await until(lambda: recorders.all)
    server = recorders.all[0]
    server.stream.pauseProducing()
    sock.sendall(b"413 too large")
    sock.close()
    server.stream.resumeProducing()
    for _ in range(3):
        server.stream.write(b"x" * 100)
    await server.lost
    assert server.received == b"413 too large"


async def test_the_peer_gets_the_last_bytes_though_it_is_still_sending(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings())

    def peer() -> bytes:
        with raw(listener) as sock:
            sock.sendall(b"x" * 200_000)
            return sock.recv(100)

    answer = in_thread(peer)
    await until(lambda: recorders.all)
    server = recorders.all[0]
    server.stream.pauseProducing()
    server.stream.write(b"431 no more")
    server.stream.loseConnection()
    assert await answer == b"431 no more"
    await server.lost


@pytest.mark.parametrize("pauses", [True, False])
async def test_a_producer_registered_above_the_mark_is_paused_at_once(
    serve: Serve, recorders: Recorders, pauses: bool
) -> None:
    client = await joined(serve(ListenerSettings()))
    await until(lambda: recorders.all)
    client.stream.pauseProducing()
    server = recorders.all[0].stream
    if pauses:
        while server.queued <= HIGH_WATER:
            server.write(PAYLOAD)

    class Producer:
        calls: list[str] = []

        def pauseProducing(self) -> None:
            self.calls.append("pause")

        def resumeProducing(self) -> None:
            self.calls.append("resume")

        def stopProducing(self) -> None:
            self.calls.append("stop")

    Producer.calls = []
    server.registerProducer(Producer(), True)
    assert Producer.calls == (["pause"] if pauses else [])
    with pytest.raises(RuntimeError):
        server.registerProducer(Producer(), True)
    client.stream.resumeProducing()
    if pauses:
        await until(lambda: Producer.calls == ["pause", "resume"])
    client.stream.abortConnection()
    await recorders.all[0].lost
    assert Producer.calls[-1] == "stop"


@pytest.mark.parametrize("end", ["loseConnection", "loseWriteConnection", "abortConnection"])
async def test_what_is_written_after_the_end_is_ignored(serve: Serve, recorders: Recorders, end: str) -> None:
    client = await joined(serve(ListenerSettings()))
    await until(lambda: recorders.all)
    server = recorders.all[0].stream
    server.write(b"before")
    getattr(server, end)()
    server.write(b"after")
    server.writeSequence([b"after"])
    await recorders.all[0].lost
    server.write(b"after")
    await client.lost
    assert bytes(client.received) == (b"" if end == "abortConnection" else b"before")


class Collecting(Recorder):
    """A protocol that collects output during a turn, as the HTTP/2 engines do."""

    def __init__(self) -> None:
        super().__init__()
        self.collected: list[bytes] = []
        self.flushed = 0
        self.failing = False

    def say(self, data: bytes) -> None:
        self.collected.append(data)
        self.stream.flush_later(self)

    def flush_coalesced(self) -> None:
        self.flushed += 1
        if self.failing:
            raise ZeroDivisionError
        collected, self.collected = self.collected, []
        self.stream.write(b"".join(collected))


@pytest.mark.parametrize("lean", [True, False])
async def test_what_a_protocol_collects_goes_out_once_at_the_end_of_the_turn(
    serve: Serve, recorders: Recorders, lean: bool
) -> None:
    client = Collecting()
    await joined(serve(ListenerSettings()), client)
    if not lean:
        client.stream._turn = None  # as on another reactor
    for word in (b"one ", b"two ", b"three"):
        client.say(word)
    assert client.flushed == 0
    await until(lambda: bytes(recorders.all[0].received) == b"one two three")
    assert client.flushed == 1
    client.say(b" four")
    await until(lambda: bytes(recorders.all[0].received) == b"one two three four")
    client.stream.loseConnection()
    await recorders.all[0].lost


async def test_nothing_is_flushed_once_the_connection_is_closed(serve: Serve, recorders: Recorders) -> None:
    client = Collecting()
    await joined(serve(ListenerSettings()), client)
    client.say(b"never sent")
    client.stream.close()
    client.say(b"nor this")
    await recorders.all[0].lost
    assert client.flushed == 0
    assert not recorders.all[0].received


@pytest.mark.parametrize("lean", [True, False])
async def test_a_protocol_that_fails_to_flush_loses_its_connection_alone(
    serve: Serve, recorders: Recorders, lean: bool
) -> None:
    listener = serve(ListenerSettings())
    client, other = Collecting(), Collecting()
    await joined(listener, client)
    await joined(listener, other)
    if not lean:
        client.stream._turn = other.stream._turn = None
    observer = EventLoggingObserver()
    globalLogPublisher.addObserver(observer)
    try:
        client.failing = True
        client.say(b"x")
        other.say(b"still here")
        await client.lost
    finally:
        globalLogPublisher.removeObserver(observer)
    assert [event["log_failure"].type for event in observer if "log_failure" in event] == [ZeroDivisionError]
    await until(lambda: any(bytes(each.received) == b"still here" for each in recorders.all))
    other.stream.loseConnection()
    for each in recorders.all:
        await each.lost
