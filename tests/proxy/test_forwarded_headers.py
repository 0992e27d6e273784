"""X-Forwarded-*: set anew, and believed only from trusted proxies."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv4Address, UNIXAddress

from mcproxy.http.h1.head_parser import parse_request_head
from mcproxy.proxy.forwarded_headers import source_addresses
from tests.proxy.builders import connection_info, request_head

CLIENT = IPv4Address("TCP", "192.0.2.7", 1)
SENT = (
    b"X-Forwarded-For: 10.1.1.1",
    b"x-forwarded-for: 10.2.2.2",
    b"X-Forwarded-Proto: http",
    b"X-Forwarded-Host: own.test",
)


def test_a_client_that_is_not_trusted_is_recognized_by_its_address() -> None:
    expected = b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a.test:6443\r\n"
    assert connection_info(CLIENT).forwarded_fields(request_head()) == expected
    assert connection_info(CLIENT).forwarded_fields(request_head(*SENT)) == expected
    assert connection_info(CLIENT, "198.51.100.0/24").forwarded_fields(request_head(*SENT)) == expected


def test_a_trusted_proxy_is_believed_and_added_to_the_chain() -> None:
    assert connection_info(CLIENT, "192.0.2.0/24").forwarded_fields(request_head(*SENT)) == (
        b"X-Forwarded-For: 10.1.1.1, 10.2.2.2, 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: own.test\r\n"
    )


def test_what_a_trusted_proxy_does_not_say_is_set_as_for_others() -> None:
    assert connection_info(CLIENT, "192.0.2.7/32", tls=False).forwarded_fields(request_head()) == (
        b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test:6443\r\n"
    )


def test_a_client_on_a_unix_socket_has_no_address_and_no_trust() -> None:
    unix = connection_info(UNIXAddress(b""), "0.0.0.0/0", tls=False)
    assert not unix.trusted
    assert unix.forwarded_fields(request_head(*SENT)) == b"X-Forwarded-Proto: http\r\nX-Forwarded-Host: a.test:6443\r\n"


def test_without_a_host_there_is_no_forwarded_host() -> None:
    bare = parse_request_head(b"GET / HTTP/1.0\r\n\r\n", 100, 100)
    assert (
        connection_info(CLIENT).forwarded_fields(bare) == b"X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n"
    )


@pytest.mark.parametrize(
    ("fields", "addresses"),
    [
        ((), ("192.0.2.7",)),
        ((b"X-Forwarded-For: 10.1.1.1, 2001:DB8::1",), ("10.1.1.1", "2001:db8::1", "192.0.2.7")),
        ((b"X-Forwarded-For: 10.1.1.1", b"X-Forwarded-For: 192.0.2.7"), ("10.1.1.1", "192.0.2.7")),
        ((b"X-Forwarded-For: unknown, , 10.1.1.1:80",), ("192.0.2.7",)),
    ],
)
def test_the_addresses_of_a_trusted_proxy_s_request(fields: tuple[bytes, ...], addresses: tuple[str, ...]) -> None:
    assert source_addresses(request_head(*fields), "192.0.2.7") == addresses
    assert connection_info(CLIENT, "192.0.2.0/24").addresses(request_head(*fields)) == addresses
    assert connection_info(CLIENT).addresses(request_head(*fields)) == ("192.0.2.7",)
