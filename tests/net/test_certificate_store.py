"""Which certificate is shown, and that its context's policy is the same for all names."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
import trustme
from cryptography import x509
from OpenSSL import SSL

from mcproxy.net.certificate_store import CertificateStore
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.net.tls_contexts import PairError
from tests.net.conftest import Serve
from tests.net.peers import OTHER_CA, Recorders, certificate, in_thread, pair, raw, stdlib_context, until

DEFAULT = certificate("default", "default.example.com")
EXACT = certificate("exact", "api.east.example.com")
WILD = certificate("wild", "*.east.example.com")


def build() -> CertificateStore:
    chain, key = pair("rsa.example.com", key_type=trustme.KeyType.RSA)
    rsa = certificate("rsa", "rsa.example.com", chain=chain, key=key)
    return CertificateStore.build([DEFAULT, EXACT, WILD, rsa])


def shown_name(der: bytes) -> str:
    names = x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)[0]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("api.east.example.com", "api.east.example.com"),
        ("API.East.Example.Com", "api.east.example.com"),
        ("other.east.example.com", "*.east.example.com"),
        ("two.labels.east.example.com", "default.example.com"),
        ("east.example.com", "default.example.com"),
        ("unknown.example.org", "default.example.com"),
        ("rsa.example.com", "rsa.example.com"),
        (None, "default.example.com"),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_the_certificate_follows_the_name(
    serve: Serve, recorders: Recorders, asked: str | None, shown: str, version: ssl.TLSVersion
) -> None:
    listener = serve(ListenerSettings(certificates=build()))

    def peer() -> bytes:
        context = stdlib_context(minimum_version=version, maximum_version=version)
        context.check_hostname = False
        with context.wrap_socket(raw(listener), server_hostname=asked) as tls:
            return tls.getpeercert(True) or b""

    assert shown_name(await in_thread(peer)) == shown
    await until(lambda: recorders.all)
    assert recorders.all[0].stream.server_name == (asked.lower() if asked else None)
    await recorders.all[0].lost


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("asked", ["default.example.com", "api.east.example.com"])
@pytest.mark.parametrize("has", [True, False])
async def test_client_certificates_are_asked_for_under_every_name(
    serve: Serve, recorders: Recorders, version: ssl.TLSVersion, asked: str, has: bool, tmp_path: Any
) -> None:
    listener = serve(ListenerSettings(certificates=build()))
    chain, key = pair("client", ca=OTHER_CA)
    (tmp_path / "pair.pem").write_bytes(key + chain)

    def peer() -> None:
        context = stdlib_context(minimum_version=version, maximum_version=version)
        if has:
            context.load_cert_chain(tmp_path / "pair.pem")
        with context.wrap_socket(raw(listener), server_hostname=asked) as tls:
            tls.sendall(b"x")

    seen: list[Any] = []
    recorders.make = lambda: _Noting(seen)
    await in_thread(peer)
    await until(lambda: recorders.all)
    await recorders.all[0].lost
    expected = x509.load_pem_x509_certificate(chain) if has else None
    assert seen == [expected]


class _Noting(Recorders().make):  # type: ignore[misc]
    """A recorder that looks at the certificate while it can."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def connectionMade(self) -> None:
        super().connectionMade()
        self.seen.append(self.stream.peer_certificate())


@pytest.mark.parametrize("asked", ["default.example.com", "api.east.example.com"])
async def test_alpn_is_answered_under_every_name(serve: Serve, recorders: Recorders, asked: str) -> None:
    listener = serve(ListenerSettings(certificates=build()))

    def peer() -> str | None:
        context = stdlib_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with context.wrap_socket(raw(listener), server_hostname=asked) as tls:
            return tls.selected_alpn_protocol()

    assert await in_thread(peer) == "http/1.1"
    await until(lambda: recorders.all)
    await recorders.all[0].lost


async def test_a_minimum_of_1_3_refuses_1_2_under_every_name(serve: Serve, recorders: Recorders) -> None:
    listener = serve(ListenerSettings(certificates=CertificateStore.build([DEFAULT, EXACT], "1.3")))

    def peer(asked: str) -> None:
        context = stdlib_context(maximum_version=ssl.TLSVersion.TLSv1_2)
        with raw(listener) as sock, pytest.raises(ssl.SSLError):
            context.wrap_socket(sock, server_hostname=asked)

    await in_thread(peer, "default.example.com")
    await in_thread(peer, "api.east.example.com")
    await until(lambda: listener.connections == 0)
    assert recorders.all == []


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_sessions_are_never_resumed_by_the_server(
    serve: Serve, recorders: Recorders, maximum: ssl.TLSVersion
) -> None:
    listener = serve(ListenerSettings(certificates=build()))

    def peer() -> bool:
        context = stdlib_context(maximum_version=maximum)
        with context.wrap_socket(raw(listener), server_hostname="default.example.com") as tls:
            tls.sendall(b"x")
            tls.settimeout(0.05)
            with pytest.raises(TimeoutError):
                tls.recv(1)  # takes the tickets in, if any come
            session = tls.session
        with context.wrap_socket(raw(listener), server_hostname="api.east.example.com", session=session) as tls:
            return bool(tls.session_reused)

    assert await in_thread(peer) is False
    await until(lambda: len(recorders.all) == 2 and listener.connections == 0)


async def test_an_exception_in_the_choice_shows_the_default(
    serve: Serve, recorders: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build()

    def fail(self: CertificateStore, name: str | None) -> SSL.Context:
        raise ZeroDivisionError

    monkeypatch.setattr(CertificateStore, "find", fail)
    listener = serve(ListenerSettings(certificates=store))

    def peer() -> bytes:
        context = stdlib_context()
        context.check_hostname = False
        with context.wrap_socket(raw(listener), server_hostname="api.east.example.com") as tls:
            return tls.getpeercert(True) or b""

    assert shown_name(await in_thread(peer)) == "default.example.com"
    await until(lambda: recorders.all)
    await recorders.all[0].lost


def test_the_first_certificate_with_a_name_has_it() -> None:
    second = certificate("second", "default.example.com", "api.east.example.com")
    store = CertificateStore.build([DEFAULT, second])
    assert store.find("default.example.com") is store.default
    assert store.find("api.east.example.com") is not store.default


def test_a_wildcard_is_no_answer_for_a_bare_label() -> None:
    store = CertificateStore.build([DEFAULT, certificate("odd", "*.", chain=pair("odd")[0], key=pair("odd")[1])])
    assert store.find("host") is store.default


def test_a_bad_certificate_is_named() -> None:
    broken = certificate("broken", "x", chain=pair("x")[0], key=pair("y")[1])
    with pytest.raises(PairError, match="certificate broken: the key does not belong"):
        CertificateStore.build([DEFAULT, broken])


def test_a_store_needs_a_certificate() -> None:
    with pytest.raises(ValueError, match="needs a certificate"):
        CertificateStore.build([])


def test_hosts_come_before_the_names_that_certificates_are_for() -> None:
    hosts = {"api.east.example.com": "wild", "*.example.org": "exact", "none.example.com": "unknown"}
    store = CertificateStore.build([DEFAULT, EXACT, WILD], hosts=hosts)
    assert store.find("api.east.example.com") is store.find("other.east.example.com")
    assert store.find("a.example.org") is not store.default
    assert store.find("a.example.org") is not store.find("other.east.example.com")
    assert store.find("none.example.com") is store.default
