"""The framing and connection fields of a request to a cluster, and its response timeout. Pure."""

from __future__ import annotations

from mcproxy.http.messages import CHUNKED, RequestHead
from mcproxy.kube import duration
from mcproxy.kube.requestinfo import RequestInfo, timeout_parameter

_BODIED = frozenset({b"POST", b"PUT", b"PATCH"})  # these send Content-Length: 0 for an empty body (RFC 9110 8.6)


def framing_fields(head: RequestHead) -> bytes:
    """Return the framing and connection fields as a block; most often it is empty."""
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


def response_timeout(info: RequestInfo | None, target: bytes, usual: float) -> float:
    """Return how long the response's first byte may take, in seconds; 0: no limit, for long-running requests.

    That includes requests with an Upgrade header: they have the time of short requests until the cluster answers.

    `target` is the one sent to the cluster; `timeout` in its query takes precedence over `usual`.
    """
    if info is None or info.long_running:
        return 0.0
    asked = timeout_parameter(target)
    seconds = duration.parse(asked) if asked else None
    return seconds or usual
