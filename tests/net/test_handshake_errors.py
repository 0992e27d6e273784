"""Handshakes that fail have words, made with OpenSSL itself: of clients of a listener, and of servers."""

import re
import socket
import ssl
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from OpenSSL import SSL

from mcproxy.net.connect_errors import tls_reason
from mcproxy.net.handshake_errors import of_client, of_server
from tests.net.peers import CA, OTHER_CA, pair, store

Peer = Callable[[socket.socket], object]


def failure_with(connect: Callable[[socket.socket], SSL.Connection], peer: Peer) -> str:
    """Return OpenSSL's reason of a handshake with `peer`, which runs in a thread."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        connection = connect(ours)
        ours.setblocking(True)
        theirs.settimeout(10)
        running = threads.submit(peer, theirs)
        with pytest.raises(SSL.Error) as failed:
            _use(connection)
        ours.close()
        running.exception()
    return tls_reason(failed.value)


def _use(connection: SSL.Connection) -> None:
    """Make the handshake, and read: in TLS 1.3 the server refuses a client's certificate only then."""
    connection.do_handshake()
    connection.recv(1)


def sends(data: bytes) -> Peer:
    def peer(sock: socket.socket) -> None:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    return peer


def tls_client(name: str = "localhost", ca: trustme.CA = CA, *, newest: str = "", ciphers: str = "") -> Peer:
    def peer(sock: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ca.configure_trust(context)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if newest:
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = ssl.TLSVersion[newest]
        if ciphers:
            context.set_ciphers(ciphers)
        context.wrap_socket(sock, server_hostname=name)

    return peer


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (sends(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "the client speaks HTTP without TLS"),
        (
            sends(b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n"),
            "the client takes the listener for an HTTP proxy (CONNECT)",
        ),
        (sends(b"\x00" * 200), "the client does not send TLS"),
        (sends(b"SSH-2.0-OpenSSH_9.2p1\r\n"), "the client does not send TLS"),
        (
            tls_client(ca=OTHER_CA),
            "the client does not trust the authority of the listener's certificate (unknown ca)",
        ),
        (tls_client("other.example"), "the client rejects the listener's certificate (bad certificate)"),
        (
            tls_client(newest="TLSv1_1", ciphers="ALL:@SECLEVEL=0"),
            "the client offers no version of TLS that the listener accepts",
        ),
        (
            tls_client(newest="TLSv1_2", ciphers="AES128-SHA:@SECLEVEL=0"),
            "the client and the listener have no cipher or signature algorithm in common",
        ),
    ],
)
def test_what_a_client_did_wrong(peer: Peer, words: str) -> None:
    cause, todo = of_client(failure_with(store().connection, peer))
    assert cause == words
    assert todo


def tls_server(*, asks: bool = False, newest: str = "") -> Peer:
    def peer(sock: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        CA.issue_cert("localhost").configure_cert(context)
        if asks:
            OTHER_CA.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if newest:
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = ssl.TLSVersion[newest]
        context.wrap_socket(sock, server_side=True)

    return peer


def to_server(certificate: tuple[bytes, bytes] | None = None) -> Callable[[socket.socket], SSL.Connection]:
    def connect(sock: socket.socket) -> SSL.Connection:
        context = SSL.Context(SSL.TLS_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        if certificate is not None:
            chain, key = certificate
            context.use_certificate(load_pem_x509_certificate(chain))
            own = load_pem_private_key(key, None)
            assert isinstance(own, EllipticCurvePrivateKey)
            context.use_privatekey(own)
        connection = SSL.Connection(context, sock)
        connection.set_connect_state()
        return connection

    return connect


@pytest.mark.parametrize(
    ("certificate", "peer", "words"),
    [
        (None, sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "it does not speak TLS"),
        (None, sends(b""), "it closed the connection during the handshake"),
        (None, tls_server(asks=True), "it requires a client certificate (certificate required)"),
        (pair("proxy"), tls_server(asks=True), "it rejects the proxy's client certificate (unknown ca)"),
        (None, tls_server(newest="TLSv1_1"), "it speaks no version of TLS that is accepted here"),
    ],
)
def test_what_a_server_did_not_like(certificate: tuple[bytes, bytes] | None, peer: Peer, words: str) -> None:
    assert of_server(failure_with(to_server(certificate), peer)).startswith(words)


@pytest.mark.parametrize("prefix", ["tlsv1 alert", "sslv3 alert", "tls alert", "ssl/tls alert", "tlsv13 alert"])
def test_alerts_have_words_whatever_openssl_calls_them(prefix: str) -> None:
    assert "unknown ca" in of_client(f"{prefix} unknown ca")[0]
    assert of_client(f"{prefix} decode error")[0] == "the client ended the handshake (decode error)"
    assert of_server(f"{prefix} internal error") == "it has failed internally (internal error)"


def test_a_reason_without_words_stays_as_it_is() -> None:
    assert of_client("some other thing")[0] == "some other thing"
    assert re.search("not trust", of_client("some lib; tlsv1 alert unknown ca")[0]) is not None
