"""The proxy's own answers to gRPC calls: a gRPC status in place of an HTTP one. Pure.

An HTTP status would reach the application as a guess of its library. The answer is Trailers-Only (gRPC over HTTP/2,
PROTOCOL-HTTP2.md): one head with status 200, of which the client reads `grpc-status` and `grpc-message`.
"""

from __future__ import annotations

from email.utils import formatdate
from urllib.parse import quote

from mcproxy.http.messages import RequestHead
from mcproxy.net.wall_time import WallSeconds

_CODES = {400: 13, 401: 16, 403: 7, 404: 12, 413: 8, 429: 14, 500: 14, 502: 14, 503: 14, 504: 4}
"""grpc/doc/http-grpc-status-mapping.md, but for 413 (RESOURCE_EXHAUSTED), 500 (of ours: no cluster has the service) and
504 (DEADLINE_EXCEEDED, of which the document has no occasion)."""
_UNKNOWN = 2
_KIND = b"application/grpc"


def is_grpc(head: RequestHead) -> bool:
    """Whether a request is a gRPC call: neither gRPC-Web, which browsers send, nor Connect, whose errors are HTTP's."""
    kind = head.header(b"content-type")
    if kind is None:
        return False
    kind = kind.lower()
    return kind.startswith(_KIND) and kind[len(_KIND) :][:1] in (b"", b"+", b";")


def grpc_answer(status: int, message: str, now: WallSeconds) -> bytes:
    """Return the fields of the answer to a call that HTTP would answer with `status`."""
    return b"Content-Type: application/grpc\r\ngrpc-status: %d\r\ngrpc-message: %b\r\nDate: %b\r\n" % (
        _CODES.get(status, _UNKNOWN),
        quote(message, safe=" !#$&'()*+,/:;=?@[]").encode(),
        formatdate(now, usegmt=True).encode(),
    )
