"""Parses the heads of HTTP/1.1 messages to a validated `RequestHead` or `ResponseHead`.

llhttp (httptools) checks the grammar. This module adds checks that llhttp omits and that determine where a request goes
and where it ends (RFC 9112 sections 2.2, 3, 6; RFC 9110 sections 7.2 and 7.6.1). A head is parsed as a whole, from its
first byte to the empty line, so the engines know exactly which bytes belong to which message.

llhttp gets no callbacks. After it has accepted a head (no bare line ends, no folded lines, names that are tokens), a
search for names at the beginnings of lines is exact. Hop-by-hop fields are taken out; all other fields pass through
byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import httptools

from mcproxy.http.head_rules import (
    check_expectation,
    check_target_length,
    counted_fields,
    is_host,
    origin_target,
    parse_length,
)
from mcproxy.http.messages import (
    CHUNKED,
    HOP_BY_HOP,
    REASON_PHRASES,
    UNTIL_CLOSE,
    ProtocolError,
    RequestHead,
    ResponseHead,
    UpstreamProtocolError,
)

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
#: Maximum of bytes of header fields that a connection remembers of its last request.
MAX_REMEMBERED: Final = 4096

# Matches a hop-by-hop field, from the line feed before it to the carriage return after it.
_SPECIAL = (
    rb"(?i)\n(c(?:ontent-length|onnection)|t(?:ransfer-encoding|e)|upgrade|keep-alive"
    rb"|proxy-(?:connection|authenticate|authorization)%b):[ \t]*([^\r]*)\r"
)
_REQUEST_SPECIAL = re.compile(_SPECIAL % b"|host|expect")
_RESPONSE_SPECIAL = re.compile(_SPECIAL % b"")
_NEVER_NAMED = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"close", b""}
# If Connection could remove these fields, the request could act as another user (RFC 9110 7.6.1 forbids listing them).
_IDENTITY_FIELDS = (b"authorization", b"impersonate", b"x-remote-", b"sec-websocket-protocol")
# Trusted proxies name the origin of a request in these fields; a client must not delete them by Connection.
_ORIGIN_FIELDS = (b"x-forwarded-", b"x-real-ip", b"forwarded")
#: The usual status lines of servers, with their status code and reason.
_STATUS_LINES = {
    b"HTTP/1.1 %d %b" % (status, reason): (status, reason) for status, reason in REASON_PHRASES.items() if status >= 200
}
#: Targets that llhttp accepts: a path and a query of characters of RFC 3986.
_PLAIN_TARGET = re.compile(rb"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")
_PLAIN_LINE = re.compile(rb"[\t -~]*")
_MISSES: Final = 3  # heads in a row that are not similar, until one of them is remembered
_MOST_DIGITS: Final = 19  # of a Content-Length that is not checked further
_KEEP_ALIVE = re.compile(rb"(?i)(?:^|[,;\s])timeout\s*=\s*\"?([0-9]{1,6})(?![0-9])")
_COMMON_OPTIONS = {option: frozenset({option}) for option in (b"keep-alive", b"close", b"upgrade")}


_TLS: Final = b"\x16\x03"  # the first bytes of a ClientHello: a handshake record
TLS_INSTEAD = "TLS instead of HTTP"


def incomplete_head_error(data: bytes) -> str | None:
    """Return why an incomplete head is invalid already; None if the rest of it has to be awaited."""
    if data.startswith(_TLS):
        return TLS_INSTEAD
    if data.count(b"\n") != data.count(b"\r\n"):
        return "line feed without carriage return in the request head"
    if b"\x00" in data:
        return "NUL in the request head"
    return None


def parse_request_head(raw: bytes, max_target: int, max_headers: int) -> RequestHead:
    """Parse a complete request head, with the empty line at its end.

    Raises ProtocolError with the status code of the response.
    """
    if raw[:1] <= b" ":
        raw = raw.removeprefix(b"\r\n")  # RFC 9112 2.2: one empty line before the request line is tolerated
        if raw[:1] <= b" ":  # llhttp would skip further line ends, but here they would become a part of the method
            raise ProtocolError(400, "malformed request line")
    _check_grammar(raw)
    line_end = raw.find(b"\r\n")
    words = raw[:line_end].split(b" ")
    if len(words) != 3:
        raise ProtocolError(400, "malformed request line")
    head = RequestHead()
    head.method, target, version = words
    head.http11 = version == b"HTTP/1.1"
    if not head.http11 and version != b"HTTP/1.0":
        raise ProtocolError(505, "only HTTP/1.1 and HTTP/1.0 are supported")
    count = raw.count(b"\r\n") - 2
    if count > max_headers and counted_fields(count, raw) > max_headers:
        raise ProtocolError(431, f"more than {max_headers} header fields")
    check_target_length(target, max_target)
    _check_request_fields(head, raw, line_end)
    head.target = origin_target(head.method, head.host, target)
    return head


class RequestHeadParser:
    """Parses the request heads of one connection, on which clients usually repeat method and header fields.

    If method, version and fields are byte for byte those of the previous request, the fields are not checked again;
    only the request line is parsed, by the same rules.
    """

    __slots__ = ("_fields", "_last", "_max_headers", "_max_target", "_version")

    def __init__(self, max_target: int, max_headers: int) -> None:
        self._max_target = max_target
        self._max_headers = max_headers
        self._last: RequestHead | None = None
        self._fields = b""  # the bytes of the last head that follow its request line
        self._version = b""

    def parse(self, raw: bytes) -> RequestHead:
        """Return the result of `parse_request_head`."""
        line_end = raw.find(b"\r\n")
        line, fields = raw[:line_end], raw[line_end:]
        last = self._last
        if last is not None and fields == self._fields:
            words = line.split(b" ")
            if len(words) == 3 and words[0] == last.method and words[2] == self._version:
                return self._repeated(last, line, words[1])
        head = parse_request_head(raw, self._max_target, self._max_headers)
        if len(fields) <= MAX_REMEMBERED and line_end:
            self._last, self._fields, self._version = head, fields, line[line.rfind(b" ") + 1 :]
        return head

    def _repeated(self, last: RequestHead, line: bytes, target: bytes) -> RequestHead:
        if _PLAIN_TARGET.fullmatch(target) is None:
            _check_grammar(line + b"\r\n\r\n")
        check_target_length(target, self._max_target)
        head = RequestHead()
        head.method = last.method
        head.http11 = last.http11
        head.host = last.host
        head.fields = last.fields
        head.length = last.length
        head.keep_alive = last.keep_alive
        head.upgrade = last.upgrade
        head.expects_continue = last.expects_continue
        head.te_trailers = last.te_trailers
        head.target = origin_target(head.method, head.host, target)
        return head


def _check_grammar(raw: bytes) -> None:
    try:
        httptools.HttpRequestParser(_NO_CALLBACKS).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # httptools raises it at the end of the head; this module checks the upgrade
    except httptools.HttpParserError as error:
        raise ProtocolError(*_parser_error(raw, error)) from None


class _NoCallbacks:
    """Has None for every callback, which httptools looks up for each parser: faster than an AttributeError."""

    __slots__ = ()
    on_message_begin: ClassVar[None] = None
    on_url: ClassVar[None] = None
    on_status: ClassVar[None] = None
    on_header: ClassVar[None] = None
    on_headers_complete: ClassVar[None] = None
    on_body: ClassVar[None] = None
    on_message_complete: ClassVar[None] = None
    on_chunk_header: ClassVar[None] = None
    on_chunk_complete: ClassVar[None] = None


_NO_CALLBACKS = _NoCallbacks()


def _parser_error(raw: bytes, error: Exception) -> tuple[int, str]:
    """Return status code and message for a head that llhttp rejected."""
    request_line = raw[: raw.find(b"\r\n")]
    version = re.search(rb" HTTP/([0-9]+)\.[0-9]+$", request_line)
    if version and version[1] not in (b"1", b"0"):
        return 505, "only HTTP/1.1 and HTTP/1.0 are supported"
    return 400, f"malformed request head: {error}"


def _split_special(raw: bytes, line_end: int, pattern: re.Pattern[bytes]) -> tuple[bytes, dict[bytes, list[bytes]]]:
    """Return the end-to-end fields as one block, and the values of the hop-by-hop fields."""
    parts = pattern.split(raw[line_end:])  # text, name, value, text, name, value, ... text
    if len(parts) == 4:  # usually there is one hop-by-hop field
        return (parts[0] + parts[3])[2:-2], {parts[1].lower(): [parts[2].rstrip(b" \t")]}
    special: dict[bytes, list[bytes]] = {}
    for index in range(1, len(parts), 3):
        name, value = parts[index].lower(), parts[index + 1].rstrip(b" \t")
        if name in special:
            special[name].append(value)
        else:
            special[name] = [value]
    return b"".join(parts[::3])[2:-2], special


def _check_request_fields(head: RequestHead, raw: bytes, line_end: int) -> None:
    head.fields, special = _split_special(raw, line_end, _REQUEST_SPECIAL)
    hosts = special.pop(b"host", ())
    if len(hosts) != 1 and (head.http11 or hosts):
        raise ProtocolError(400, "an HTTP/1.1 request has exactly one Host header")
    head.host = hosts[0].lower() if hosts else b""
    if hosts and not is_host(hosts[0]):
        raise ProtocolError(400, "malformed Host header")
    head.length = 0
    head.keep_alive = head.http11
    head.expects_continue = head.te_trailers = False
    head.upgrade = None
    if special:
        _check_special_fields(head, special)


def _check_special_fields(head: RequestHead, special: dict[bytes, list[bytes]]) -> None:
    head.length = _request_length(head.http11, special)
    connection = _connection_options(special.get(b"connection", ()))
    head.keep_alive = head.http11 and b"close" not in connection
    head.te_trailers = any(b"trailers" in value.lower() for value in special.get(b"te", ()))
    if expectation := special.get(b"expect"):
        check_expectation(expectation)
        # RFC 9110 10.1.1: Expect is ignored without a body, or from HTTP/1.0.
        head.expects_continue = head.http11 and head.length != 0
    if b"upgrade" in connection and head.http11:
        head.upgrade = _tunnel_protocol(special.get(b"upgrade", ()))
    if nominated := connection - _NEVER_NAMED:
        plain = {name: name.replace(b"_", b"-") for name in nominated}
        if any(name.startswith(_IDENTITY_FIELDS) for name in plain.values()):
            raise ProtocolError(400, "Connection lists an end-to-end field")
        removed = frozenset(name for name, each in plain.items() if not each.startswith(_ORIGIN_FIELDS))
        head.fields = _without(head.fields, removed)


def _without(fields: bytes, names: frozenset[bytes]) -> bytes:
    """Return the block without the fields that Connection lists."""
    lines = fields.split(b"\r\n")
    return b"\r\n".join([line for line in lines if line.partition(b":")[0].lower() not in names])


def _request_length(http11: bool, special: dict[bytes, list[bytes]]) -> int:
    """Return the body's framing (RFC 9112 6.3); reject any framing that two parsers could interpret differently."""
    codings = special.get(b"transfer-encoding")
    lengths = special.get(b"content-length")
    if codings is not None:
        if not http11:
            raise ProtocolError(400, "Transfer-Encoding in an HTTP/1.0 request")
        if lengths is not None:
            raise ProtocolError(400, "both Transfer-Encoding and Content-Length")
        if len(codings) != 1:
            raise ProtocolError(400, "more than one Transfer-Encoding header")
        if codings[0].lower() != b"chunked":
            raise ProtocolError(501, "the only supported transfer coding is chunked")
        return CHUNKED
    if lengths is None:
        return 0
    length = parse_length(lengths[0]) if len(lengths) == 1 else None
    if length is None:
        raise ProtocolError(400, "malformed Content-Length")
    return length


def _connection_options(values: Sequence[bytes]) -> frozenset[bytes]:
    if len(values) == 1 and (common := _COMMON_OPTIONS.get(values[0].lower())):
        return common
    return frozenset(option.strip(b" \t").lower() for value in values for option in value.split(b","))


def _tunnel_protocol(values: Iterable[bytes]) -> bytes | None:
    """Return the upgrade protocol if supported; other protocols (h2c) are ignored, as RFC 9110 7.8 allows."""
    for value in values:
        for protocol in value.split(b","):
            protocol = protocol.strip(b" \t")
            if protocol.lower() in (b"websocket", b"spdy/3.1", b"mcproxy-tunnel/1"):
                return protocol
    return None


class ResponseHeadParser:
    """Parses the response heads of one connection, where a head usually differs from the previous one in some values.

    If the status line and the names, line by line, are those of the previous head, only changed values are checked.
    This holds for heads whose only hop-by-hop fields are Content-Length and `Connection: keep-alive`.
    """

    __slots__ = ("_dropped", "_last", "_length_line", "_lines", "_misses", "_names")

    def __init__(self) -> None:
        self._last: ResponseHead | None = None  # of the kind above
        self._lines: list[bytes] = []
        self._names: list[bytes] = []  # with the colon; b"" for a line that must not change
        self._length_line = 0
        self._dropped: list[int] = []  # numbers of the lines with hop-by-hop fields, the last first
        self._misses = 0  # heads since the last one that was similar

    def parse(self, raw: bytes, request_method: bytes) -> ResponseHead:
        """Return the result of `parse_response_head`."""
        lines = raw.split(b"\r\n")
        last = self._last
        if last is not None and len(lines) == len(self._lines):
            head = self._similar(last, lines, request_method)
            if head is not None:
                self._misses = 0
                return head
        head = parse_response_head(raw, request_method)
        self._misses += 1
        if len(raw) <= MAX_REMEMBERED and (last is None or self._misses >= _MISSES):
            self._remember(lines, head)
        return head

    def _similar(self, last: ResponseHead, lines: list[bytes], request_method: bytes) -> ResponseHead | None:
        before, names = self._lines, self._names
        length = last.declared_length
        for number in range(len(lines)):
            line = lines[number]
            if line == before[number]:
                continue
            name = names[number]
            if not name or not line.startswith(name):
                return None
            if number == self._length_line:
                digits = line[len(name) :].strip(b" \t")
                if not digits.isdigit() or len(digits) >= _MOST_DIGITS:
                    return None
                length = int(digits)
            elif _PLAIN_LINE.fullmatch(line) is None:
                return None
        self._lines = lines
        fields = lines[1:-1]
        for number in self._dropped:
            del fields[number - 1]
        head = ResponseHead()
        head.status = last.status
        head.reason = last.reason
        head.http11 = head.keep_alive = True
        head.upgrade = None
        head.idle_limit = 0
        head.fields = b"\r\n".join(fields)
        head.declared_length = last.declared_length = length
        head.length = 0 if length is None or _has_no_body(head.status, request_method) else length
        return head

    def _remember(self, lines: list[bytes], head: ResponseHead) -> None:
        self._last = None
        if not (head.http11 and head.keep_alive and head.status >= 200) or head.declared_length is None:
            return
        names: list[bytes] = []
        dropped: list[int] = []
        length_line = 0
        for number, line in enumerate(lines):
            name = line[: line.find(b":") + 1] if number else b""
            special = _RESPONSE_SPECIAL.match(b"\n%b\r" % line)
            if special is not None:
                dropped.insert(0, number)
                if name.lower() == b"content-length:" and not length_line:
                    length_line = number
                elif name.lower() == b"connection:" and special[2] == b"keep-alive":
                    name = b""
                else:
                    return
            names.append(name)
        self._last, self._lines, self._names = head, lines, names
        self._length_line, self._dropped = length_line, dropped


def parse_response_head(raw: bytes, request_method: bytes) -> ResponseHead:
    """Parse one response head, from the status line to the empty line.

    Raises UpstreamProtocolError for an invalid or ambiguous head.
    """
    try:
        httptools.HttpResponseParser(_NO_CALLBACKS).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise UpstreamProtocolError(f"malformed response head: {error}") from None
    line_end = raw.find(b"\r\n")
    head = ResponseHead()
    head.upgrade = None
    head.idle_limit = 0
    usual = _STATUS_LINES.get(raw[:line_end])
    if usual is not None:
        status, head.reason = usual
        head.status = status
        head.http11 = True
        parts = _RESPONSE_SPECIAL.split(raw[line_end:])
        length = _only_length(parts)
        if length is not None:
            head.keep_alive = True
            head.fields = b"".join(parts[::3])[2:-2]
            head.declared_length = length
            head.length = 0 if _has_no_body(status, request_method) else length
            return head
    else:
        _set_status(head, raw[:line_end])
    head.fields, special = _split_special(raw, line_end, _RESPONSE_SPECIAL)
    head.keep_alive = head.http11
    if options := special.get(b"connection"):
        connection = _connection_options(options)
        head.keep_alive = b"close" not in connection and (head.http11 or b"keep-alive" in connection)
        if nominated := connection - _NEVER_NAMED:
            head.fields = _without(head.fields, nominated)
    if (kept := special.get(b"keep-alive")) and (found := _KEEP_ALIVE.search(kept[0])):
        head.idle_limit = int(found[1])
    if upgrade := special.get(b"upgrade"):
        head.upgrade = upgrade[0]
    _set_response_length(head, special, request_method)
    return head


def _has_no_body(status: int, request_method: bytes) -> bool:
    return status < 200 or status == 204 or status == 304 or request_method == b"HEAD"


def _only_length(parts: Sequence[bytes]) -> int | None:
    """Return the Content-Length if it is the only hop-by-hop field except `Connection: keep-alive`, else None.

    `parts`: as in `_split_special`. In this usual case no further checks are needed.
    """
    length = None
    for index in range(1, len(parts), 3):
        value = parts[index + 1]
        if (
            value.isdigit()
            and length is None
            and len(value) < _MOST_DIGITS
            and parts[index].lower() == b"content-length"
        ):
            length = int(value)
        elif value != b"keep-alive" or parts[index].lower() != b"connection":
            return None
    return length


def _set_status(head: ResponseHead, line: bytes) -> None:
    version, _, rest = line.partition(b" ")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise UpstreamProtocolError("the response is neither HTTP/1.1 nor HTTP/1.0")
    head.http11 = version == b"HTTP/1.1"
    head.status = int(rest[:3])
    head.reason = rest[4:]
    if head.status < 100 or _CONTROL.search(head.reason):
        raise UpstreamProtocolError("malformed status line")


def _set_response_length(head: ResponseHead, special: dict[bytes, list[bytes]], request_method: bytes) -> None:
    """Set the framing of the body (RFC 9112 6.3)."""
    codings = special.get(b"transfer-encoding")
    lengths = special.get(b"content-length")
    declared: int | None = None
    if lengths is not None:
        declared = parse_length(lengths[0])
        if declared is None or (len(lengths) > 1 and len(set(lengths)) > 1):
            raise UpstreamProtocolError("malformed Content-Length in a response")
    if codings is not None and (
        len(codings) != 1 or codings[0].lower() != b"chunked" or lengths is not None or not head.http11
    ):
        raise UpstreamProtocolError("ambiguous framing of a response: Transfer-Encoding")
    head.declared_length = declared
    if _has_no_body(head.status, request_method):
        head.length = 0
    elif declared is not None:
        head.length = declared
    elif codings is not None:
        head.length = CHUNKED
    else:
        head.length = UNTIL_CLOSE
        head.keep_alive = False
