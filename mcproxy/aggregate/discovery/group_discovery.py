"""HTTP of /api, /apis and the paths of groups and group-versions: negotiation, ETag, 404.

Source: KEP-3352; the recorded answers of a kube-apiserver 1.36, which serves v2 of the aggregated form and no v2beta1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcproxy.aggregate.discovery.documents import (
    AggregatedDocument,
    DiscoveryDocuments,
    PageNotFound,
    VersionUnavailable,
)
from mcproxy.aggregate.discovery.merge_cache import Merge, Shown
from mcproxy.aggregate.discovery.responses import (
    PRIVATE,
    accept_of,
    has_etag,
    send,
    send_not_modified,
    send_page_not_found,
    send_text,
)
from mcproxy.kube import media_types
from mcproxy.kube.discovery import AGGREGATED_MEDIA_TYPE
from mcproxy.kube.media_types import JSON, YAML, Clause
from mcproxy.kube.status import StatusError, method_not_allowed

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest

_AGGREGATED = "APIGroupDiscoveryList"


def is_discovery(segments: list[str]) -> bool:
    """Return whether a path is a discovery path; `segments` without an empty last one."""
    if segments[:1] == ["api"]:
        return len(segments) <= 2
    return segments[:1] == ["apis"] and len(segments) <= 3


def serve(request: AggregatedRequest, merge: Merge, segments: list[str], shown: Shown) -> None:
    """Answer a discovery path. Raises StatusError 404, 405, 406.

    What is not in the merge of what is `shown` is 404 only if it is known to be in no other cluster either.
    """
    documents = merge.documents
    if len(segments) == 1:
        _serve_root(request, merge, core=segments[0] == "api")
        return
    if request.head.method != b"GET":
        raise method_not_allowed()
    form = _negotiate(request, aggregated=False)
    undecided = not merge.complete or shown.may_have(segments[1] if segments[0] == "apis" else "")
    try:
        if segments[0] == "api":
            body = documents.resource_list("", segments[1])
        elif len(segments) == 2:
            body = documents.group(segments[1])
        else:
            body = documents.resource_list(segments[1], segments[2])
    except (PageNotFound, StatusError) as error:
        if undecided:
            send_text(request, "service unavailable\n", status=503)
        elif isinstance(error, StatusError):
            raise
        else:
            send_page_not_found(request)
    except VersionUnavailable:
        send_text(request, "service unavailable\n", status=503)
    else:
        _send_legacy(request, documents, body, form)


def _serve_root(request: AggregatedRequest, merge: Merge, *, core: bool) -> None:
    """Answer /api or /apis in the form that the client prefers."""
    documents = merge.documents
    if request.head.method in (b"HEAD", b"OPTIONS"):
        raise method_not_allowed()
    form = _negotiate(request, aggregated=True)
    if form != _AGGREGATED:
        body = documents.core_versions(request.head.host.decode("latin-1")) if core else documents.group_list()
        _send_legacy(request, documents, body, form)
        return
    _send_aggregated(request, documents.aggregated(core=core), merge)


def _send_aggregated(request: AggregatedRequest, document: AggregatedDocument, merge: Merge) -> None:
    """Send it; caches that several users share may keep it only if it is the same for them."""
    cache_control = b"public" if merge.whole else PRIVATE
    zipped = document.zipped()
    vary = b"Vary: Accept\r\n" if zipped is None else b"Vary: Accept-Encoding\r\nVary: Accept\r\n"
    more = b"ETag: %b\r\n%b" % (document.etag, vary)
    if has_etag(request, document.etag):
        send_not_modified(request, more, cache_control=cache_control)
    elif zipped is not None and media_types.accepts_gzip(request.head.header(b"accept-encoding")):
        more = b"Content-Encoding: gzip\r\n" + more
        send(request, zipped, AGGREGATED_MEDIA_TYPE, more=more, cache_control=cache_control)
    else:
        send(request, document.body, AGGREGATED_MEDIA_TYPE, more=more, cache_control=cache_control)


def _send_legacy(request: AggregatedRequest, documents: DiscoveryDocuments, body: bytes, form: str) -> None:
    send(request, documents.as_yaml(body) if form == YAML else body, form)


def _negotiate(request: AggregatedRequest, *, aggregated: bool) -> str:
    """Return JSON, YAML or "APIGroupDiscoveryList". Raises StatusError 406.

    Protobuf is not made: clients that ask for it name JSON, too. Paths below the roots ignore the aggregated form.
    """
    accept = accept_of(request)
    if not accept:
        return JSON
    clauses = media_types.clauses(accept)
    for clause in clauses:
        if not clause.params.get("as") or not aggregated:
            form = next((one for one in (JSON, YAML) if media_types.matches(one, clause.media_type)), "")
        else:
            form = _AGGREGATED if _is_aggregated(clause) else ""
        if form:
            return form
    protobuf = any(clause.media_type == media_types.PROTOBUF for clause in clauses)
    raise media_types.only_accepted(media_types.CUSTOM_TYPES if protobuf else media_types.BUILTIN_TYPES)


def _is_aggregated(clause: Clause) -> bool:
    wanted = (clause.params.get("g"), clause.params.get("v"), clause.params.get("as"))
    return media_types.matches(JSON, clause.media_type) and wanted == ("apidiscovery.k8s.io", "v2", _AGGREGATED)
