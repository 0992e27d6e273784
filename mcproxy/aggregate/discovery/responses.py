"""Sends responses to discovery and OpenAPI requests as complete bodies, in the form of a kube-apiserver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcproxy.kube import media_types

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest

TEXT = "text/plain; charset=utf-8"
PRIVATE = b"no-cache, private"
NOSNIFF = b"X-Content-Type-Options: nosniff\r\n"
_REASONS = {301: b"Moved Permanently", 304: b"Not Modified", 406: b"Not Acceptable"}


def accept_of(request: AggregatedRequest) -> str:
    """Return the Accept field of a request, "" if there is none."""
    return (request.head.header(b"accept") or b"").decode("latin-1")


def has_etag(request: AggregatedRequest, etag: bytes) -> bool:
    """Return whether If-None-Match matches `etag`, which includes the quotes (RFC 9110 13.1.2)."""
    field = request.head.header(b"if-none-match")
    if field is None:
        return False
    return field.strip() == b"*" or any(one.strip().removeprefix(b"W/") == etag for one in field.split(b","))


def send(
    request: AggregatedRequest,
    body: bytes,
    content_type: str = media_types.JSON,
    *,
    status: int = 200,
    more: bytes = b"",
    cache_control: bytes = PRIVATE,
) -> None:
    """Send a response; `more` is a block of additional header fields. HEAD gets no body."""
    if content_type:
        more = b"Content-Type: %b\r\n%b" % (content_type.encode("latin-1"), more)
    fields = request.own_fields(more, cache_control=cache_control)
    request.exchange.answer(status, fields, body, _REASONS.get(status, b""))


def send_text(request: AggregatedRequest, text: str, *, status: int = 200) -> None:
    """Send plain text as a kube-apiserver does."""
    send(request, text.encode(), TEXT, status=status, more=NOSNIFF)


def send_not_modified(request: AggregatedRequest, more: bytes, *, cache_control: bytes) -> None:
    """Send a 304, which has no Content-Type."""
    fields = request.own_fields(more, cache_control=cache_control)
    request.exchange.respond(304, _REASONS[304], fields, 0)
    request.exchange.end()


def send_page_not_found(request: AggregatedRequest) -> None:
    """Send the plain-text 404 for a path that is not served."""
    send_text(request, "404 page not found\n", status=404)
