"""Checks of message heads that all versions of HTTP share: host, target, length, trailers (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from mcproxy.http.messages import HOP_BY_HOP, ProtocolError

# RFC 9110 7.2: uri-host [":" port]. Underscores are common in private names and harmless.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_MAX_LENGTH = 2**63 - 1
_MAX_DIGITS = len(str(_MAX_LENGTH))
_HASH: Final = ord("#")  # a search for a byte as an integer costs an eighth of one for bytes
_SLASH: Final = ord("/")

# CONNECT is for forward proxies. TRACE would return the fields added for the upstream, with credentials, to the client.
_REFUSED_METHODS = frozenset({b"CONNECT", b"TRACE"})

#: The methods that llhttp supports for HTTP/1.1; a request with another method is refused.
METHODS = frozenset(
    b"ACL BIND CHECKOUT CONNECT COPY DELETE GET HEAD LINK LOCK M-SEARCH MERGE MKACTIVITY MKCALENDAR MKCOL MOVE NOTIFY"
    b" OPTIONS PATCH POST PROPFIND PROPPATCH PURGE PUT QUERY REBIND REPORT SEARCH SOURCE SUBSCRIBE TRACE UNBIND UNLINK"
    b" UNLOCK UNSUBSCRIBE".split()
)

# Trailers are never used for framing, routing or identity, and not passed on if another server could use them so.
_FORBIDDEN_TRAILERS = HOP_BY_HOP | {b"host", b"content-length", b"trailer", b"authorization", b"content-encoding"}
_FORBIDDEN_TRAILERS |= {b"forwarded", b"x-real-ip", b"sec-websocket-protocol"}
_FORBIDDEN_TRAILER_PREFIXES = (b"impersonate", b"x-remote-", b"x-forwarded-")

#: Maximum of lines with a user's groups in one head; `limits.headers` does not count these lines. A front proxy or an
#: impersonating client sends one for each group, and a kube-apiserver limits only the size of a head.
MAX_GROUP_LINES: Final = 5000
_GROUP_LINE = re.compile(rb"\n(?:x-remote-group|impersonate-group):", re.IGNORECASE)

#: Maximum of bytes of all trailer fields together.
MAX_TRAILERS: Final = 8 * 1024


def is_host(value: bytes) -> bool:
    """Whether the value of Host, or an authority, is a host with or without a port."""
    return _HOST.fullmatch(value) is not None


def parse_length(value: bytes) -> int | None:
    """Return a Content-Length, None if it is invalid. Digits are counted first, because int() has its own limit."""
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        return None
    length = int(value)
    return length if length <= _MAX_LENGTH else None


def check_expectation(values: Sequence[bytes]) -> None:
    """Raise ProtocolError unless the only expectation is 100-continue (RFC 9110 10.1.1)."""
    if [value.lower() for value in values] != [b"100-continue"]:
        raise ProtocolError(417, "the only supported expectation is 100-continue")


def counted_fields(count: int, block: bytes) -> int:
    """Return how many of `count` header fields `limits.headers` counts; each field of `block` follows a line feed."""
    return count - min(len(_GROUP_LINE.findall(block)), MAX_GROUP_LINES)


def check_target_length(target: bytes, max_target: int) -> None:
    if len(target) > max_target:
        raise ProtocolError(414, f"the request target is longer than {max_target} bytes")


def origin_target(method: bytes, host: bytes, target: bytes) -> bytes:
    """Return the target to forward: "/path?query", or "*" with OPTIONS. Raises ProtocolError.

    `target` consists of visible ASCII characters; `host` is in lower case.
    """
    if _HASH in target:
        raise ProtocolError(400, "the request target has a fragment")
    if method in _REFUSED_METHODS:
        raise ProtocolError(405, f"{method.decode()} is not supported")
    if target[0] == _SLASH:
        return target
    if target == b"*":
        if method != b"OPTIONS":
            raise ProtocolError(400, "the target * is for OPTIONS only")
        return target
    return _origin_form(host, target)


def _origin_form(host: bytes, target: bytes) -> bytes:
    """Return the origin-form of an absolute-form target (RFC 9112 3.2.2) whose authority equals Host."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise ProtocolError(400, "malformed request target")
    match = re.match(rb"[^/?]*", rest)
    authority = match[0] if match else b""
    if not authority or authority.lower() != host:
        raise ProtocolError(400, "the request target and the Host header name different authorities")
    path = rest[len(authority) :]
    return path if path.startswith(b"/") else b"/" + path


def may_pass_as_trailer(name: bytes) -> bool:
    """Whether a trailer field with this name is passed on; other trailer fields are left out (RFC 9110 6.5.1)."""
    plain = name.lower().replace(b"_", b"-")
    return plain not in _FORBIDDEN_TRAILERS and not plain.startswith(_FORBIDDEN_TRAILER_PREFIXES)
