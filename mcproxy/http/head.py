"""Heads: from raw bytes to a checked `RequestHead` or `ResponseHead`.

llhttp (httptools) parses; this file adds the judgements that llhttp leaves open and that decide who a request is for
and where it ends (RFC 9112 sections 2.2, 3, 6; RFC 9110 sections 7.2 and 7.6.1). A head comes whole, from its first
byte to the empty line: so the engines know exactly which bytes belong to which message, whatever follows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import httptools

from mcproxy.http.messages import (
    CHUNKED,
    HOP_BY_HOP,
    UNTIL_CLOSE,
    Header,
    ProtocolError,
    RequestHead,
    ResponseHead,
    UpstreamProtocolError,
)

# RFC 9110 7.2: uri-host [":" port]. Underscores are common in private names and harmless.
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_BARE_LF = re.compile(rb"(?:^|[^\r])\n")
_MAX_LENGTH = 2**63 - 1

# Fields of a request that mean something to this hop: looked up once for each field, so absent ones cost nothing.
_REQUEST_SPECIAL = HOP_BY_HOP | {b"host", b"content-length", b"expect"}


class _Collector:
    """Receives llhttp's callbacks for one head."""

    __slots__ = ("fields", "reason", "target")

    def __init__(self) -> None:
        self.target = b""
        self.reason = b""
        self.fields: list[Header] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value.strip(b" \t")))


def incomplete_head_error(data: bytes) -> str | None:
    """Say what makes the beginning of a head hopeless before its end has come, or None: don't wait for the rest."""
    if _BARE_LF.search(data):
        return "line feed without carriage return in the request head"
    if b"\x00" in data:
        return "NUL in the request head"
    return None


def parse_request_head(raw: bytes, max_target: int, max_headers: int) -> RequestHead:
    """Parse one request head, `raw` being all of it with the empty line at its end.

    Raises ProtocolError with the status that the refusal gets.
    """
    if raw.startswith(b"\r\n"):  # RFC 9112 2.2: one empty line before the request line is tolerated
        raw = raw[2:]
    line_end = raw.find(b"\r\n")
    if raw.count(b" ", 0, line_end) != 2:
        raise ProtocolError(400, "malformed request line")
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # the head is complete; what follows it is ours to judge
    except httptools.HttpParserError as error:
        raise ProtocolError(*_parser_verdict(raw, error)) from None
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        if version == "0.9":
            raise ProtocolError(400, "malformed request line")
        raise ProtocolError(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if len(collector.fields) > max_headers:
        raise ProtocolError(431, f"more than {max_headers} header fields")
    if len(collector.target) > max_target:
        raise ProtocolError(414, f"the request target is longer than {max_target} bytes")

    head = RequestHead()
    head.method = parser.get_method()
    head.http11 = version == "1.1"
    _judge_request_fields(head, collector.fields)
    _judge_target(head, collector.target)
    return head


def _parser_verdict(raw: bytes, error: Exception) -> tuple[int, str]:
    """Return status and message for a head that llhttp refused."""
    request_line = raw[: raw.find(b"\r\n")]
    version = re.search(rb" HTTP/([0-9]+)\.[0-9]+$", request_line)
    if version and version[1] not in (b"1", b"0"):
        return 505, "only HTTP/1.1 and HTTP/1.0 are spoken here"
    return 400, f"malformed request head: {error}"


def _judge_request_fields(head: RequestHead, fields: list[Header]) -> None:
    passing: list[Header] = []
    special: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        name = name.lower()
        if name in _REQUEST_SPECIAL:
            special.setdefault(name, []).append(value)
        else:
            passing.append((name, value))

    hosts = special.get(b"host", ())
    if len(hosts) != 1 and (head.http11 or hosts):
        raise ProtocolError(400, "an HTTP/1.1 request has exactly one Host header")
    head.host = hosts[0].lower() if hosts else b""
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise ProtocolError(400, "malformed Host header")

    head.length = _request_length(head.http11, special)
    connection = _connection_options(special.get(b"connection", ()))
    head.keep_alive = head.http11 and b"close" not in connection
    head.te_trailers = any(b"trailers" in value.lower() for value in special.get(b"te", ()))
    head.expects_continue = False
    if expectation := special.get(b"expect"):
        if [value.lower() for value in expectation] != [b"100-continue"]:
            raise ProtocolError(417, "the only expectation that can be met is 100-continue")
        # RFC 9110 10.1.1: without a body, or from HTTP/1.0, it is ignored.
        head.expects_continue = head.http11 and head.length != 0
    head.upgrade = None
    if b"upgrade" in connection and head.http11:
        head.upgrade = _tunnel_protocol(special.get(b"upgrade", ()))
    if named := connection - _REQUEST_SPECIAL - {b"close"}:
        passing = [field for field in passing if field[0] not in named]
    head.headers = passing


def _request_length(http11: bool, special: dict[bytes, list[bytes]]) -> int:
    """Return the body's framing (RFC 9112 6.3); anything that two parsers could read in two ways is refused."""
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
            raise ProtocolError(501, "the only transfer coding that is understood is chunked")
        return CHUNKED
    if lengths is None:
        return 0
    if len(lengths) != 1 or not lengths[0].isdigit() or int(lengths[0]) > _MAX_LENGTH:
        raise ProtocolError(400, "malformed Content-Length")
    return int(lengths[0])


def _connection_options(values: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(option.strip(b" \t").lower() for value in values for option in value.split(b","))


def _tunnel_protocol(values: Iterable[bytes]) -> bytes | None:
    """Return the protocol that opens a tunnel here; all others (h2c) are ignored, as RFC 9110 7.8 allows."""
    for value in values:
        for protocol in value.split(b","):
            protocol = protocol.strip(b" \t")
            if protocol.lower() in (b"websocket", b"spdy/3.1"):
                return protocol
    return None


def _judge_target(head: RequestHead, target: bytes) -> None:
    if head.method == b"CONNECT":
        raise ProtocolError(405, "CONNECT is not served here")
    if b"#" in target:
        raise ProtocolError(400, "a request target has no fragment")
    if target.startswith(b"/"):
        head.target = target
    elif target == b"*":
        if head.method != b"OPTIONS":
            raise ProtocolError(400, "the target * belongs to OPTIONS")
        head.target = target
    else:
        head.target = _origin_form(head.host, target)


def _origin_form(host: bytes, target: bytes) -> bytes:
    """Return the origin-form of an absolute-form target (RFC 9112 3.2.2) whose authority is the one that Host names."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise ProtocolError(400, "malformed request target")
    match = re.match(rb"[^/?]*", rest)
    authority = match[0] if match else b""
    if not authority or authority.lower() != host:
        raise ProtocolError(400, "the request target and the Host header name different authorities")
    path = rest[len(authority) :]
    return path if path.startswith(b"/") else b"/" + path


def parse_response_head(raw: bytes, request_method: bytes) -> ResponseHead:
    """Parse one response head, from the status line to the empty line.

    Raises UpstreamProtocolError for what cannot be understood in exactly one way.
    """
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    try:
        parser.feed_data(raw)
        status = parser.get_status_code()
    except httptools.HttpParserUpgrade:
        status = parser.get_status_code()
    except httptools.HttpParserError as error:
        raise UpstreamProtocolError(f"malformed response head: {error}") from None
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise UpstreamProtocolError(f"response in HTTP/{version}")

    head = ResponseHead()
    head.status = status
    head.reason = collector.reason
    head.http11 = version == "1.1"
    passing: list[Header] = []
    special: dict[bytes, list[bytes]] = {}
    for field in collector.fields:
        name = field[0].lower()
        if name in HOP_BY_HOP or name == b"content-length":
            special.setdefault(name, []).append(field[1])
        else:
            passing.append(field)
    connection = _connection_options(special.get(b"connection", ()))
    head.keep_alive = b"close" not in connection and (head.http11 or b"keep-alive" in connection)
    upgrade = special.get(b"upgrade")
    head.upgrade = upgrade[0] if upgrade else None
    if named := connection - HOP_BY_HOP - {b"close", b"content-length"}:
        passing = [field for field in passing if field[0].lower() not in named]
    head.headers = passing
    _judge_response_length(head, special, request_method)
    return head


def _judge_response_length(head: ResponseHead, special: dict[bytes, list[bytes]], request_method: bytes) -> None:
    """Set the framing of the body (RFC 9112 6.3)."""
    codings = special.get(b"transfer-encoding")
    lengths = special.get(b"content-length")
    if codings is not None and (len(codings) != 1 or codings[0].lower() != b"chunked" or lengths is not None):
        raise UpstreamProtocolError("ambiguous framing of a response: Transfer-Encoding")
    head.declared_length = None
    if lengths is not None:
        if len(set(lengths)) != 1 or not lengths[0].isdigit():
            raise UpstreamProtocolError("malformed Content-Length in a response")
        head.declared_length = int(lengths[0])
    if request_method == b"HEAD" or head.status < 200 or head.status in (204, 304):
        head.length = 0
    elif codings is not None:
        head.length = CHUNKED
    elif head.declared_length is not None:
        head.length = head.declared_length
    else:
        head.length = UNTIL_CLOSE
        head.keep_alive = False
