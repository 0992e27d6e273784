"""Outgoing connections: what makes one, what prevents one, and in which words."""

from __future__ import annotations

import contextlib
import datetime
import gc
import socket
import ssl
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IResolutionReceiver
from twisted.internet.task import deferLater

from mcproxy.config.model import TCPBind
from mcproxy.net.certificate_store import CertificateStore
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.connect_errors import (
    ConnectError,
    ConnectionRefused,
    ConnectTimeout,
    DNSError,
    TLSError,
)
from mcproxy.net.happy_eyeballs import SILENT
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.net.tls_contexts import MAX_AGE, SessionCache
from tests.net.conftest import Serve
from tests.net.peers import (
    CA,
    OTHER_CA,
    Echo,
    Recorder,
    Recorders,
    certificate,
    client_tls,
    dial,
    in_thread,
    pair,
    reactor,
    tls_settings,
    until,
)
from tests.support.clock import Clock


def port_of(listener: Listener) -> int:
    assert isinstance(listener.address, TCPBind)
    return listener.address.port


async def refused_by(listener: Listener, tls: ClientTLS) -> ConnectError:
    protocol = Recorder()
    with pytest.raises(ConnectError) as caught:
        await connect(reactor(), "127.0.0.1", port_of(listener), protocol, tls=tls, timeout=60)
    assert protocol.events == []
    await until(lambda: listener.connections == 0)
    return caught.value


async def test_it_fires_after_the_protocol_is_connected(serve: Serve) -> None:
    listener = serve(tls_settings())
    client = await dial(listener)
    assert client.events == ["made"]
    assert client.stream.is_tls
    assert client.stream.server_name == "localhost"
    assert client.stream.getPeer() == IPv4Address("TCP", "127.0.0.1", port_of(listener))
    client.stream.loseConnection()
    await client.lost


async def test_host_names_are_resolved(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings())
    client = Recorder()
    await connect(reactor(), "localhost", port_of(listener), client, tls=None, timeout=60)
    client.stream.loseConnection()
    await client.lost


class Resolver:
    """A name resolver with a fixed answer, or none at all."""

    def __init__(self, *hosts: str, answers: bool = True) -> None:
        self.hosts, self.answers = hosts, answers

    def resolveHostName(self, receiver: IResolutionReceiver, name: str, port: int) -> None:
        receiver.resolutionBegan(None)  # type: ignore[arg-type]
        for host in self.hosts:
            receiver.addressResolved(IPv4Address("TCP", host, port))
        if self.answers:
            receiver.resolutionComplete()


class ReactorWith:
    """The running reactor with another name resolver."""

    def __init__(self, resolver: Resolver) -> None:
        self.nameResolver = resolver

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor(), name)


class ClockedReactor(ReactorWith):
    """The running reactor with the timers of a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Resolver())
        self.callLater = clock.callLater


async def test_a_name_without_an_address(serve: Serve) -> None:
    with pytest.raises(DNSError, match=r"the name api\.example has no address"):
        await connect(ReactorWith(Resolver()), "api.example", 1, Recorder(), tls=None, timeout=60)


async def test_the_next_address_is_tried(serve: Serve) -> None:
    listener = serve(ListenerSettings())  # on 127.0.0.1 only
    client = Recorder()
    others = ReactorWith(Resolver("127.0.0.2", "127.0.0.3", "127.0.0.1"))
    await connect(others, "api.example", port_of(listener), client, tls=None, timeout=60)
    assert client.stream.getPeer() == IPv4Address("TCP", "127.0.0.1", port_of(listener))
    client.stream.loseConnection()
    await client.lost


async def test_an_address_that_leads_nowhere_delays_one_connection_and_no_other(serve: Serve) -> None:
    listener = serve(ListenerSettings())
    port = port_of(listener)
    address = (socket.AF_INET, ("127.0.0.2", port))
    hosts = ReactorWith(Resolver("127.0.0.2", "127.0.0.1"))
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(address[1])
        full.listen(0)  # with two that wait for accept(2), the system drops what further clients send
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(address[1])
        try:
            for _ in range(2):
                client = Recorder()
                await connect(hosts, "api.example", port, client, tls=None, timeout=60)
                assert client.stream.getPeer() == IPv4Address("TCP", "127.0.0.1", port)
                assert SILENT.is_silent(address, reactor().seconds())
                client.stream.loseConnection()
                await client.lost
        finally:
            SILENT.forget(address)


async def test_an_address_whose_tls_fails_is_tried_last_the_next_time(serve: Serve) -> None:
    listener = serve(tls_settings())
    hosts = ReactorWith(Resolver("127.0.0.2", "127.0.0.1"))
    port = port_of(listener)
    address = (socket.AF_INET, ("127.0.0.2", port))
    with socket.create_server(address[1]) as other:
        try:
            attempt = connect(hosts, "api.example", port, Recorder(), tls=client_tls(), timeout=60)
            accepted, _ = await in_thread(other.accept)
            accepted.close()
            with pytest.raises(TLSError):
                await attempt
            client = Recorder()
            await connect(hosts, "api.example", port, client, tls=client_tls(), timeout=60)
            client.stream.loseConnection()
            await client.lost
        finally:
            SILENT.forget(address)


async def test_the_last_address_gives_the_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        others = ReactorWith(Resolver("127.0.0.2", "127.0.0.1"))
        with pytest.raises(ConnectionRefused, match=f"api.example:{port} refused the connection"):
            await connect(others, "api.example", port, Recorder(), tls=None, timeout=60)


async def test_a_silent_resolver_is_a_timeout() -> None:
    with pytest.raises(ConnectTimeout, match=r"api\.example:1 took longer than 0\.05 s in resolving its name"):
        await connect(ReactorWith(Resolver(answers=False)), "api.example", 1, Recorder(), tls=None, timeout=0.05)


async def test_a_silent_server_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        clock = Clock()
        attempt = connect(ClockedReactor(clock), "127.0.0.1", port, Recorder(), tls=client_tls(), timeout=5)
        accepted, _ = silent.accept()
        assert await in_thread(accepted.recv, 1), "the handshake begins"
        clock.advance(5)
        with pytest.raises(ConnectTimeout, match=r"took longer than 5 s in the TLS handshake"):
            await attempt
        await in_thread(read_to_the_end, accepted)


async def test_cancelling_closes_the_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        attempt = connect(reactor(), "127.0.0.1", port, Recorder(), tls=client_tls(), timeout=60)
        await deferLater(reactor(), 0.01)
        attempt.cancel()
        with pytest.raises(CancelledError):
            await attempt
        await closed_by_us(silent)


async def closed_by_us(server: socket.socket) -> None:
    """The connection made to the server has ended."""
    accepted, _ = server.accept()
    await in_thread(read_to_the_end, accepted)


def read_to_the_end(sock: socket.socket) -> None:
    with sock, contextlib.suppress(ConnectionResetError):
        sock.settimeout(60)
        while sock.recv(4096):
            pass


async def test_a_refused_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConnectionRefused):
            await connect(reactor(), "127.0.0.1", port, Recorder(), tls=client_tls(), timeout=60)


# -- certificates --------------------------------------------------------------------------------------------


async def test_another_authority_is_not_trusted(serve: Serve) -> None:
    error = await refused_by(serve(tls_settings()), client_tls(ca=OTHER_CA))
    assert isinstance(error, TLSError)
    assert error.cause.endswith("is not trusted: unable to get local issuer certificate")


async def test_an_expired_certificate(serve: Serve) -> None:
    issued = CA.issue_cert("localhost", not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    expired = certificate("old", chain=chain, key=issued.private_key_pem.bytes())
    listener = serve(ListenerSettings(certificates=CertificateStore.build([expired])))
    error = await refused_by(listener, client_tls())
    assert isinstance(error, TLSError)
    assert error.cause == f"the certificate of 127.0.0.1:{port_of(listener)} is not trusted: certificate has expired"


async def test_another_name(serve: Serve) -> None:
    error = await refused_by(serve(tls_settings()), client_tls("kubernetes"))
    assert isinstance(error, TLSError)
    assert error.cause == "the certificate is not for kubernetes; it is for localhost, 127.0.0.1"


async def test_another_address(serve: Serve) -> None:
    error = await refused_by(serve(tls_settings()), client_tls("127.0.0.9"))
    assert "is not for 127.0.0.9" in error.cause


async def test_an_address_as_the_name(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()), name="127.0.0.1")
    await until(lambda: recorders.all)
    assert recorders.all[0].stream.server_name is None, "an address is not sent as SNI (RFC 6066 3)"
    client.stream.loseConnection()
    await recorders.all[0].lost


async def test_a_name_that_no_server_can_have(serve: Serve) -> None:
    error = await refused_by(serve(tls_settings()), client_tls("x" * 64 + ".example"))
    assert isinstance(error, TLSError)


async def test_no_verification_takes_any_chain_and_name(serve: Serve) -> None:
    client = await dial(serve(tls_settings()), name="whatever.example", ca=OTHER_CA, verify=False)
    client.stream.loseConnection()
    await client.lost


async def test_a_server_that_does_not_speak_tls(serve: Serve) -> None:
    factory = Recorders(Echo)
    error = await refused_by(serve(ListenerSettings(), factory=factory), client_tls())
    assert isinstance(error, TLSError)
    assert "TLS handshake with 127.0.0.1:" in error.cause
    await until(lambda: "lost" in factory.all[0].events)


async def test_our_own_certificate_is_shown(serve: Serve, recorders: Recorders) -> None:
    chain, key = pair("proxy")
    client = await dial(serve(tls_settings()), certificate=(chain, key))
    await until(lambda: recorders.all)
    assert recorders.all[0].stream.peer_certificate() == x509.load_pem_x509_certificate(chain)
    client.stream.loseConnection()
    await recorders.all[0].lost


async def test_http_1_1_is_offered(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    assert client.stream._tls.get_alpn_proto_negotiated() == b"http/1.1"  # type: ignore[attr-defined]
    client.stream.loseConnection()
    await client.lost


@pytest.mark.parametrize(
    ("protocols", "offered", "chosen"),
    [
        ((b"h2", b"http/1.1"), (b"h2", b"http/1.1"), b"h2"),
        ((b"h2", b"http/1.1"), (b"http/1.1",), b"http/1.1"),
        ((b"http/1.1",), (b"h2", b"http/1.1"), b"http/1.1"),
    ],
)
async def test_what_is_offered_is_said_for_each_connection(
    serve: Serve, recorders: Recorders, protocols: tuple[bytes, ...], offered: tuple[bytes, ...], chosen: bytes
) -> None:
    store = CertificateStore.build([certificate("only", "localhost")], protocols=protocols)
    listener = serve(ListenerSettings(certificates=store))
    client = Recorder()
    port = listener.address.port  # type: ignore[union-attr]
    await connect(reactor(), "127.0.0.1", port, client, tls=client_tls(), timeout=60, alpn=offered)
    assert client.stream.alpn == chosen
    client.stream.loseConnection()
    await client.lost


async def test_a_server_that_knows_no_alpn_agrees_on_nothing(tmp_path: Path) -> None:
    server = ResumingServer(tmp_path)
    client = Recorder()
    with server.sock:
        serving = in_thread(server.one)
        offered = (b"h2", b"http/1.1")
        await connect(reactor(), "127.0.0.1", server.port, client, tls=client_tls(), timeout=60, alpn=offered)
        assert client.stream.alpn is None
        client.stream.loseConnection()
        await serving
    await client.lost


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_resumed_session_agrees_on_a_protocol_anew(tmp_path: Path, version: ssl.TLSVersion) -> None:
    server = ResumingServer(tmp_path)
    server.context.maximum_version = version
    tls = client_tls(sessions=SessionCache())
    agreed: list[bytes | None] = []
    reused: list[bool] = []
    with server.sock:
        for spoken, offered in (
            (["h2", "http/1.1"], (b"h2", b"http/1.1")),
            (["h2", "http/1.1"], (b"http/1.1",)),
            (["http/1.1"], (b"h2", b"http/1.1")),
            (["h2"], (b"h2", b"http/1.1")),
        ):
            server.context.set_alpn_protocols(spoken)
            serving = in_thread(server.one)
            client = Recorder()
            await connect(reactor(), "127.0.0.1", server.port, client, tls=tls, timeout=60, alpn=offered)
            await until(partial(client.received.startswith, b"hello"))
            agreed.append(client.stream.alpn)
            client.stream.loseConnection()
            await client.lost
            reused.append(await serving)
    assert agreed == [b"h2", b"http/1.1", b"http/1.1", b"h2"]
    assert reused == [False, True, True, True]


# -- sessions ------------------------------------------------------------------------------------------------


class ResumingServer:
    """A TLS server of the standard library that resumes sessions; tells for each connection whether it did."""

    def __init__(self, tmp_path: Path, ca: trustme.CA = CA) -> None:
        chain, key = pair("localhost", ca=ca)
        (tmp_path / "server.pem").write_bytes(key + chain)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(tmp_path / "server.pem")
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.sock.getsockname()[1]

    def one(self) -> bool:
        accepted, _ = self.sock.accept()
        accepted.settimeout(60)
        with self.context.wrap_socket(accepted, server_side=True) as tls:
            with contextlib.suppress(OSError):
                tls.sendall(b"hello")
                tls.recv(1)
            return bool(tls.session_reused)

    async def reused(self, tls: ClientTLS, clock: Any = None) -> bool:
        serving = in_thread(self.one)
        client = Recorder()
        await connect(clock or reactor(), "127.0.0.1", self.port, client, tls=tls, timeout=60)
        await until(lambda: client.received == b"hello")
        client.stream.loseConnection()
        await client.lost
        return await serving


class LaterReactor(ReactorWith):
    """The running reactor, as of some seconds later."""

    def __init__(self, later: float) -> None:
        super().__init__(Resolver())
        self.later = later

    def seconds(self) -> float:
        return reactor().seconds() + self.later  # type: ignore[no-any-return]

    def wall_seconds(self) -> float:
        return reactor().wall_seconds() + self.later  # type: ignore[no-any-return]


async def test_a_session_is_resumed_and_the_name_still_checked(tmp_path: Path) -> None:
    server = ResumingServer(tmp_path)
    tls = client_tls(sessions=SessionCache())
    with server.sock:
        assert [await server.reused(tls), await server.reused(tls), await server.reused(tls)] == [False, True, True]
        elsewhere = ClientTLS(tls.context, "other.example", True, tls.sessions)
        serving = in_thread(server.one)
        with pytest.raises(TLSError, match=r"not for other\.example"):
            await connect(reactor(), "127.0.0.1", server.port, Recorder(), tls=elsewhere, timeout=60)
        assert await serving, "the session was resumed, and the connection given up for the name all the same"


async def test_another_server_with_a_trusted_certificate_of_another_name_is_found_out_despite_a_session(
    tmp_path: Path,
) -> None:
    server = ResumingServer(tmp_path)
    tls = client_tls(sessions=SessionCache())
    with server.sock:
        assert [await server.reused(tls), await server.reused(tls)] == [False, True]
        chain, key = pair("other.example")
        (tmp_path / "server.pem").write_bytes(key + chain)
        server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.context.load_cert_chain(tmp_path / "server.pem")
        serving = in_thread(server.one)
        with pytest.raises(TLSError, match=r"not for localhost; it is for other\.example"):
            await connect(reactor(), "127.0.0.1", server.port, Recorder(), tls=tls, timeout=60)
        assert not await serving, "it does not know the session"


async def test_a_session_is_not_resumed_under_another_context(tmp_path: Path) -> None:
    server = ResumingServer(tmp_path)
    sessions = SessionCache()
    with server.sock:
        assert not await server.reused(client_tls(sessions=sessions))
        assert not await server.reused(client_tls(sessions=sessions))
        serving = in_thread(server.one)
        distrusting = client_tls(ca=OTHER_CA, sessions=sessions)
        with pytest.raises(TLSError, match="unable to get local issuer"):
            await connect(reactor(), "127.0.0.1", server.port, Recorder(), tls=distrusting, timeout=60)
        with pytest.raises(OSError):
            await serving


async def test_a_chain_is_verified_again_after_a_while(tmp_path: Path) -> None:
    server = ResumingServer(tmp_path)
    tls = client_tls(sessions=SessionCache())
    with server.sock:
        assert not await server.reused(tls)
        assert await server.reused(tls, LaterReactor(MAX_AGE - 60))
        assert not await server.reused(tls, LaterReactor(MAX_AGE + 60)), "a resumed session does not renew the time"
        assert await server.reused(tls, LaterReactor(MAX_AGE + 120))


async def test_a_cleared_cache_makes_a_full_handshake(tmp_path: Path) -> None:
    server = ResumingServer(tmp_path)
    sessions = SessionCache()
    tls = client_tls(sessions=sessions)
    with server.sock:
        assert not await server.reused(tls)
        sessions.clear()
        assert not await server.reused(tls)


# -- what is left behind -------------------------------------------------------------------------------------


async def test_a_closed_connection_is_freed_without_the_garbage_collector(serve: Serve, recorders: Recorders) -> None:
    client = await dial(serve(tls_settings()))
    await until(lambda: recorders.all)
    # Compiled streams have no weak references; each alone refers to its socket.
    streams = [weakref.ref(client.stream.socket), weakref.ref(recorders.all[0].stream.socket)]
    client.stream.loseConnection()
    await client.lost
    await recorders.all[0].lost
    await deferLater(reactor(), 0.01)
    gc.disable()
    try:
        for protocol in (client, recorders.all[0]):
            protocol.transport = None
            del protocol.stream
            protocol.on_data = bytearray().extend
        assert [ref() for ref in streams] == [None, None]
    finally:
        gc.enable()
