"""Request and response heads, and the protocol errors of both sides."""

from __future__ import annotations

from typing import Final

Header = tuple[bytes, bytes]

#: Value of `length` for a message with a chunked body.
CHUNKED: Final = -1
#: Value of `length` for a response whose body ends with the connection.
UNTIL_CLOSE: Final = -2

# Hop-by-hop fields of RFC 9110 7.6.1, and obsolete ones. `te` is handled separately, because "trailers" passes.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"proxy-connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)

#: Methods whose requests have a Content-Length of 0 if their body is empty (RFC 9110 8.6).
BODIED_METHODS = frozenset({b"POST", b"PUT", b"PATCH"})

REASON_PHRASES = {
    100: b"Continue",
    101: b"Switching Protocols",
    102: b"Processing",
    103: b"Early Hints",
    200: b"OK",
    201: b"Created",
    202: b"Accepted",
    203: b"Non-Authoritative Information",
    204: b"No Content",
    205: b"Reset Content",
    206: b"Partial Content",
    207: b"Multi-Status",
    300: b"Multiple Choices",
    301: b"Moved Permanently",
    302: b"Found",
    303: b"See Other",
    304: b"Not Modified",
    307: b"Temporary Redirect",
    308: b"Permanent Redirect",
    400: b"Bad Request",
    401: b"Unauthorized",
    402: b"Payment Required",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    406: b"Not Acceptable",
    407: b"Proxy Authentication Required",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    411: b"Length Required",
    412: b"Precondition Failed",
    413: b"Request Entity Too Large",
    414: b"Request URI Too Long",
    415: b"Unsupported Media Type",
    416: b"Requested Range Not Satisfiable",
    417: b"Expectation Failed",
    418: b"I'm a teapot",
    421: b"Misdirected Request",
    422: b"Unprocessable Entity",
    423: b"Locked",
    424: b"Failed Dependency",
    425: b"Too Early",
    426: b"Upgrade Required",
    428: b"Precondition Required",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    451: b"Unavailable For Legal Reasons",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
    507: b"Insufficient Storage",
    508: b"Loop Detected",
    511: b"Network Authentication Required",
}


class ProtocolError(Exception):
    """A client has violated the protocol or a limit. The response has `status`, and the connection closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class UpstreamProtocolError(Exception):
    """An upstream has violated the protocol; its connection cannot be used further."""


class RequestHead:
    """A validated request head.

    `fields` are the end-to-end fields as the client sent them, in order: "Name: value" and a line end each. They
    exclude hop-by-hop fields, fields that `Connection` lists, Host, Content-Length and Expect; attributes hold these.
    """

    __slots__ = (
        "expects_continue",
        "fields",
        "host",
        "http11",
        "keep_alive",
        "length",
        "method",
        "target",
        "te_trailers",
        "upgrade",
    )

    method: bytes
    target: bytes  # origin-form ("/path?query") or b"*", byte for byte as sent
    http11: bool
    host: bytes  # lower case, with the port if one was given; b"" only in HTTP/1.0
    fields: bytes
    length: int  # bytes of the body, 0 for none, CHUNKED
    keep_alive: bool
    upgrade: bytes | None  # b"websocket" or b"SPDY/3.1" as the client sent it
    expects_continue: bool
    te_trailers: bool

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a field (name in lower case), None if it is absent."""
        return first_value(self.fields, name)


class ResponseHead:
    """A validated response head; `fields` are the end-to-end fields as received, without Content-Length."""

    __slots__ = (
        "declared_length",
        "fields",
        "http11",
        "idle_limit",
        "keep_alive",
        "length",
        "reason",
        "status",
        "upgrade",
    )

    idle_limit: int  # over HTTP/1.1: seconds of Keep-Alive: timeout (RFC 2068 19.7.1.1); 0 if not specified
    status: int
    reason: bytes
    http11: bool
    fields: bytes
    length: int  # length of the following body: bytes, CHUNKED or UNTIL_CLOSE
    declared_length: int | None  # Content-Length as sent, also if no body follows (HEAD, 304)
    keep_alive: bool
    upgrade: bytes | None

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a field (name in lower case), None if it is absent."""
        return first_value(self.fields, name)


def split_fields(fields: bytes) -> list[Header]:
    """Return the fields of a head's `fields` block: names in lower case, values trimmed (RFC 9112 5)."""
    result = []
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        result.append((name.lower(), value.strip(b" \t")))
    return result


def first_value(fields: bytes, name: bytes) -> bytes | None:
    """Return the first value of a field (name in lower case) in a `fields` block, None if it is absent."""
    mark = b"\n%b:" % name
    begin = (b"\n" + fields.lower()).find(mark)
    if begin < 0:
        return None
    value = begin + len(mark) - 1  # the searched block has one additional byte at its beginning
    return fields[value : fields.find(b"\r\n", value)].strip(b" \t")
