"""Listeners: who gets in, with which address, under which settings, and what a reload or a stop changes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import LogLevel, globalLogPublisher

from mcproxy.config.model import Limits, TCPBind, UnixBind
from mcproxy.net.certificate_store import CertificateStore
from mcproxy.net.connect import connect
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.net.plain_stream import PlainStream
from tests.net.conftest import Serve
from tests.net.peers import (
    Echo,
    Recorder,
    Recorders,
    certificate,
    dial,
    in_thread,
    raw,
    reactor,
    speaking,
    stdlib_context,
    store,
    tls_settings,
    until,
)
from tests.support.logged import captured_logs

LOCALHOST = (ip_network("127.0.0.0/8"),)
ELSEWHERE = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
HEADER_1 = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 6443\r\n"
HEADER_2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0f\xc0\x00\x02\x07\xc0\x00\x02\x01\x9c\x40\x19\x2b\x04\x00\x00"  # with a TLV
)


def plain(**kw: Any) -> ListenerSettings:
    return ListenerSettings(**kw)


async def test_the_address_is_the_one_the_system_chose(serve: Serve) -> None:
    address = serve(plain()).address
    assert isinstance(address, TCPBind)
    assert address.host == "127.0.0.1"
    assert address.port > 0


async def test_plain_connections_have_no_tls_traits(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain())
    with raw(listener) as sock:
        await until(lambda: recorders.all)
        stream = recorders.all[0].stream
        assert not stream.is_tls
        assert stream.server_name is None
        assert stream.peer_certificate() is None
        assert stream.getPeer() == stream.direct_peer == IPv4Address("TCP", *sock.getsockname())
        assert stream.getHost() == IPv4Address("TCP", *sock.getpeername())
    await recorders.all[0].lost


async def test_accepted_sockets_do_not_delay_and_are_probed(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    for sock in (client.stream.socket, recorders.all[0].stream.socket):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    client.stream.abortConnection()
    await recorders.all[0].lost


# -- PROXY protocol ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [HEADER_1, HEADER_2], ids=["v1", "v2"])
@pytest.mark.parametrize("step", [1, 1000])
async def test_the_header_comes_before_tls_and_gives_the_clients_address(
    serve: Serve, header: bytes, step: int
) -> None:
    factory = Recorders(Echo)
    listener = serve(ListenerSettings(certificates=store(), proxy_protocol_from=LOCALHOST), factory=factory)

    def peer() -> tuple[bytes, int]:
        sock = raw(listener)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(header), step):
            sock.sendall(header[at : at + step])
        with stdlib_context().wrap_socket(sock, server_hostname="localhost") as tls:
            tls.sendall(b"hello")
            return tls.recv(10), tls.getsockname()[1]

    got, port = await in_thread(peer)
    assert got == b"hello"
    assert factory.all[0].stream.getPeer() == IPv4Address("TCP", "192.0.2.7", 40000)
    assert factory.all[0].stream.direct_peer == IPv4Address("TCP", "127.0.0.1", port)
    await factory.all[0].lost


async def test_what_follows_the_header_at_once_is_not_lost(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain(proxy_protocol_from=LOCALHOST))
    with raw(listener) as sock:
        sock.sendall(HEADER_1 + b"GET /")
        await until(lambda: recorders.all and recorders.all[0].received == b"GET /")
    await recorders.all[0].lost


async def test_a_local_header_leaves_the_peers_own_address(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain(proxy_protocol_from=LOCALHOST))
    with raw(listener) as sock:
        sock.sendall(b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00")
        await until(lambda: recorders.all)
        assert recorders.all[0].stream.getPeer() == IPv4Address("TCP", *sock.getsockname())
    await recorders.all[0].lost


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00", b"PROXY TCP4 x\r\n", b""])
async def test_a_connection_without_the_required_header_is_refused(
    serve: Serve, recorders: Recorders, first: bytes
) -> None:
    listener = serve(plain(proxy_protocol_from=LOCALHOST))
    with raw(listener) as sock:
        sock.sendall(first)
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert await in_thread(sock.recv, 10) == b""
    assert listener.connections == 0
    assert recorders.all == []


async def test_a_header_that_does_not_come_in_time_is_not_waited_for(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain(proxy_protocol_from=LOCALHOST, limits=Limits(handshake_timeout=0.05)))
    with raw(listener) as sock:
        sock.sendall(HEADER_1[:20])
        with contextlib.suppress(ConnectionResetError):
            assert await in_thread(sock.recv, 10) == b""
    assert listener.connections == 0
    assert recorders.all == []


async def test_other_peers_are_served_without_a_header(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings(certificates=store(), proxy_protocol_from=ELSEWHERE))
    client = await dial(listener)
    await until(lambda: recorders.all)
    client.stream.abortConnection()
    await recorders.all[0].lost


async def test_a_header_of_other_peers_is_refused(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings(certificates=store(), proxy_protocol_from=ELSEWHERE))
    with raw(listener) as sock:
        sock.sendall(HEADER_1)
        with contextlib.suppress(ConnectionResetError):
            await in_thread(sock.recv, 100)
    await until(lambda: listener.connections == 0)
    assert recorders.all == []


# -- what is logged of connections that come to nothing -------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "settings", "event", "cause", "counted"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", {}, "tls_handshake_failed", "the client speaks HTTP without TLS", "failed"),
        (
            b"GET / HTTP/1.1\r\n\r\n",
            {"proxy_protocol_from": LOCALHOST},
            "proxy_header_missing",
            "no PROXY header",
            "proxy",
        ),
        (b"", {}, "connection_abandoned", "the peer closed the connection", "abandoned"),
        (b"", {"proxy_protocol_from": LOCALHOST}, "connection_abandoned", "the peer closed the connection", ""),
    ],
)
async def test_a_connection_that_comes_to_nothing_has_a_line(
    serve: Serve, first: bytes, settings: dict[str, Any], event: str, cause: str, counted: str
) -> None:
    listener = serve(ListenerSettings(name="public", certificates=store(), **settings))
    with captured_logs() as events, raw(listener) as sock:
        sock.sendall(first)
        sock.shutdown(socket.SHUT_WR)
        await until(lambda: len(events) > 0)
    (line,) = events
    assert (line["event"], line["listener"], line["client"], line["cause"]) == (event, "public", "127.0.0.1", cause)
    assert line["log_level"] is (LogLevel.debug if event == "connection_abandoned" else LogLevel.info)
    assert ("todo" in line) is (event != "connection_abandoned")
    assert listener.counts == {"accepted": 1, **({counted: 1} if counted else {})}


async def test_a_handshake_that_takes_too_long_has_a_line(serve: Serve) -> None:
    listener = serve(ListenerSettings(name="public", certificates=store(), limits=Limits(handshake_timeout=0.05)))
    with captured_logs() as events, raw(listener):
        await until(lambda: len(events) > 0)
    assert [(line["event"], line["cause"]) for line in events] == [
        ("tls_handshake_failed", "the TLS handshake took too long")
    ]


# -- limits --------------------------------------------------------------------------------------------------


async def test_connections_beyond_the_limit_are_closed_and_logged_once(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings(connections=2))
    observer = EventLoggingObserver()
    globalLogPublisher.addObserver(observer)
    try:
        clients = [await dial(listener), await dial(listener)]
        for _ in range(2):
            with raw(listener) as third:
                assert await in_thread(third.recv, 1) == b""
    finally:
        globalLogPublisher.removeObserver(observer)
    assert listener.connections == 2
    assert listener.counts == {"accepted": 4, "ok": 2, "connections": 2}
    assert len([event for event in observer if event.get("event") == "listener_limit_reached"]) == 1
    clients[0].stream.abortConnection()
    await until(lambda: listener.connections == 1)
    clients.append(await dial(listener))
    await until(lambda: len(recorders.all) == 3)
    for client in clients[1:]:
        client.stream.abortConnection()
    await until(lambda: listener.connections == 0)


def connected(listener: Listener, source: str = "127.0.0.1") -> socket.socket:
    """A plain connection from an address of this machine."""
    address = listener.address
    assert isinstance(address, TCPBind)
    return socket.create_connection((address.host, address.port), source_address=(source, 0), timeout=60)


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


async def idle(recorders: Recorders, count: int, *, since: float = 0.0) -> None:
    """Wait for `count` connections; those that are new are idle, each longer than the next."""
    await until(lambda: len(recorders.all) == count)
    for number, recorder in enumerate(recorders.all):
        if recorder.idle_since is None:
            recorder.idle_since = since + number


async def test_longest_idle_connection_of_the_client_with_most_makes_room(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain(limits=Limits(connections=6)))
    with contextlib.ExitStack() as stack:
        victim = [stack.enter_context(connected(listener)) for _ in range(2)]
        await idle(recorders, 2)
        flood = [stack.enter_context(connected(listener, "127.0.0.2")) for _ in range(4)]
        await idle(recorders, 6, since=100.0)
        newcomer = stack.enter_context(connected(listener))
        await until(lambda: len(recorders.all) == 7)
        await until(lambda: not is_open(flood[0]))
        assert all(map(is_open, [*victim, *flood[1:], newcomer]))
        assert listener.connections == 6
        for recorder in recorders.all[3:6]:
            recorder.idle_since = None  # the rest of the flood works: then the two of the other client are looked at
        recorders.all[6].idle_since = None
        last = stack.enter_context(connected(listener, "127.0.0.3"))
        await until(lambda: len(recorders.all) == 8)
        await until(lambda: not is_open(victim[0]))
        assert all(map(is_open, [victim[1], *flood[1:], newcomer, last]))
    await until(lambda: listener.connections == 0)


async def test_connections_in_their_handshake_make_room_too(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings(connections=20))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(listener, "127.0.0.2")) for _ in range(20)]
        await until(lambda: listener.connections == 20)
        client = await dial(listener)
        await until(lambda: not all(map(is_open, silent)))
        assert sum(map(is_open, silent)) == 19
        client.stream.abortConnection()
    await until(lambda: listener.connections == 0)


async def test_connections_per_client(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain(limits=Limits(connections_per_client=2)))
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(connected(listener, "127.0.0.2")) for _ in range(2)]
        other = stack.enter_context(connected(listener))
        await until(lambda: len(recorders.all) == 3)
        refused = stack.enter_context(connected(listener, "127.0.0.2"))  # none is idle
        assert await in_thread(refused.recv, 1) == b""
        recorders.all[1].idle_since = 5.0
        third = stack.enter_context(connected(listener, "127.0.0.2"))
        await until(lambda: len(recorders.all) == 4)
        await until(lambda: not all(map(is_open, first)))
        assert is_open(other)
        assert is_open(third)
        assert listener.connections == 3
    await until(lambda: listener.connections == 0)


async def test_client_of_a_proxy_header_is_counted_by_the_address_in_it(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain(proxy_protocol_from=LOCALHOST, limits=Limits(connections_per_client=1)))
    with contextlib.ExitStack() as stack:
        for client, admitted in (("192.0.2.1", True), ("192.0.2.2", True), ("192.0.2.1", False)):
            before = len(recorders.all)
            sock = stack.enter_context(connected(listener))
            sock.sendall(b"PROXY TCP4 %b 192.0.2.9 1 2\r\n" % client.encode())
            if admitted:
                await until(lambda before=before: len(recorders.all) == before + 1)  # type: ignore[misc]
            else:
                assert await in_thread(sock.recv, 1) == b""
        assert listener.connections == 2
    await until(lambda: listener.connections == 0)


async def test_a_limit_of_zero_is_none(serve: Serve) -> None:
    listener = serve(tls_settings(connections=0))
    client = await dial(listener)
    client.stream.abortConnection()
    await until(lambda: listener.connections == 0)


async def test_out_of_descriptors_it_waits_and_recovers(serve: Serve, recorders: Recorders) -> None:
    listener = serve(plain())
    acceptor = listener._acceptors[0]
    real = acceptor.sock
    descriptor = real.fileno
    calls = []

    class Exhausted:
        def accept(self) -> Any:
            calls.append(1)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        fileno = staticmethod(descriptor)

    acceptor.sock = Exhausted()  # type: ignore[assignment]
    with raw(listener_address(real)):
        await until(lambda: calls)
        await in_thread(lambda: None)
        assert len(calls) == 1
        acceptor.sock = real
        await until(lambda: recorders.all)
    await recorders.all[0].lost


class _At:
    def __init__(self, sock: socket.socket) -> None:
        self.address = TCPBind(*sock.getsockname())


def listener_address(sock: socket.socket) -> Any:
    return _At(sock)


# -- reload and stop -----------------------------------------------------------------------------------------


async def test_stop_accepting_keeps_the_connections(serve: Serve) -> None:
    factory = Recorders(Echo)
    listener = serve(tls_settings(), factory=factory)
    client = await dial(listener)
    await until(lambda: factory.all)
    address = listener.address
    listener.stop_accepting()
    assert not listener.accepting
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", address.port), 1)  # type: ignore[union-attr]
    client.stream.write(b"still")
    await until(lambda: client.received == b"still")
    assert listener.connections == 1
    assert [stream.protocol for stream in listener] == factory.all
    client.stream.loseConnection()
    await factory.all[0].lost
    assert listener.connections == 0
    listener.stop_accepting()


async def test_arrivals_can_be_dropped(serve: Serve) -> None:
    listener = serve(ListenerSettings(certificates=store(), proxy_protocol_from=LOCALHOST))
    with raw(listener) as one, raw(listener) as two:
        two.sendall(HEADER_1)
        await until(lambda: listener.connections == 2)
        listener.drop_pending()
        assert listener.connections == 0
        for sock in (one, two):
            with contextlib.suppress(ConnectionResetError):
                assert await in_thread(sock.recv, 1) == b""


async def test_update_changes_the_certificate_of_new_connections_only(serve: Serve) -> None:
    factory = Recorders(Echo)
    listener = serve(tls_settings(), factory=factory)
    before = await dial(listener)
    old = before.stream.peer_certificate()
    new_store = CertificateStore.build([certificate("new", "localhost", "renewed.example.com")])
    listener.update(ListenerSettings(certificates=new_store))
    after = await dial(listener, name="renewed.example.com")
    assert after.stream.peer_certificate() != old
    before.stream.write(b"same")
    await until(lambda: before.received == b"same")
    for client in (before, after):
        client.stream.loseConnection()
        await client.lost
    await until(lambda: listener.connections == 0)


async def test_update_may_turn_tls_off(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings())
    listener.update(plain())
    with raw(listener) as sock:
        sock.sendall(b"plain")
        await until(lambda: recorders.all and recorders.all[0].received == b"plain")
    await recorders.all[0].lost


async def test_a_factory_may_refuse_or_fail(serve: Serve) -> None:
    class Refusing(Recorders):
        def build(self, transport: Any) -> Any:
            self.all.append(Recorder())
            if len(self.all) == 2:
                raise ZeroDivisionError
            return None

    factory = Refusing()
    listener = serve(plain(), factory=factory)
    for count in (1, 2):
        with raw(listener) as sock, contextlib.suppress(ConnectionResetError):
            assert await in_thread(sock.recv, 1) == b""
        assert len(factory.all) == count
    assert listener.connections == 0


# -- other kinds of socket -----------------------------------------------------------------------------------


async def test_unix_sockets_serve_and_are_removed(serve: Serve, tmp_path: Path) -> None:
    factory = Recorders(Echo)
    path = str(tmp_path / "api.sock")
    listener = serve(plain(), UnixBind(path), factory)
    assert listener.address == UnixBind(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    client = Recorder()
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.setblocking(False)
    PlainStream(reactor(), sock, path).attach(client)
    client.stream.write(b"hello")
    await until(lambda: client.received == b"hello")
    client.stream.getPeer()
    factory.all[0].stream.getPeer()
    client.stream.loseConnection()
    await factory.all[0].lost
    listener.stop_accepting()
    assert not os.path.exists(path)


async def test_tls_over_a_unix_socket(serve: Serve, recorders: Recorders, tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    serve(ListenerSettings(certificates=store(), proxy_protocol_from=LOCALHOST), UnixBind(path))

    def peer() -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(60)
        sock.connect(path)
        with stdlib_context().wrap_socket(sock, server_hostname="localhost") as tls:
            tls.sendall(b"x")

    await in_thread(peer)
    await recorders.all[0].lost
    assert recorders.all[0].received == b"x"


async def test_ipv6_addresses(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings(proxy_protocol_from=ELSEWHERE), TCPBind("::1", 0))
    client = Recorder()
    await connect(reactor(), "::1", listener.address.port, client, tls=None, timeout=60)  # type: ignore[union-attr]
    await until(lambda: recorders.all)
    assert recorders.all[0].stream.getPeer() == client.stream.getHost()
    assert recorders.all[0].stream.getPeer().host == "::1"  # type: ignore[union-attr]
    client.stream.loseConnection()
    await recorders.all[0].lost


async def test_alpn_picks_http_1_1(serve: Serve) -> None:
    listener = serve(tls_settings())

    def peer(*offered: str) -> str | None:
        context = stdlib_context()
        context.set_alpn_protocols(list(offered))
        with context.wrap_socket(raw(listener), server_hostname="localhost") as tls:
            return tls.selected_alpn_protocol()

    assert await in_thread(peer, "h2", "http/1.1") == "http/1.1"
    assert await in_thread(peer, "http/1.0") == "http/1.0"
    with pytest.raises(ssl.SSLError, match=r"(?i)no application protocol"):
        await in_thread(peer, "h2")
    await until(lambda: listener.connections == 0)


H2_ALONE = (b"h2",)
BOTH = (b"h2", b"http/1.1", b"http/1.0")
HTTP1_FIRST = (b"http/1.1", b"http/1.0", b"h2")


@pytest.mark.parametrize(
    ("protocols", "offered", "chosen"),
    [
        (BOTH, ["h2", "http/1.1"], b"h2"),
        (BOTH, ["http/1.1", "h2"], b"h2"),
        (BOTH, ["http/1.1"], b"http/1.1"),
        (BOTH, [], None),
        (HTTP1_FIRST, ["h2", "http/1.1"], b"http/1.1"),
        (HTTP1_FIRST, ["spdy/3", "h2"], b"h2"),
        (H2_ALONE, ["h2", "http/1.1"], b"h2"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_protocol_is_the_first_of_ours_that_the_client_offers(
    serve: Serve,
    recorders: Recorders,
    protocols: tuple[bytes, ...],
    offered: list[str],
    chosen: bytes | None,
    version: ssl.TLSVersion,
) -> None:
    listener = serve(speaking(*protocols))
    assert await in_thread(agree, listener, offered, version) == (chosen.decode() if chosen else None)
    await until(lambda: recorders.all)
    assert recorders.all[0].stream.alpn == chosen
    await recorders.all[0].lost


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_without_a_common_protocol_the_handshake_ends_in_its_alert(
    serve: Serve, recorders: Recorders, version: ssl.TLSVersion
) -> None:
    listener = serve(speaking(*H2_ALONE))
    with pytest.raises(ssl.SSLError, match=r"(?i)no application protocol"):
        await in_thread(agree, listener, ["http/1.1"], version)
    await until(lambda: listener.connections == 0)
    assert recorders.all == []


async def test_a_client_without_ALPN_is_closed_cleanly_where_HTTP_2_is_spoken_alone(
    serve: Serve, recorders: Recorders
) -> None:
    listener = serve(speaking(*H2_ALONE))

    def peer() -> bytes:
        with stdlib_context().wrap_socket(raw(listener), server_hostname="localhost") as tls:
            tls.settimeout(60)
            return tls.recv(1)  # an SSLEOFError without close_notify

    assert await in_thread(peer) == b""
    await until(lambda: listener.connections == 0)
    assert recorders.all == []


async def test_a_connection_keeps_the_protocols_that_its_listener_had_at_its_start(
    serve: Serve, recorders: Recorders
) -> None:
    listener = serve(speaking(*BOTH))
    begun = raw(listener)
    await until(lambda: listener.connections == 1)
    listener.update(speaking(b"http/1.1"))

    def peer() -> str | None:
        context = stdlib_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with context.wrap_socket(begun, server_hostname="localhost") as tls:
            return tls.selected_alpn_protocol()

    assert await in_thread(peer) == "h2"
    assert await in_thread(agree, listener, ["h2", "http/1.1"], ssl.TLSVersion.TLSv1_3) == "http/1.1"
    await until(lambda: len(recorders.all) == 2 and listener.connections == 0)


def agree(listener: Listener, offered: list[str], version: ssl.TLSVersion) -> str | None:
    """Connect with the standard library and return what ALPN has agreed on."""
    context = stdlib_context(minimum_version=version, maximum_version=version)
    if offered:
        context.set_alpn_protocols(offered)
    with context.wrap_socket(raw(listener), server_hostname="localhost") as tls:
        return tls.selected_alpn_protocol()
