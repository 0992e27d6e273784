"""The names of protocols in TLS's ALPN extension (RFC 7301)."""

from __future__ import annotations

from collections.abc import Iterable

from mcproxy.config.model import HTTPProtocol

H2 = b"h2"
HTTP1_1 = b"http/1.1"
HTTP1_0 = b"http/1.0"

_NAMES = {HTTPProtocol.HTTP2: (H2,), HTTPProtocol.HTTP1: (HTTP1_1, HTTP1_0)}
_KNOWN = {name: name for names in _NAMES.values() for name in names}


def names_of(protocols: Iterable[HTTPProtocol]) -> tuple[bytes, ...]:
    """Return the ALPN names of HTTP versions, in order of preference."""
    return tuple(name for protocol in protocols for name in _NAMES[protocol])


def shared(negotiated: bytes) -> bytes | None:
    """Return the constant that equals the negotiated protocol, which saves memory; None for "" (no ALPN)."""
    return _KNOWN.get(negotiated, negotiated) or None
