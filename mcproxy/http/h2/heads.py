"""Converts the fields of a header block to a `RequestHead`, a `ResponseHead` or trailers (RFC 9113 8).

Messages that are malformed by RFC 9113 8.1.1 raise HTTP2StreamError with PROTOCOL_ERROR. All other checks are those of
HTTP/1.1 (`http.head_rules`), with the same responses to refused requests.
"""

from __future__ import annotations

from mcproxy.http.h2.frames import ErrorCode, HTTP2StreamError
from mcproxy.http.h2.hpack.checked_field import LAST_PSEUDO
from mcproxy.http.h2.hpack.decoder import DecodedFields
from mcproxy.http.head_rules import (
    MAX_TRAILERS,
    METHODS,
    check_expectation,
    check_target_length,
    may_pass_as_trailer,
    origin_target,
)
from mcproxy.http.messages import CHUNKED, Header, ProtocolError, RequestHead, ResponseHead

_NO_BODY = (204, 304)
_MAX_SHOWN = 32  # maximum of characters of a wrong :scheme in a message


def request_head(fields: DecodedFields, *, end_stream: bool, max_target: int) -> RequestHead:
    """Return the head of a request. `end_stream`: the request has no body.

    As in Go's server, :scheme may be http or https on any connection, because a proxy in front of this one may have
    copied it from a client without TLS (RFC 9113 8.3.1). It is not used further.

    Raises HTTP2StreamError for a malformed request, and ProtocolError with the response's status for a refused one.
    """
    method, scheme, authority, path, status, bad_authority, host, length, te, expect, _, _, bad_host, malformed = (
        fields.special
    )
    if malformed is not None:
        raise _malformed(malformed.decode("latin-1"))
    if fields.oversize is not None:
        raise ProtocolError(431, fields.oversize)
    if method is None or status is not None:
        raise _malformed("no :method" if method is None else ":status in a request")
    if scheme is None or path is None:
        raise _without_path(method, scheme, path)
    if scheme != b"https" and scheme != b"http":
        raise _malformed(f":scheme {scheme.decode('latin-1')[:_MAX_SHOWN]} is neither https nor http")
    if bad_authority is not None or bad_host is not None:
        raise _bad_host(bad_authority, bad_host)
    if authority is None:
        if host is None:
            raise ProtocolError(400, "an HTTP/2 request has :authority or a Host header")
        authority = host
    elif host is not None and host != authority:
        raise _malformed(":authority and Host name different authorities")
    if method not in METHODS:
        raise ProtocolError(400, "unknown method")
    if not path.isascii():
        raise ProtocolError(400, "malformed request target")
    if len(path) > max_target:
        check_target_length(path, max_target)
    head = RequestHead()
    head.method = method
    head.target = origin_target(method, authority, path)
    head.http11 = head.keep_alive = True
    head.host = authority
    head.fields = b"".join(fields.lines)
    head.upgrade = None
    head.te_trailers = te is not None
    head.expects_continue = False
    if end_stream:
        head.length = 0
        if length is not None and int(length):
            raise _malformed("content-length without a body")
    else:
        head.length = CHUNKED if length is None else int(length)
    if expect is not None:
        check_expectation([expect])
        head.expects_continue = head.length != 0
    return head


def _without_path(method: bytes, scheme: bytes | None, path: bytes | None) -> Exception:
    """Return the error of a request without :scheme or :path; CONNECT has neither (RFC 9113 8.5)."""
    if method == b"CONNECT" and scheme is None and path is None:
        return ProtocolError(405, "CONNECT is not supported")
    return _malformed("no :scheme" if scheme is None else "no :path")


def _bad_host(bad_authority: bytes | None, bad_host: bytes | None) -> Exception:
    if bad_authority is not None:
        return ProtocolError(400, "malformed :authority")
    return ProtocolError(400, "malformed Host header" if bad_host != b"host twice" else "more than one Host header")


def response_head(fields: DecodedFields, request_method: bytes, *, end_stream: bool) -> ResponseHead:
    """Return the head of a final or interim (1xx) response. `end_stream`: no body follows.

    Raises HTTP2StreamError for a malformed or too large head.
    """
    method, scheme, authority, path, status, bad_authority, _, length, _, _, _, _, _, malformed = fields.special
    if malformed is not None:
        raise _malformed(malformed.decode("latin-1"))
    if (
        method is not None
        or scheme is not None
        or authority is not None
        or path is not None
        or bad_authority is not None
    ):
        raise _malformed("a pseudo-header field of requests in a response")
    if fields.oversize is not None:
        raise HTTP2StreamError(ErrorCode.ENHANCE_YOUR_CALM, "the response head is too large")
    if status is None:
        raise _malformed("no :status")
    head = ResponseHead()
    code = head.status = int(status)
    head.reason = b""
    head.http11 = head.keep_alive = True
    head.upgrade = None
    head.fields = b"".join(fields.lines)
    declared = head.declared_length = None if length is None else int(length)
    if code < 200:
        if end_stream:
            raise _malformed("an interim response that ends the stream")
        if code == 101:
            raise _malformed("101 in HTTP/2")
        head.length = 0
    elif request_method == b"HEAD" or code in _NO_BODY:
        head.length = 0
    elif end_stream:
        if declared:
            raise _malformed("content-length without a body")
        head.length = 0
    else:
        head.length = CHUNKED if declared is None else declared
    return head


def trailer_fields(fields: DecodedFields) -> list[Header]:
    """Return the trailers that may pass, as in HTTP/1.1. Raises HTTP2StreamError for malformed or too many trailers."""
    special = fields.special
    if special[-1] is not None:
        raise _malformed(special[-1].decode("latin-1"))
    if any(value is not None for value in special[: LAST_PSEUDO + 1]):
        raise _malformed("a pseudo-header field in trailers")
    if fields.oversize is not None or sum(map(len, fields.lines)) > MAX_TRAILERS:
        raise HTTP2StreamError(ErrorCode.ENHANCE_YOUR_CALM, "too many trailer fields")
    trailers = []
    for line in fields.lines:
        name, _, value = line[:-2].partition(b": ")
        if may_pass_as_trailer(name):
            trailers.append((name, value))
    return trailers


def _malformed(cause: str) -> HTTP2StreamError:
    return HTTP2StreamError(ErrorCode.PROTOCOL_ERROR, f"malformed message: {cause}")
