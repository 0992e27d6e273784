"""What a request says to the cluster of its body, its connection and its time. Pure."""

from __future__ import annotations

from mcproxy.http.messages import CHUNKED, RequestHead
from mcproxy.kube import duration
from mcproxy.kube.requestinfo import RequestInfo, timeout_parameter

_BODIED = frozenset({b"POST", b"PUT", b"PATCH"})  # these say it when their body is empty (RFC 9110 8.6)


def framing(head: RequestHead) -> bytes:
    """Return the fields that tell of the body and of the connection, as a block; most often there are none."""
    if not head.length and head.upgrade is None and not head.te_trailers and head.method not in _BODIED:
        return b""
    fields = b""
    if head.length == CHUNKED:
        fields = b"Transfer-Encoding: chunked\r\n"
    elif head.length or head.method in _BODIED:
        fields = b"Content-Length: %d\r\n" % head.length
    if head.expects_continue:
        fields += b"Expect: 100-continue\r\n"
    if head.upgrade is not None:
        fields += b"X-Forwarded-Uri: %b\r\nConnection: Upgrade\r\nUpgrade: %b\r\n" % (head.target, head.upgrade)
    elif head.te_trailers:
        fields += b"TE: trailers\r\nConnection: TE\r\n"
    return fields


def response_timeout(head: RequestHead, info: RequestInfo | None, target: bytes, usual: float) -> float:
    """Return how long the response's first byte may take (seconds); 0 for requests that may take for ever.

    `target` is as the cluster is asked: the time in its query counts instead of the `usual` one.
    """
    if info is None or info.long_running or head.upgrade is not None:
        return 0.0
    asked = timeout_parameter(target)
    seconds = duration.parse(asked) if asked else None
    return seconds or usual
