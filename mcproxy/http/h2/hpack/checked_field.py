"""Checks a header field once, however often it is received (RFC 9113 8.2 and 8.3).

The decoder's tables and caches contain checked fields. The fault of a field is a property of the field (`MALFORMED`),
and becomes an error only in a message: the decoder must continue, to keep its table equal to the peer's.
"""

from __future__ import annotations

import re
from typing import Final

from mcproxy.http.h2.hpack.tables import STATIC_TABLE
from mcproxy.http.head_rules import is_host, parse_length

#: Kind, payload, size, name. The kind is None for a field that passes to the other side; the payload is then its line,
#: b"name: value\r\n". Otherwise the kind is one of those below, and the payload is the value or the fault. The size is
#: that of RFC 7541 4.1 (bytes), which RFC 9113 10.5.1 uses too.
CheckedField = tuple[int | None, bytes, int, bytes]

#: Bytes of a field's size in addition to name and value.
OVERHEAD: Final = 32

# Kinds in the order of `DecodedFields.special`, beginning with the pseudo-header fields.
(
    METHOD,
    SCHEME,
    AUTHORITY,
    PATH,
    STATUS,
    BAD_AUTHORITY,
    HOST,
    LENGTH,
    TE,
    EXPECT,
    DROPPED,
    COOKIE,
    BAD_HOST,
    MALFORMED,
) = range(14)
LAST_PSEUDO = BAD_AUTHORITY
KINDS: Final = 14

_KIND_OF = {
    b":method": METHOD,
    b":scheme": SCHEME,
    b":authority": AUTHORITY,
    b":path": PATH,
    b":status": STATUS,
    b"host": HOST,
    b"content-length": LENGTH,
    b"te": TE,
    b"expect": EXPECT,
    b"cookie": COOKIE,
    b"proxy-authenticate": DROPPED,  # hop-by-hop (RFC 9110 11.7), as in HTTP/1.1
    b"proxy-authorization": DROPPED,
    b"connection": MALFORMED,
    b"keep-alive": MALFORMED,
    b"proxy-connection": MALFORMED,
    b"transfer-encoding": MALFORMED,
    b"upgrade": MALFORMED,
}

#: Fields that are credentials, or grant them. They are remembered only for one connection.
SECRET_NAMES = frozenset(
    {b"authorization", b"cookie", b"proxy-authorization", b"sec-websocket-protocol", b"set-cookie"}
)

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
# RFC 9113 8.2.1: no NUL, CR or LF, and no leading or trailing blanks; other control characters as in RFC 9110 5.5.
_VALUE: Final = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?").fullmatch
_PATH: Final = re.compile(rb"/[\x21-\x7e\x80-\xff]*|\*").fullmatch
_STATUS: Final = re.compile(rb"[1-9][0-9][0-9]").fullmatch
_PATH_OVERHEAD = OVERHEAD + len(b":path")
_VISIBLE: Final = re.compile(rb"[\x21-\x3f\x41-\x7e\x80-\xff]*").fullmatch  # without "@": no userinfo (RFC 9113 8.3.1)


def checked(name: bytes, value: bytes) -> CheckedField:
    """Return the checked field."""
    size = len(name) + len(value) + OVERHEAD
    kind = _KIND_OF.get(name)
    if kind is None:
        if _NAME(name) and _VALUE(value):
            return None, b"%b: %b\r\n" % (name, value), size, name
        if name[:1] == b":":
            return MALFORMED, b"unknown pseudo-header field", size, name
        return MALFORMED, b"field value" if _NAME(name) else b"field name", size, name
    kind, payload = _special(kind, name, value)
    return kind, payload, size, name


def checked_path(value: bytes) -> CheckedField:
    """Return `checked(b":path", value)`, the special case of a field that differs in every request."""
    if _PATH(value):
        return PATH, value, len(value) + _PATH_OVERHEAD, b":path"
    return MALFORMED, b":path", len(value) + _PATH_OVERHEAD, b":path"


def _special(kind: int, name: bytes, value: bytes) -> tuple[int, bytes]:
    """Return kind and payload of a pseudo-header or hop-by-hop field."""
    if kind == MALFORMED:
        return MALFORMED, b"connection-specific field " + name
    if kind == AUTHORITY:
        if not _VISIBLE(value):
            return MALFORMED, name
        return (AUTHORITY if is_host(value) else BAD_AUTHORITY), value.lower()
    if kind == METHOD:
        good = _TOKEN(value) is not None
    elif kind == SCHEME:
        value = value.lower()
        good = _TOKEN(value) is not None
    elif kind == PATH:
        good = _PATH(value) is not None
    elif kind == STATUS:
        good = _STATUS(value) is not None
    elif not _VALUE(value):
        good = False
    elif kind == HOST:
        return (HOST if is_host(value) else BAD_HOST), value.lower()
    elif kind == LENGTH:
        good = parse_length(value) is not None
    elif kind == TE:
        good = value.lower() == b"trailers"
    else:
        good = True
    return (kind, value) if good else (MALFORMED, name)


#: The checked fields of the static table, most of which are used only for their names. The index 0 is not used.
STATIC_FIELDS = tuple([checked(*field) for field in STATIC_TABLE])
