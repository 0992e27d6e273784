"""The TLS transport against itself and against the standard library's."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Any

import pytest
from cryptography import x509
from OpenSSL import SSL
from OpenSSL._util import lib
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.python.failure import Failure

from mcproxy.net import socket_stream as stream_module
from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.net.socket_stream import HIGH_WATER, READ_BUDGET
from mcproxy.net.tls_stream import RECORD_COST, Handshake, TLSStream
from mcproxy.net.write_queue import RECORD
from tests.net.conftest import Serve
from tests.net.peers import (
    OTHER_CA,
    Echo,
    HalfCloseRecorder,
    Recorder,
    Recorders,
    client_tls,
    dial,
    in_thread,
    pair,
    raw,
    speaking,
    stdlib_context,
    tls_settings,
    until,
)
from tests.support.clock import Clock

PAYLOAD = bytes(range(256)) * 16384  # 4 MiB


class Tap:
    """A push producer that writes whenever it may."""

    def __init__(self, transport: Any, chunk: bytes, count: int) -> None:
        self.transport, self.chunk, self.left = transport, chunk, count
        self.paused = 0
        self.stopped = False
        self.running = False

    def resumeProducing(self) -> None:
        self.running = True
        while self.running and self.left:
            self.left -= 1
            self.transport.write(self.chunk)

    def pauseProducing(self) -> None:
        self.running = False
        self.paused += 1

    def stopProducing(self) -> None:
        self.running = False
        self.stopped = True


class Pull:
    """A pull producer: one chunk each time it is asked."""

    def __init__(self, transport: Any, chunk: bytes, count: int) -> None:
        self.transport, self.chunk, self.left = transport, chunk, count

    def resumeProducing(self) -> None:
        self.transport.write(self.chunk)
        self.left -= 1
        if not self.left:
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:
        self.left = 0


async def test_a_protocol_is_connected_only_after_the_handshake(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings())
    with raw(listener):
        await until(lambda: listener.connections == 1)
        assert recorders.all == []
    await until(lambda: listener.connections == 0)
    assert recorders.all == []


async def test_bytes_go_both_ways(serve: Serve) -> None:
    factory = Recorders(Echo)
    client = await dial(serve(tls_settings(), factory=factory))
    client.stream.write(b"hello")
    await until(lambda: bytes(client.received) == b"hello")
    client.stream.loseConnection()
    await factory.all[0].lost
    await client.lost
    assert isinstance(client.reason, ConnectionDone)
    assert isinstance(factory.all[0].reason, ConnectionDone)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_standard_library_can_talk_to_it(serve: Serve, version: ssl.TLSVersion) -> None:
    listener = serve(tls_settings(), factory=Recorders(Echo))

    def peer() -> tuple[bytes, str | None]:
        context = stdlib_context(minimum_version=version, maximum_version=version)
        with context.wrap_socket(raw(listener), server_hostname="localhost") as tls:
            tls.sendall(b"x" * 100_000)
            got = b""
            while len(got) < 100_000:
                got += tls.recv(65536)
            return got, tls.version()

    got, spoken = await in_thread(peer)
    assert got == b"x" * 100_000
    assert spoken == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]


@pytest.mark.parametrize("alpn", [HTTP1_1, H2])
async def test_large_transfers_arrive_whole_in_both_directions_at_once(
    serve: Serve, recorders: Recorders, alpn: bytes
) -> None:
    client = await dial(serve(speaking(alpn)), alpn=(alpn,))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    client.stream.write(PAYLOAD)
    server.stream.write(PAYLOAD[::-1])
    await until(lambda: len(client.received) == len(server.received) == len(PAYLOAD))
    assert server.received == PAYLOAD
    assert client.received == PAYLOAD[::-1]
    client.stream.abortConnection()
    await server.lost


async def test_small_pieces_queued_behind_a_full_socket_keep_their_order(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    client.stream.pauseProducing()
    sent = bytearray()
    for number in range(60_000):
        piece = b"%d," % number * (1 + number % 40)
        sent += piece
        server.stream.write(piece)
    assert server.stream.queued > HIGH_WATER
    client.stream.resumeProducing()
    await until(lambda: len(client.received) == len(sent))
    assert client.received == sent
    client.stream.abortConnection()
    await server.lost


async def test_a_slow_reader_pauses_the_producer_and_bounds_the_queue(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    server = recorders.all[0].stream
    client.stream.pauseProducing()
    chunk = b"y" * 32768
    tap = Tap(server, chunk, 2000)
    server.registerProducer(tap, True)
    tap.resumeProducing()
    await until(lambda: tap.paused)
    assert tap.left > 0
    assert server.queued <= HIGH_WATER + len(chunk)
    client.stream.resumeProducing()
    await until(lambda: len(client.received) == 2000 * len(chunk))
    assert tap.paused > 1
    server.unregisterProducer()
    client.stream.abortConnection()
    await recorders.all[0].lost


@pytest.mark.parametrize("alpn", [HTTP1_1, H2])
async def test_a_paused_protocol_gets_nothing_and_loses_nothing(
    serve: Serve, recorders: Recorders, alpn: bytes
) -> None:
    client = await dial(serve(speaking(alpn)), alpn=(alpn,))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    calls: list[int] = []

    def one_then_pause(data: bytes) -> None:
        calls.append(len(data))
        server.received.extend(data)
        server.stream.pauseProducing()

    server.on_data = one_then_pause
    client.stream.write(PAYLOAD[:500_000])
    while len(server.received) < 500_000:
        before = len(calls)
        await until(lambda before=before: len(calls) == before + 1)  # type: ignore[misc]
        await until(lambda: True)
        assert len(calls) == before + 1, "handed on while paused"
        server.stream.resumeProducing()
    assert server.received == PAYLOAD[:500_000]
    client.stream.abortConnection()
    await server.lost


@pytest.mark.parametrize("alpn", [HTTP1_1, H2])
async def test_one_turn_hands_on_a_bounded_number_of_bytes(serve: Serve, recorders: Recorders, alpn: bytes) -> None:
    client = await dial(serve(speaking(alpn)), alpn=(alpn,))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    server.stream.pauseProducing()
    client.stream.write(PAYLOAD)
    await until(lambda: client.stream.queued < len(PAYLOAD) - READ_BUDGET)
    server.stream.resumeProducing()
    server.stream.doRead()
    assert 0 < len(server.received) <= READ_BUDGET + RECORD
    client.stream.abortConnection()
    await server.lost


async def test_small_records_of_http_2_are_handed_on_together(serve: Serve, recorders: Recorders) -> None:
    """Go's peers send each frame as a record of its own."""
    client = await dial(serve(speaking(H2)), alpn=(H2,))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    pieces: list[bytes] = []
    server.on_data = pieces.append
    server.stream.pauseProducing()
    for number in range(200):
        client.stream._write(b"%d," % number * 30)  # each its own record
    server.stream.resumeProducing()
    server.stream.doRead()
    sent = b"".join(b"%d," % number * 30 for number in range(200))
    assert b"".join(pieces) == sent
    assert [len(piece) for piece in pieces] == [len(pieces[0]), len(sent) - len(pieces[0])]
    assert RECORD <= len(pieces[0]) < 2 * RECORD
    client.stream.abortConnection()
    await server.lost


async def test_one_turn_reads_a_bounded_number_of_small_records(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(speaking(H2)), alpn=(H2,))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    server.stream.pauseProducing()
    for _ in range(600):
        client.stream._write(b"x")  # each its own record
    server.stream.resumeProducing()
    server.stream.doRead()
    assert len(server.received) == READ_BUDGET // RECORD_COST
    await until(lambda: len(server.received) == 600)
    client.stream.abortConnection()
    await server.lost


@pytest.mark.parametrize("half", [Recorder, HalfCloseRecorder])
async def test_the_end_behind_small_records_comes_after_them(serve: Serve, half: type[Recorder]) -> None:
    factory = Recorders(half)
    client = await dial(serve(speaking(H2), factory=factory), alpn=(H2,))
    await until(lambda: factory.all)
    server = factory.all[0]
    server.stream.pauseProducing()
    for _ in range(3):
        client.stream._write(b"frame")
    client.stream.loseWriteConnection()
    server.stream.resumeProducing()
    server.stream.doRead()
    assert server.received == b"frameframeframe"
    if half is HalfCloseRecorder:
        assert server.events == ["made", "read ended"]
        server.stream.loseConnection()
    await server.lost
    assert isinstance(server.reason, ConnectionDone)


@pytest.mark.parametrize("end", ["abortConnection", "close", "loseConnection"])
async def test_a_protocol_may_end_the_connection_over_what_comes_before_its_end(
    serve: Serve, recorders: Recorders, end: str
) -> None:
    client = await dial(serve(speaking(H2)), alpn=(H2,))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    server.stream.pauseProducing()

    def take_and_end(data: bytes) -> None:
        server.received.extend(data)
        getattr(server.stream, end)()

    server.on_data = take_and_end
    client.stream._write(b"frame")
    client.stream.loseWriteConnection()
    server.stream.resumeProducing()
    server.stream.doRead()
    await server.lost
    assert server.received == b"frame"
    assert server.events == ["made", "lost"]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_pull_producer_never_stalls(serve: Serve, recorders: Recorders, size: int) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    server = recorders.all[0].stream
    server.registerProducer(Pull(server, b"z" * size, 50), False)
    await until(lambda: len(client.received) == 50 * size)
    client.stream.abortConnection()
    await recorders.all[0].lost


async def test_loseConnection_waits_for_a_registered_producer(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    server = recorders.all[0].stream
    server.registerProducer(Pull(server, b"z" * 1000, 50), False)
    server.loseConnection()
    await client.lost
    assert len(client.received) == 50_000
    assert isinstance(client.reason, ConnectionDone)
    await recorders.all[0].lost


async def test_a_producer_is_stopped_when_the_connection_ends(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    tap = Tap(recorders.all[0].stream, b"", 0)
    recorders.all[0].stream.registerProducer(tap, True)
    client.stream.abortConnection()
    await recorders.all[0].lost
    assert tap.stopped
    late = Tap(None, b"", 0)
    recorders.all[0].stream.registerProducer(late, True)
    assert late.stopped


async def test_loseConnection_sends_what_is_queued_first(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    recorders.all[0].stream.write(PAYLOAD)
    recorders.all[0].stream.loseConnection()
    recorders.all[0].stream.write(b"too late")
    await client.lost
    assert client.received == PAYLOAD
    assert isinstance(client.reason, ConnectionDone)
    await recorders.all[0].lost
    assert isinstance(recorders.all[0].reason, ConnectionDone)


async def test_half_close_by_the_client_lets_the_server_answer(serve: Serve) -> None:
    factory = Recorders(HalfCloseRecorder)
    client = await dial(serve(tls_settings(), factory=factory), HalfCloseRecorder())
    client.stream.write(b"question")
    client.stream.loseWriteConnection()
    client.stream.write(b"too late")
    await until(lambda: factory.all and "read ended" in factory.all[0].events)
    server = factory.all[0]
    assert server.received == b"question"
    server.stream.write(PAYLOAD)
    server.stream.loseWriteConnection()
    await client.lost
    await server.lost
    assert client.received == PAYLOAD
    assert client.events == ["made", "write ended", "read ended", "lost"]
    assert server.events == ["made", "read ended", "lost"]
    assert isinstance(client.reason, ConnectionDone)
    assert isinstance(server.reason, ConnectionDone)


async def test_half_close_by_the_server_lets_the_client_go_on(serve: Serve) -> None:
    factory = Recorders(HalfCloseRecorder)
    client = await dial(serve(tls_settings(), factory=factory), HalfCloseRecorder())
    await until(lambda: factory.all)
    server = factory.all[0]
    server.stream.write(PAYLOAD)  # more than the socket takes: close_notify has to wait for it
    server.stream.loseWriteConnection()
    await until(lambda: "read ended" in client.events)
    assert client.received == PAYLOAD
    client.stream.write(b"still here")
    await until(lambda: server.received == b"still here")
    client.stream.loseConnection()
    await client.lost
    await server.lost
    assert isinstance(server.reason, ConnectionDone)


async def test_half_close_does_not_wait_for_a_registered_producer(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()), HalfCloseRecorder())
    await until(lambda: recorders.all)
    server = recorders.all[0].stream
    client.stream.pauseProducing()
    tap = Tap(server, PAYLOAD, 1)
    server.registerProducer(tap, True)
    tap.resumeProducing()
    server.loseWriteConnection()
    assert server.queued
    client.stream.resumeProducing()
    await until(lambda: "read ended" in client.events)
    assert len(client.received) == len(PAYLOAD)
    assert tap.paused == 1
    assert tap.running, "resumed, so that it is not stuck for ever"
    client.stream.loseConnection()
    await recorders.all[0].lost


async def test_a_protocol_without_half_close_is_lost_at_close_notify(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()), HalfCloseRecorder())
    await until(lambda: recorders.all)
    client.stream.loseWriteConnection()
    await recorders.all[0].lost
    assert isinstance(recorders.all[0].reason, ConnectionDone)
    await until(lambda: "lost" in client.events)


async def test_close_notify_is_answered_with_close_notify(serve: Serve) -> None:
    listener = serve(tls_settings())

    def peer() -> None:
        tls = stdlib_context().wrap_socket(raw(listener), server_hostname="localhost")
        tls.unwrap().close()  # raises unless the other side's close_notify comes

    await in_thread(peer)


@pytest.mark.parametrize("half", [Recorder, HalfCloseRecorder])
@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
async def test_a_FIN_without_close_notify_is_a_truncated_stream(serve: Serve, half: type[Recorder], alpn: str) -> None:
    factory = Recorders(half)
    listener = serve(speaking(alpn.encode()), factory=factory)

    def peer() -> None:
        context = stdlib_context()
        context.set_alpn_protocols([alpn])
        tls = context.wrap_socket(raw(listener), server_hostname="localhost")
        tls.sendall(b"part")
        tls.shutdown(socket.SHUT_RDWR)  # the socket's, without a word of TLS
        tls.close()

    await in_thread(peer)
    await until(lambda: factory.all)
    await factory.all[0].lost
    assert factory.all[0].received == b"part"
    assert isinstance(factory.all[0].reason, ConnectionLost)
    assert "read ended" not in factory.all[0].events


async def test_abort_resets_the_connection_and_notifies_the_protocol_later(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    server.stream.write(PAYLOAD)
    server.stream.abortConnection()
    assert not server.reason
    await server.lost
    assert isinstance(server.reason, ConnectionAborted)
    await client.lost
    assert isinstance(client.reason, ConnectionLost)
    assert len(client.received) < len(PAYLOAD)


async def test_writing_to_a_peer_that_has_gone_ends_the_connection(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    server = recorders.all[0]
    server.stream.pauseProducing()
    client.stream.abortConnection()
    await client.lost
    for _ in range(100):
        server.stream.write(PAYLOAD)
    await server.lost
    assert isinstance(server.reason, ConnectionLost)


async def test_an_exception_of_the_protocol_closes_its_connection(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    server = recorders.all[0]

    def fail(data: bytes) -> None:
        raise ZeroDivisionError

    server.on_data = fail
    client.stream.write(b"x")
    await server.lost
    assert isinstance(server.reason, ZeroDivisionError)
    await client.lost


async def test_a_peer_that_never_reads_the_last_bytes_is_given_up(
    serve: Serve, recorders: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "FLUSH_STALL", 0.05)
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    client.stream.pauseProducing()
    recorders.all[0].stream.write(PAYLOAD * 4)
    recorders.all[0].stream.loseConnection()
    await recorders.all[0].lost
    assert isinstance(recorders.all[0].reason, ConnectionAborted)
    client.stream.resumeProducing()
    await client.lost


async def test_a_peer_that_does_not_close_after_us_is_waited_for_only_shortly(
    serve: Serve, recorders: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "LINGER", 0.05)
    client = await dial(serve(tls_settings()), HalfCloseRecorder())
    await until(lambda: recorders.all)
    recorders.all[0].stream.loseConnection()
    await recorders.all[0].lost
    assert isinstance(recorders.all[0].reason, ConnectionDone)
    client.stream.loseConnection()
    await client.lost


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_old_versions_are_refused(serve: Serve, recorders: Recorders, version: ssl.TLSVersion) -> None:
    listener = serve(tls_settings())
    context = stdlib_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version

    def peer() -> None:
        with raw(listener) as sock, pytest.raises((ssl.SSLError, ConnectionResetError)):
            context.wrap_socket(sock, server_hostname="localhost")

    await in_thread(peer)
    await until(lambda: listener.connections == 0)
    assert recorders.all == []


async def test_renegotiation_is_refused(serve: Serve) -> None:
    factory = Recorders(Echo)
    listener = serve(tls_settings(), factory=factory)

    def peer() -> bytes:
        context = SSL.Context(SSL.TLS_METHOD)
        context.set_max_proto_version(SSL.TLS1_2_VERSION)
        sock = raw(listener)
        sock.setblocking(True)
        tls = SSL.Connection(context, sock)
        tls.set_connect_state()
        tls.do_handshake()
        tls.renegotiate()
        with pytest.raises(SSL.Error) as caught:
            tls.do_handshake()
        sock.close()
        return str(caught.value).encode()

    assert b"no renegotiation" in await in_thread(peer)
    await until(lambda: listener.connections == 0)


async def test_garbage_instead_of_a_handshake_is_closed(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings())

    def peer() -> None:
        with raw(listener) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP" not in sock.recv(1000)

    await in_thread(peer)
    await until(lambda: listener.connections == 0)
    assert recorders.all == []


async def test_garbage_after_the_handshake_ends_the_connection(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings())

    def peer() -> None:
        tls = stdlib_context().wrap_socket(raw(listener), server_hostname="localhost")
        with socket.socket(fileno=tls.detach()) as below:
            below.settimeout(60)
            below.sendall(b"\x17\x03\x03\x00\x20" + b"\0" * 32)
            below.recv(1000)

    await in_thread(peer)
    await until(lambda: recorders.all)
    await recorders.all[0].lost
    assert isinstance(recorders.all[0].reason, ConnectionLost)


async def test_a_handshake_that_takes_too_long_is_ended(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings(handshake_timeout=0.05))

    def peer() -> bytes:
        with raw(listener) as sock:
            return sock.recv(10)

    assert await in_thread(peer) == b""
    assert listener.connections == 0
    assert recorders.all == []


def test_a_handshakes_time_limit_is_its_own_and_ends_with_it() -> None:
    clock = Clock()
    ours, theirs = socket.socketpair()
    results: list[Exception | None] = []
    tls = SSL.Connection(SSL.Context(SSL.TLS_METHOD), ours)
    tls.set_accept_state()
    ours.setblocking(False)
    with ours, theirs:
        handshake = Handshake(FakeReactor(clock), ours, tls, 10, results.append)
        handshake.start()
        clock.advance(9.9)
        assert results == []
        clock.advance(0.2)
        assert isinstance(results[0], ConnectionAborted)
        handshake.connectionLost(Failure(ConnectionLost()))  # type: ignore[no-untyped-call]
        assert len(results) == 1
        assert clock.getDelayedCalls() == []


class FakeReactor:
    """A clock that knows who wants to read and write."""

    nameResolver: Any = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.readers: list[Any] = []
        self.writers: list[Any] = []
        self.addReader = self.readers.append
        self.addWriter = self.writers.append
        self.removeReader = self.readers.remove
        self.removeWriter = self.writers.remove
        self.callLater = clock.callLater
        self.seconds = clock.seconds


async def test_the_clients_certificate_is_shown_whatever_its_chain(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()), certificate=pair("someone", ca=OTHER_CA))
    await until(lambda: recorders.all)
    server = recorders.all[0].stream
    assert isinstance(server, TLSStream)
    shown = server.peer_certificate()
    assert shown is not None
    assert shown.issuer == _subject(OTHER_CA)
    assert server.is_tls
    assert server.server_name == "localhost"
    client.stream.abortConnection()
    await recorders.all[0].lost
    assert server.peer_certificate() is None


async def test_the_clients_intermediate_certificates_are_shown_beside_it(serve: Serve, recorders: Recorders) -> None:
    issued = OTHER_CA.create_child_ca().issue_cert("someone")
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    client = await dial(serve(tls_settings()), certificate=(chain, issued.private_key_pem.bytes()))
    await until(lambda: recorders.all)
    server = recorders.all[0].stream
    assert isinstance(server, TLSStream)
    assert [server.peer_certificate(), *server.peer_chain()] == x509.load_pem_x509_certificates(chain)
    assert len(server.peer_chain()) == 1
    client.stream.abortConnection()
    await recorders.all[0].lost
    assert server.peer_chain() == []


def _subject(ca: Any) -> Any:
    return x509.load_pem_x509_certificate(ca.cert_pem.bytes()).subject


async def test_both_sides_stay_correct_under_many_connections(serve: Serve) -> None:
    listener = serve(tls_settings(), factory=Recorders(Echo))
    failures: list[str] = []

    def peer(number: int) -> None:
        context = stdlib_context()
        with context.wrap_socket(raw(listener), server_hostname="localhost") as tls:
            for turn in range(20):
                message = b"%d/%d." % (number, turn) * 500
                tls.sendall(message)
                got = b""
                while len(got) < len(message):
                    got += tls.recv(65536)
                if got != message:
                    failures.append(f"{number}/{turn}")

    def all_peers() -> None:
        threads = [threading.Thread(target=peer, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    await in_thread(all_peers)
    assert failures == []
    await until(lambda: listener.connections == 0)


def test_client_tls_needs_the_same_verification_as_its_context() -> None:
    assert client_tls(verify=False).context.get_verify_mode() == SSL.VERIFY_NONE
    assert client_tls().context.get_verify_mode() == SSL.VERIFY_PEER


def test_the_private_names_of_pyopenssl_that_the_hot_path_uses_are_there() -> None:
    connection = SSL.Connection(SSL.Context(SSL.TLS_METHOD), None)
    assert connection._ssl
    assert callable(connection._raise_ssl_error)
    assert callable(lib.SSL_read)
    assert callable(lib.SSL_write)
    assert callable(lib.ERR_clear_error)
    assert callable(lib.SSL_get_error)
    assert lib.SSL_ERROR_WANT_READ == 2
