"""Request and response heads, and the protocol errors of both sides."""

from __future__ import annotations

Header = tuple[bytes, bytes]

#: `length` of a message whose body is chunked.
CHUNKED = -1
#: `length` of a response whose body ends with the connection.
UNTIL_CLOSE = -2

# RFC 9110 7.6.1, and obsolete ones. `te` is handled separately: "trailers" passes.
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

REASON_PHRASES = {
    100: b"Continue",
    101: b"Switching Protocols",
    200: b"OK",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    413: b"Request Entity Too Large",
    414: b"Request URI Too Long",
    417: b"Expectation Failed",
    421: b"Misdirected Request",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}


class ProtocolError(Exception):
    """A client violated the protocol or a limit: the response has `status`, and the connection closes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class UpstreamProtocolError(Exception):
    """An upstream violated the protocol; its connection cannot be used further."""


class RequestHead:
    """A validated request head.

    `fields` are the end-to-end fields as the client sent them, in their order: "Name: value" and a line end each.
    Hop-by-hop fields, those that `Connection` lists, Host, Content-Length and Expect are not in it but have attributes.
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

    __slots__ = ("declared_length", "fields", "http11", "keep_alive", "length", "reason", "status", "upgrade")

    status: int
    reason: bytes
    http11: bool
    fields: bytes
    length: int  # of the body that follows: bytes, CHUNKED or UNTIL_CLOSE
    declared_length: int | None  # Content-Length as sent, also where no body follows (HEAD, 304)
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
    value = begin + len(mark) - 1  # the searched block has one byte more at its beginning
    return fields[value : fields.find(b"\r\n", value)].strip(b" \t")
