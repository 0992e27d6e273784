"""Cross-origin resource sharing: decides which origins' web pages may use a server. Pure.

Source: k8s.io/apiserver `pkg/server/filters/cors.go` (the headers and their values, `--cors-allowed-origins`); WHATWG
Fetch 3.2. A kube-apiserver matches origins with regular expressions. Here origins are compared completely, or after one
leading label, so that no pattern allows more than it seems to.
"""

from __future__ import annotations

import re

from mcproxy.config import model
from mcproxy.http.messages import RequestHead

_FIELDS = (
    b"Access-Control-Allow-Origin: %b\r\n"
    b"Access-Control-Allow-Methods: POST, GET, OPTIONS, PUT, DELETE, PATCH\r\n"
    b"Access-Control-Allow-Headers: Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, "
    b"X-Requested-With, If-Modified-Since\r\n"
    b"Access-Control-Expose-Headers: Date\r\n"
    b"Access-Control-Allow-Credentials: true\r\n"
)
_OWN_FIELDS = re.compile(rb"(?im)^access-control-[^\r\n]*\r\n")
_DEFAULT_PORTS = ((b"https://", b":443"), (b"http://", b":80"))
_MAX_ORIGIN = 512  # maximum bytes of an Origin
_LABEL = re.compile(rb"[a-z0-9_-]+")


class CORSPolicy:
    """The allowed origins of one server."""

    __slots__ = ("_exact", "_wildcards")

    def __init__(self, config: model.CORS) -> None:
        origins = [origin.encode() for origin in config.allowed_origins]
        self._exact = frozenset(origin for origin in origins if b"*" not in origin)
        # "https://*.example.com" -> (b"https://", b".example.com")
        self._wildcards = tuple(
            (scheme, rest) for scheme, star, rest in (origin.partition(b"*") for origin in origins) if star
        )

    def response_fields(self, head: RequestHead) -> bytes:
        """Return the CORS fields for every response to this request, as a block; b"" if its origin is not allowed."""
        origin = head.header(b"origin")
        return _FIELDS % origin if origin is not None and self.allows(origin) else b""

    def allows(self, origin: bytes) -> bool:
        """Return whether an Origin header's value is allowed; "null" never is, since any sandboxed page can have it."""
        if origin in self._exact:
            return True
        if len(origin) > _MAX_ORIGIN:
            return False
        origin = _normalized(origin)
        if origin in self._exact:
            return True
        return any(
            origin.startswith(scheme)
            and origin.endswith(rest)
            and _LABEL.fullmatch(origin, len(scheme), len(origin) - len(rest)) is not None
            for scheme, rest in self._wildcards
        )


def is_preflight(head: RequestHead) -> bool:
    """Return whether the request is a CORS preflight, which asks whether the browser may send the actual request."""
    return head.method == b"OPTIONS" and head.header(b"access-control-request-method") is not None


def replace_fields(fields: bytes, own: bytes) -> bytes:
    """Return the fields of a cluster's response with its Access-Control-* fields replaced by `own`."""
    return _OWN_FIELDS.sub(b"", fields) + own


def _normalized(origin: bytes) -> bytes:
    """Return an origin in lower case and without its scheme's default port, in the form that browsers send."""
    origin = origin.lower()
    for scheme, port in _DEFAULT_PORTS:
        if origin.startswith(scheme):
            return origin.removesuffix(port)
    return origin
