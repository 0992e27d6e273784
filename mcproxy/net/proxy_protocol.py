"""Parses headers of the PROXY protocol, versions 1 and 2, by which load balancers report the client's address.

Pure and incremental. Source of the rules: haproxy's proxy-protocol.txt (2.1 for version 1, 2.2 for version 2).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

SIGNATURE_1 = b"PROXY "
SIGNATURE_2 = b"\r\n\r\n\x00\r\nQUIT\n"
MAX_1 = 107  # bytes, including CRLF
MAX_2 = 16 + 4096  # own limit (bytes); addresses take at most 216 bytes, TLVs follow and are skipped

_HEAD_2 = struct.Struct("!12sBBH")
_INET = struct.Struct("!4s4sHH")
_INET6 = struct.Struct("!16s16sHH")


class ProxyHeaderError(ValueError):
    """A connection does not begin with a valid PROXY header."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """`source` is the client's (address, port). It is None for LOCAL, UNKNOWN and families without addresses, for
    which the peer's address is used. `size` is the length of the header (bytes)."""

    source: tuple[IPv4Address | IPv6Address, int] | None
    size: int


def parse(data: bytes) -> ProxyHeader | None:
    """Parse a header at the start of `data`; None while it is incomplete. Raises ProxyHeaderError."""
    if data.startswith(SIGNATURE_2[: len(data)]):
        return _parse_2(data) if len(data) >= _HEAD_2.size else None
    if data.startswith(SIGNATURE_1[: len(data)]):
        return _parse_1(data)
    raise ProxyHeaderError("no PROXY header")


def _parse_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, MAX_1)
    if end < 0:
        if len(data) >= MAX_1 or (b"\n" in data):
            raise ProxyHeaderError("the PROXY line does not end")
        return None
    size = end + 2
    words = data[:end].split(b" ")
    if len(words) < 2:
        raise ProxyHeaderError("the PROXY line has no family")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(None, size)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise ProxyHeaderError("the PROXY line has an unknown form")
    version = 4 if words[1] == b"TCP4" else 6
    source = _address(words[2], version)
    _address(words[3], version)
    _port(words[5])
    return ProxyHeader((source, _port(words[4])), size)


def _address(word: bytes, version: int) -> IPv4Address | IPv6Address:
    try:
        if b"%" in word:  # a zone can contain any byte, even line ends, and has no meaning on other hosts
            raise ValueError
        address = ip_address(word.decode("ascii"))
    except ValueError:
        raise ProxyHeaderError("the PROXY line has a bad address") from None
    if address.version != version:
        raise ProxyHeaderError("the PROXY line has an address of another family")
    return address


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or (word[:1] == b"0" and word != b"0") or int(word) > 65535:
        raise ProxyHeaderError("the PROXY line has a bad port")
    return int(word)


def _parse_2(data: bytes) -> ProxyHeader | None:
    _, version_command, family, length = _HEAD_2.unpack_from(data)
    if version_command >> 4 != 2 or version_command & 15 > 1:
        raise ProxyHeaderError("the PROXY header has an unknown version or command")
    size = _HEAD_2.size + length
    if size > MAX_2:
        raise ProxyHeaderError("the PROXY header is too long")
    if family >> 4 > 3 or family & 15 > 2:
        raise ProxyHeaderError("the PROXY header has an unknown family")
    if len(data) < size:
        return None
    if version_command & 15 == 0:  # LOCAL: a health check of the balancer
        return ProxyHeader(None, size)
    form = {1: _INET, 2: _INET6}.get(family >> 4)
    if form is None:  # AF_UNSPEC, AF_UNIX
        return ProxyHeader(None, size)
    if length < form.size:
        raise ProxyHeaderError("the PROXY header is too short for its addresses")
    source, _, port, _ = form.unpack_from(data, _HEAD_2.size)
    return ProxyHeader((ip_address(source), port), size)
