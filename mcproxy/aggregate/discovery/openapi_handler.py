"""HTTP handler of /openapi/v2 and /openapi/v3: media types, ETag, hashes in URLs, the redirect from an old hash.

Source: k8s.io/kube-openapi `pkg/handler` and `pkg/handler3`, and the recorded answers of a kube-apiserver.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.aggregate.discovery.merge_cache import AggregateMerges, VisibleClusters
from mcproxy.aggregate.discovery.openapi import JSON, V2_PROTOBUF, V3_PROTOBUF, DocumentChanged, NoSuchForm, OpenAPI
from mcproxy.aggregate.discovery.openapi_documents import CompressedDocument, write_index
from mcproxy.aggregate.discovery.responses import (
    PRIVATE,
    TEXT,
    accept_of,
    has_etag,
    send,
    send_not_modified,
    send_page_not_found,
)
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.kube import media_types
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.kube.status import method_not_allowed, retry_after
from mcproxy.net.client_table import UNIX

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest

log = Logger(__name__)

_HASH = re.compile(rb"(?:^|&)hash=([A-Za-z0-9]{1,200})(?=&|$)")
_YEAR = timedelta(days=365)
_ATTEMPTS = 3
_RETRY_AFTER = 5  # seconds
_IMMUTABLE = b"public, immutable"
_OLD_NAMES = {V2_PROTOBUF: "v2@v1.0", V3_PROTOBUF: "v3@v1.0"}


async def serve(
    request: AggregatedRequest, openapi: OpenAPI, merges: AggregateMerges, segments: list[str], shown: VisibleClusters
) -> None:
    """Answer a path below /openapi. Raises StatusError 405, and 503 if no cluster gives the document."""
    if request.head.method not in (b"GET", b"HEAD"):
        raise method_not_allowed()
    await merges.ready()
    try:
        if segments == ["openapi", "v2"]:
            await _serve_v2(request, openapi, merges, shown)
        elif segments == ["openapi", "v3"]:
            await _serve_index(request, openapi, merges, shown)
        elif segments[:2] == ["openapi", "v3"]:
            await _serve_document(request, openapi, merges, "/".join(segments[2:]), shown)
        else:
            send_page_not_found(request)
    except (MemberError, DiscoveryError) as error:
        log.warn(
            "an OpenAPI document cannot be read",
            event="openapi_unreadable",
            path=request.info.path,
            cause=error.cause if isinstance(error, MemberError) else str(error),
            client=str(getattr(request.exchange.connection.client, "host", UNIX)),
        )
        raise retry_after(503, "the OpenAPI document cannot be read from its cluster now", _RETRY_AFTER) from None


async def _serve_index(
    request: AggregatedRequest, openapi: OpenAPI, merges: AggregateMerges, shown: VisibleClusters
) -> None:
    body = write_index(await openapi.published(merges, shown))
    etag = b'"%b"' % hashlib.sha256(body).hexdigest().upper().encode()
    more = b"ETag: %b\r\n" % etag
    if has_etag(request, etag):
        send_not_modified(request, more, cache_control=PRIVATE)
    else:
        send(request, body, TEXT, more=more)


async def _serve_document(
    request: AggregatedRequest, openapi: OpenAPI, merges: AggregateMerges, path: str, shown: VisibleClusters
) -> None:
    forms = _forms(accept_of(request), V3_PROTOBUF)
    sent = _HASH.search(request.target.partition(b"?")[2])
    for _ in range(_ATTEMPTS):
        published = (await openapi.published(merges, shown)).get(path)
        undecided = shown.undecided or _is_of(path, shown.undecided_services)
        if published is None and (undecided or not merges.of(shown).complete):
            raise retry_after(503, "it is not known now which clusters have the OpenAPI document", _RETRY_AFTER)
        if published is None:
            send(request, b"", "", status=404)
            return
        if not forms:
            _send_not_acceptable(request)
            return
        current = published.hash.encode()
        if sent is not None and current and sent[1] != current:
            location = b"/openapi/v3/%b?hash=%b" % (path.encode(), current)
            more = b'ETag: "%b"\r\nLocation: %b\r\nVary: Accept\r\n' % (current, location)
            send(request, b"", JSON, status=301, more=more)
            return
        cache_control, more = PRIVATE, b""
        if sent is not None and current:
            expires = datetime.fromtimestamp(request.exchange.connection.wall_seconds(), UTC) + _YEAR
            cache_control = _IMMUTABLE
            more = expires.strftime("Expires: %a, %d %b %Y %H:%M:%S UTC\r\n").encode()
        if current and has_etag(request, b'"%b"' % current):
            more = b'ETag: "%b"\r\nVary: Accept\r\n%b' % (current, more)
            send_not_modified(request, more, cache_control=cache_control)
            return
        try:
            found = await _first(forms, partial(openapi.document, merges, path, published))
        except DocumentChanged:
            continue
        _send_document(request, found, more, cache_control)
        return
    raise MemberError("the OpenAPI document changes faster than it can be read")


def _is_of(path: str, group_versions: Collection[tuple[str, str]]) -> bool:
    """Whether the document at a path belongs to one of these group-versions."""
    return tuple(path.split("/")[1:]) in group_versions


async def _serve_v2(
    request: AggregatedRequest, openapi: OpenAPI, merges: AggregateMerges, shown: VisibleClusters
) -> None:
    forms = _forms(accept_of(request), V2_PROTOBUF)
    found = await _first(forms, partial(openapi.document_v2, merges, shown))
    if found is None:
        found = await _first(forms, partial(openapi.document_v2, merges, shown, partial=True))
    if found is not None and has_etag(request, found[0].etag):
        more = b"ETag: %b\r\nVary: Accept-Encoding\r\nVary: Accept\r\n" % found[0].etag
        send_not_modified(request, more, cache_control=PRIVATE)
    else:
        _send_document(request, found, b"", PRIVATE)


async def _first(
    forms: Sequence[str], get: Callable[[str], Coroutine[Deferred[Any], Any, CompressedDocument]]
) -> tuple[CompressedDocument, str] | None:
    """Return the document in the first available form, and that form."""
    for form in forms:
        try:
            return await get(form), form
        except NoSuchForm:
            continue
    return None


def _forms(accept: str, protobuf: str) -> list[str]:
    """Return the accepted media types among JSON and `protobuf`, the preferred one first."""
    if not accept:
        return [JSON]
    old_name = f"application/com.github.proto-openapi.spec.{_OLD_NAMES[protobuf]}+protobuf"
    found = []
    for clause in media_types.clauses(accept):
        if media_types.matches(JSON, clause.media_type):
            found.append(JSON)
        elif clause.media_type in (protobuf, old_name):
            found.append(protobuf)
    return list(dict.fromkeys(found))


def _send_not_acceptable(request: AggregatedRequest) -> None:
    """Send a 406 without a body, as a kube-apiserver does for OpenAPI paths."""
    send(request, b"", "", status=406, more=b"Vary: Accept-Encoding\r\nVary: Accept\r\n")


def _send_document(
    request: AggregatedRequest, found: tuple[CompressedDocument, str] | None, more: bytes, cache_control: bytes
) -> None:
    """Send a document in its form, or the 406 if it is available in no accepted form."""
    if found is None:
        _send_not_acceptable(request)
        return
    document, form = found
    modified = formatdate(document.made_at, usegmt=True).encode()
    own = b"ETag: %b\r\nLast-Modified: %b\r\nVary: Accept-Encoding\r\nVary: Accept\r\n" % (document.etag, modified)
    if media_types.accepts_gzip(request.head.header(b"accept-encoding")):
        zipped = b"Content-Encoding: gzip\r\n" + own + more
        send(request, document.zipped, form, more=zipped, cache_control=cache_control)
    else:
        send(request, document.body(), form, more=own + more, cache_control=cache_control)
