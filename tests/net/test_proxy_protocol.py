"""PROXY headers, both versions, cut at every byte."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.net.proxy_protocol import MAX_1, MAX_2, SIGNATURE_2, ProxyHeader, ProxyHeaderError, parse

ports = st.integers(0, 65535)


def header_1(source: IPv4Address | IPv6Address, port: int) -> bytes:
    family = "TCP4" if source.version == 4 else "TCP6"
    return f"PROXY {family} {source} {source} {port} 6443\r\n".encode()


def header_2(source: IPv4Address | IPv6Address, port: int, *, command: int = 1, tlvs: bytes = b"") -> bytes:
    family = 0x11 if source.version == 4 else 0x21
    body = source.packed + source.packed + struct.pack("!HH", port, 6443) + tlvs
    return SIGNATURE_2 + struct.pack("!BBH", 0x20 | command, family, len(body)) + body


@given(st.ip_addresses(), ports, st.sampled_from([header_1, header_2]), st.binary(max_size=40))
def test_a_header_is_read_once_it_is_complete_and_never_before(source, port, make, rest) -> None:  # type: ignore[no-untyped-def]
    header = make(source, port)
    for cut in range(len(header)):
        assert parse(header[:cut]) is None
    assert parse(header + rest) == ProxyHeader((source, port), len(header))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_refused_or_incomplete(data: bytes) -> None:
    try:
        result = parse(data)
    except ProxyHeaderError:
        return
    assert result is None or 0 < result.size <= len(data)


@given(st.binary(max_size=64), st.sampled_from([b"PROXY ", SIGNATURE_2]))
def test_any_bytes_after_a_signature_never_raise_anything_else(data: bytes, signature: bytes) -> None:
    try:
        parse(signature + data)
    except ProxyHeaderError:
        pass


def test_version_2_skips_what_follows_the_addresses() -> None:
    data = header_2(ip_address("10.1.2.3"), 5000, tlvs=b"\x01\x00\x02h2\x05\x00\x00")
    assert parse(data + b"\x16\x03\x01") == ProxyHeader((ip_address("10.1.2.3"), 5000), len(data))


def test_local_leaves_the_peers_own_address() -> None:
    data = header_2(ip_address("10.1.2.3"), 5000, command=0)
    assert parse(data) == ProxyHeader(None, len(data))


@pytest.mark.parametrize(
    ("family", "body"),
    [(0x00, b""), (0x00, b"tlvs"), (0x31, b"\0" * 216)],
    ids=["unspec", "unspec with tlvs", "unix"],
)
def test_families_without_addresses_leave_the_peers_own(family: int, body: bytes) -> None:
    data = SIGNATURE_2 + struct.pack("!BBH", 0x21, family, len(body)) + body
    assert parse(data) == ProxyHeader(None, len(data))


def test_unknown_of_version_1_leaves_the_peers_own() -> None:
    data = b"PROXY UNKNOWN ffff::1 whatever 1 2\r\n"
    assert parse(data + b"GET") == ProxyHeader(None, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00",
        b"PROXY\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
        b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 nonsense 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 x\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 \xd9\xa1 2\r\n",  # a digit, but not of ASCII
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
        b"PROXY " + b"x" * MAX_1,
        SIGNATURE_2 + b"\x11\x11\x00\x0c" + b"\0" * 12,
        SIGNATURE_2 + b"\x22\x11\x00\x0c" + b"\0" * 12,
        SIGNATURE_2 + b"\x21\x41\x00\x0c" + b"\0" * 12,
        SIGNATURE_2 + b"\x21\x13\x00\x0c" + b"\0" * 12,
        SIGNATURE_2 + b"\x21\x11\x00\x0b" + b"\0" * 11,
        SIGNATURE_2 + b"\x21\x21\x00\x23" + b"\0" * 35,
        SIGNATURE_2 + b"\x21\x11" + struct.pack("!H", MAX_2),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        parse(data)
