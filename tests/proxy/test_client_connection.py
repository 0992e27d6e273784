"""A client's connection: its virtual server, and the identity headers that it keeps between requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

from mcproxy.config import model
from mcproxy.kube.status import StatusError
from mcproxy.proxy import client_connection
from mcproxy.proxy.routes import VirtualServer
from tests.proxy.builders import NOT_ASKED, connection_info, virtual_server


def server(name: str) -> VirtualServer:
    config = model.Server(name=name, listeners=("l",), backend=model.ClusterBackend("east"))
    return virtual_server(config, {"east": NOT_ASKED})


CLIENT = IPv4Address("TCP", "192.0.2.7", 1)


def test_addresses_of_both_families() -> None:
    six = IPv6Address("TCP", "fe80::1%eth0", 1)
    assert connection_info(six, "fe80::/10", "10.0.0.0/8").trusted
    assert not connection_info(six, "10.0.0.0/8").trusted
    assert connection_info(six).address == "fe80::1%eth0"


def test_the_server_of_a_host_is_looked_up_again_only_for_another_host() -> None:
    asked: list[tuple[str | None, bytes]] = []

    def find(name: str | None, host: bytes) -> VirtualServer:
        asked.append((name, host))
        if host == b"nobody":
            raise StatusError(404, "x")
        return server(host.decode())

    client = connection_info(CLIENT, routes=SimpleNamespace(find=find))
    assert [client.server(host).name for host in (b"a", b"a", b"b", b"b", b"a")] == ["a", "a", "b", "b", "a"]
    assert asked == [("sni.test", b"a"), ("sni.test", b"b"), ("sni.test", b"a")]
    for _ in range(2):
        with pytest.raises(StatusError):
            client.server(b"nobody")
    assert client.server(b"a").name == "a"


def test_on_a_plain_listener_no_name_was_asked_for() -> None:
    assert connection_info(CLIENT, tls=False).server_name is None


@pytest.mark.parametrize(
    ("host", "client", "tls", "foreign"),
    [
        (b"evil.test:8001", IPv4Address("TCP", "127.0.0.1", 1), False, True),
        (b"k8s.test:8001", IPv4Address("TCP", "127.0.0.1", 1), False, False),
        (b"localhost:8001", IPv4Address("TCP", "127.0.0.1", 1), False, False),
        (b"[::1]:8001", IPv6Address("TCP", "::1", 1), False, False),
        (b"evil.test", IPv4Address("TCP", "127.0.0.1", 1), True, False),
        (b"evil.test", UNIXAddress(b""), False, False),
    ],
)
def test_an_unknown_host_is_foreign_without_tls(host: bytes, client: Any, tls: bool, foreign: bool) -> None:
    routes = SimpleNamespace(find=lambda name, host: server("k8s"), names=lambda host: host.startswith(b"k8s.test"))
    known = connection_info(client, tls=tls, routes=routes)
    known.server(host)
    assert known.foreign_host is foreign


def test_what_is_presented_is_sorted_again_only_for_other_fields() -> None:
    client = connection_info(CLIENT)
    alice, bob = (b"Authorization: Bearer %b\r\n" % name for name in (b"alice", b"bob"))
    first = client.identity_headers(alice)
    assert first.token == b"alice"
    assert client.identity_headers(bytes(bytearray(alice))) is first
    assert client.identity_headers(bob).token == b"bob"
    assert client.identity_headers(b"").token is None
    assert client.identity_headers(alice).token == b"alice"


def test_long_fields_are_not_kept() -> None:
    client = connection_info(CLIENT)
    long = b"X-Long: %b\r\nAuthorization: Bearer alice\r\n" % (b"x" * 4096)
    assert client.identity_headers(long).token == b"alice"
    assert client.identity_headers(long) is not client.identity_headers(long)


def test_fields_that_are_refused_are_refused_each_time() -> None:
    client = connection_info(CLIENT)
    good = client.identity_headers(b"Authorization: Bearer alice\r\n")
    for _ in range(2):
        with pytest.raises(StatusError, match="one Authorization"):
            client.identity_headers(b"Authorization: Bearer bob\r\nAuthorization: Bearer alice\r\n")
    assert client.identity_headers(b"Authorization: Bearer alice\r\n") is good


def identity_fields(user: int) -> bytes:
    return b"Accept: */*\r\nAuthorization: Bearer token-of-user-%d\r\nUser-Agent: kubectl\r\n" % user


def test_a_connection_with_requests_of_many_users_keeps_each_ones_headers_apart() -> None:
    info = connection_info(CLIENT)
    known = [info.identity_headers(identity_fields(user)) for user in range(5)]
    for user in (4, 0, 3, 3, 1, 4, 2, 0, 2, 0):
        headers = info.identity_headers(identity_fields(user))
        assert headers is known[user]
        assert headers.token == b"token-of-user-%d" % user


def test_what_a_connection_keeps_of_many_users_is_bounded() -> None:
    info = connection_info(CLIENT)
    for user in range(5000):
        assert info.identity_headers(identity_fields(user)).token == b"token-of-user-%d" % user
        info.identity_headers(identity_fields(user - 1))
    kept = info._kept
    assert kept is not None
    assert sum(map(len, kept)) <= client_connection._MAX_KEPT
    big = b"Authorization: Bearer of-nobody\r\nX: %b\r\n" % bytes(5000)
    assert info.identity_headers(big).token == b"of-nobody"
    assert info.identity_headers(identity_fields(4999)).token == b"token-of-user-4999"
