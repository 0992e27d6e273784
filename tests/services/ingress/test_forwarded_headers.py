"""What a pod is told about the client, and what a client cannot make it be told."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from mcproxy.http.messages import split_fields
from mcproxy.services.ingress.forwarded_headers import MAX_CHAIN, Origin, origin

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def fields(found: Origin) -> dict[bytes, bytes]:
    return dict(split_fields(found.fields))


def told(block: bytes, peer: str = "192.0.2.1", *, host: bytes = b"web.example.com", tls: bool = True) -> Origin:
    return origin(block, host, peer, tls=tls, trusted=TRUSTED if peer.startswith(("10.", "fd")) else ())


def test_what_the_proxy_knows_itself() -> None:
    found = told(b"Accept: */*\r\n")
    assert found.rest == b"Accept: */*\r\n"
    assert found.address == "192.0.2.1"
    assert fields(found) == {
        b"x-forwarded-for": b"192.0.2.1",
        b"x-forwarded-proto": b"https",
        b"x-forwarded-host": b"web.example.com",
        b"x-forwarded-port": b"443",
        b"x-real-ip": b"192.0.2.1",
        b"forwarded": b"for=192.0.2.1;proto=https;host=web.example.com",
    }


def test_ipv6_and_ports_are_quoted() -> None:
    found = told(b"", "2001:db8::1", host=b"web:8443", tls=False)
    assert fields(found)[b"forwarded"] == b'for="[2001:db8::1]";proto=http;host="web:8443"'
    assert fields(found)[b"x-forwarded-for"] == b"2001:db8::1"


def test_a_unix_socket_has_no_address() -> None:
    found = told(b"", "", tls=False)
    assert fields(found) == {
        b"x-forwarded-proto": b"http",
        b"x-forwarded-host": b"web.example.com",
        b"x-forwarded-port": b"80",
        b"forwarded": b"for=unknown;proto=http;host=web.example.com",
    }


@pytest.mark.parametrize(
    "name",
    [
        "X-Forwarded-For",
        "x_forwarded_for",
        "X-Forwarded-Proto",
        "X-FORWARDED_HOST",
        "X-Forwarded-Anything",
        "X-Real-IP",
        "x_real_ip",
        "Forwarded",
        "Proxy",
    ],
)
def test_a_client_s_own_words_go_no_further(name: str) -> None:
    found = told(b"A: b\r\n%b: 127.0.0.1\r\nC: d\r\n" % name.encode())
    assert found.rest == b"A: b\r\nC: d\r\n"
    assert b"127.0.0.1" not in found.fields


def test_similar_names_pass() -> None:
    block = b"X-Forward: a\r\nForwarded-By: b\r\nProxy-Thing: c\r\nX-Real-IPs: d\r\n"
    assert told(block).rest == block


def test_a_trusted_proxy_s_chain_is_kept_and_its_address_appended() -> None:
    found = told(
        b"X-Forwarded-For: 198.51.100.7, 192.0.2.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a.example\r\n",
        "10.0.0.1",
        tls=False,
    )
    assert found.rest == b""
    assert found.https
    assert found.address == "192.0.2.9"
    assert fields(found) == {
        b"x-forwarded-for": b"198.51.100.7, 192.0.2.9, 10.0.0.1",
        b"x-forwarded-proto": b"https",
        b"x-forwarded-host": b"a.example",
        b"x-forwarded-port": b"443",
        b"x-real-ip": b"192.0.2.9",
        b"forwarded": b"for=198.51.100.7, for=192.0.2.9, for=10.0.0.1;proto=https;host=a.example",
    }


def test_what_clients_put_before_a_chain_of_proxies_is_not_their_address() -> None:
    """The address is the last one that no trusted proxy has; what comes before is the client's own claim."""
    found = told(b"X-Forwarded-For: 10.9.9.9, 203.0.113.5\r\nX-Forwarded-For: 10.0.0.2\r\n", "10.0.0.1")
    assert found.address == "203.0.113.5"


def test_forwarded_of_a_client_does_not_pass_a_proxy_that_knows_x_forwarded_for_alone() -> None:
    found = told(b"Forwarded: for=127.0.0.1\r\nX-Forwarded-For: 192.0.2.9\r\n", "10.0.0.1")
    assert b"127.0.0.1" not in found.fields
    assert fields(found)[b"forwarded"].startswith(b"for=192.0.2.9, for=10.0.0.1;")


def test_forwarded_alone_is_a_chain_too() -> None:
    found = told(b'Forwarded: for=192.0.2.9;proto=https, For="[2001:db8::7]:4711"\r\n', "10.0.0.1")
    assert fields(found)[b"x-forwarded-for"] == b"192.0.2.9, 2001:db8::7, 10.0.0.1"
    assert fields(found)[b"forwarded"].startswith(b'for=192.0.2.9, for="[2001:db8::7]", for=10.0.0.1;')
    assert found.address == "2001:db8::7"


def test_forwarded_alone_says_scheme_and_host_by_its_last_element() -> None:
    """A proxy that knows only Forwarded ends TLS: its clients must not be redirected to https for ever."""
    block = b'Forwarded: for=192.0.2.9;proto=http;host=made.up, For=10.0.0.2;Proto=HTTPS;Host="a.example:8443"\r\n'
    found = told(block, "10.0.0.1", tls=False)
    assert found.https
    assert fields(found)[b"x-forwarded-proto"] == b"https"
    assert fields(found)[b"x-forwarded-host"] == b"a.example:8443"
    assert fields(found)[b"x-forwarded-port"] == b"8443"
    quoted = told(b'Forwarded: for=192.0.2.9;host=",proto=https"\r\n', "10.0.0.1", tls=False)
    assert not quoted.https
    assert not told(block, tls=False).https  # of a client


@pytest.mark.parametrize(
    ("host", "given", "port"),
    [
        (b"web:8443", b"", b"8443"),
        (b"[::1]:8443", b"", b"8443"),
        (b"[::1]", b"", b"443"),
        (b"web:8443", b"X-Forwarded-Port: 1, 444\r\n", b"444"),
        (b"web", b"X-Forwarded-Port: x\r\n", b"443"),
    ],
)
def test_the_port_is_that_of_the_host_unless_a_trusted_proxy_says_another(
    host: bytes, given: bytes, port: bytes
) -> None:
    assert fields(told(given, "10.0.0.1", host=host))[b"x-forwarded-port"] == port


def test_a_client_does_not_say_its_port() -> None:
    assert fields(told(b"X-Forwarded-Port: 1\r\n"))[b"x-forwarded-port"] == b"443"


def test_what_is_no_address_stays_no_address() -> None:
    found = told(b"X-Forwarded-For: unknown\r\n", "10.0.0.1")
    assert found.address == "10.0.0.1"
    assert fields(found)[b"forwarded"].startswith(b"for=unknown, for=10.0.0.1;")


def test_a_chain_is_bounded() -> None:
    found = told(b"X-Forwarded-For: %b\r\n" % b", ".join([b"192.0.2.9"] * 1000), "10.0.0.1")
    assert fields(found)[b"x-forwarded-for"].count(b",") == MAX_CHAIN


def test_a_scheme_is_one() -> None:
    assert fields(told(b"X-Forwarded-Proto: javascript\r\n", "10.0.0.1"))[b"x-forwarded-proto"] == b"https"
    assert not told(b"X-Forwarded-Proto: http\r\n", "10.0.0.1").https
