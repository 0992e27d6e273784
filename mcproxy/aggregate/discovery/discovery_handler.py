"""Answers the requests to an aggregate's discovery paths; the entry point of this package."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.discovery import openapi_handler
from mcproxy.aggregate.discovery.documents import (
    AggregatedDocument,
    DiscoveryDocuments,
    PageNotFound,
    VersionUnavailable,
)
from mcproxy.aggregate.discovery.last_read import LastRead
from mcproxy.aggregate.discovery.merge_cache import NOTHING, AggregateMerges, Merge, VisibleClusters
from mcproxy.aggregate.discovery.openapi import OpenAPI
from mcproxy.aggregate.discovery.responses import (
    PRIVATE,
    accept_of,
    has_etag,
    send,
    send_not_modified,
    send_page_not_found,
    send_text,
)
from mcproxy.aggregate.discovery.service_sources import Services
from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.view.scope import Scope
from mcproxy.config.model.aggregates import Aggregate, UnavailableMembers
from mcproxy.kube import healthz, media_types
from mcproxy.kube.discovery import AGGREGATED_MEDIA_TYPE, DiscoveryError
from mcproxy.kube.healthz import Check
from mcproxy.kube.media_types import JSON, YAML, Clause
from mcproxy.kube.status import StatusError, method_not_allowed, retry_after
from mcproxy.requests.coroutines import InThread

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.kube.resource import APIResource

_OF_SERVICES = frozenset({"", "apis", "openapi"})


class AggregateDiscovery:
    """Answers the discovery requests to one aggregate. Its owner calls `update` after reloads, and finally `stop`."""

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        """`in_thread` runs a function in a thread: the encoding of large documents."""
        self._in_thread = in_thread
        self._visibility: ServiceVisibility | None = None
        self._merges = AggregateMerges(clock)
        self._openapi = OpenAPI(clock, in_thread)
        self._versions = Versions(clock)
        self._unavailable = UnavailableMembers.STALE

    def update(
        self,
        config: Aggregate,
        sources: Mapping[str, Member],
        scope: Scope,
        services: Services | None = None,
        visibility: ServiceVisibility | None = None,
    ) -> None:
        """Apply a configuration; `sources` are the members and the primary by name (`reflector.Member`).

        `services` are the API services of the server; `visibility` decides which users may discover them.
        """
        self._unavailable = config.unavailable
        self._visibility = visibility
        self._merges.update(config, sources, scope, services)

    def stop(self) -> None:
        """Stop: the aggregate was removed."""
        self._merges.stop()

    async def serve(self, request: AggregatedRequest, shown: VisibleClusters = NOTHING) -> bool:
        """Answer the request and return True if this package serves its path, else return False.

        The paths are /api, /apis, groups and group-versions, /openapi, /version, the probes and `/`. `shown` are the
        clusters that the user may discover at this path; probes and /version are for all users. Raises StatusError
        404, 405, 406, and 503 if no cluster was reached since the start or no cluster returns the document.
        """
        segments = request.info.path.removeprefix("/").removesuffix("/").split("/")
        services = self._merges.services
        if services is not None and self._visibility is not None and segments[0] in _OF_SERVICES:
            may, undecided = await self._visibility.of(request, services.registered)
            shown = replace(shown, services=may, undecided_services=undecided)
        if is_discovery(segments):
            await self._merges.ready()
            merge = self._merges.of(shown)
            if services is not None:
                await merge.prepare(self._in_thread)
            serve_groups(request, merge, segments, shown)
        elif segments[0] == "openapi" and len(segments) > 1:
            await openapi_handler.serve(request, self._openapi, self._merges, segments, shown)
        elif segments == ["version"]:
            if request.head.method != b"GET":
                raise method_not_allowed()
            send(request, await self._versions.current(self._merges.primary, self._merges.members))
        elif segments[0] in healthz.PROBES:
            self._serve_probe(request, segments[0], "/".join(segments[1:]))
        elif segments == [""]:
            await self._serve_paths(request, shown)
        else:
            return False
        return True

    async def known_field(
        self, request: AggregatedRequest, resource: APIResource
    ) -> Callable[[str], bool | None] | None:
        """Return a predicate for dotted field paths of the published schema, or None if the schema is not known.

        Field selectors are checked with it (`selection.KnownField`). For a request without one, return None at once.
        """
        if b"fieldSelector" not in request.target:
            return None
        schema = await self._openapi.schema(self._merges, VisibleClusters(request.members), resource)
        return None if schema is None else schema.has

    def _serve_probe(self, request: AggregatedRequest, probe: str, check: str) -> None:
        """Answer a probe, or one check of it."""
        try:
            query = healthz.parse_query(request.target.partition(b"?")[2])
        except ValueError:
            query = healthz.ProbeQuery()
        found = probe_checks(probe, self._merges.sources, self._merges.members, self._unavailable)
        answer = healthz.answer_one(check, found) if check else healthz.answer(probe, found, query, withhold=False)
        if answer is None:
            send_page_not_found(request)
        else:
            send_text(request, answer[1], status=answer[0])

    async def _serve_paths(self, request: AggregatedRequest, shown: VisibleClusters) -> None:
        """Answer `/` with the paths that are served."""
        await self._merges.ready()
        merge = self._merges.of(shown)
        paths = {*merge.documents.paths(), "/openapi/v2", "/openapi/v3", "/version"}
        for probe in healthz.PROBES:
            found = probe_checks(probe, self._merges.sources, self._merges.members, self._unavailable)
            paths |= {f"/{probe}", *(f"/{probe}/{check.name}" for check in found)}
        lines = ",\n".join(f'    "{path}"' for path in sorted(paths))
        send(request, f'{{\n  "paths": [\n{lines}\n  ]\n}}'.encode())


# -- /api, /apis, groups and group-versions -------------------------------------------------------------------
#
# HTTP of /api, /apis and the paths of groups and group-versions: negotiation, ETag, 404.
#
# Source: KEP-3352; the recorded answers of a kube-apiserver 1.36, which serves v2 of the aggregated form and no
# v2beta1.


_AGGREGATED = "APIGroupDiscoveryList"


def is_discovery(segments: list[str]) -> bool:
    """Return whether a path is a discovery path; `segments` without an empty last one."""
    if segments[:1] == ["api"]:
        return len(segments) <= 2
    return segments[:1] == ["apis"] and len(segments) <= 3


def serve_groups(request: AggregatedRequest, merge: Merge, segments: list[str], shown: VisibleClusters) -> None:
    """Answer a discovery path. Raises StatusError 404, 405, 406.

    A path that is missing in the merge of the `shown` clusters is 404 unless another cluster can have it.
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
    """Send the document. Shared HTTP caches may store it only if it is the same for all users."""
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

    Protobuf is not supported: clients that request it accept JSON, too. Paths below /api and /apis have no aggregated
    form.
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


# -- /version -------------------------------------------------------------------------------------------------
#
# /version of an aggregate: the primary's version, else the lowest version of all reachable members.
#
# Clients choose features by this version, so it must not be higher than any member's version.


_VERSION_LIFETIME = 60.0  # seconds for which an answer counts as current
_VERSION_PATIENCE = 3.0  # seconds to wait for a cluster
_MAX_VERSION_BODY = 64 * 1024
_RETRY_AFTER = 5  # seconds
_NUMBERS = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?")


class _VersionInfo(msgspec.Struct, rename="camel"):
    git_version: str


class Version(NamedTuple):
    """The answer of a cluster, and the numbers of its gitVersion."""

    body: bytes
    numbers: tuple[int, ...]


class Versions:
    """The versions of the clusters of one aggregate, as last read."""

    def __init__(self, clock: IReactorTime) -> None:
        self._versions = LastRead(
            "the version", clock, _read_version, lifetime=_VERSION_LIFETIME, patience=_VERSION_PATIENCE
        )

    async def current(self, primary: Member | None, members: Sequence[Member]) -> bytes:
        """Return the document of /version. Raises StatusError 503 if no cluster has ever returned its version."""
        for group in ((primary,) if primary is not None else (), members):
            await self._versions.refresh(group, wait_for_old=False)
            for reachable in (True, False):
                found = [
                    version
                    for source in group
                    if (source.unavailable_since is None) == reachable
                    and (version := self._versions.known(source.name)) is not None
                ]
                if found:
                    return min(found, key=lambda version: version.numbers).body
        raise retry_after(503, "no cluster has told its version yet", _RETRY_AFTER)


async def _read_version(source: Member, _: Version | None) -> Version:
    response = await source.get("/version", headers=(("accept", "application/json"),), max_body=_MAX_VERSION_BODY)
    if response.status != 200:
        raise DiscoveryError(f"the cluster answered {response.status} on /version")
    try:
        match = _NUMBERS.match(msgspec.json.decode(response.body, type=_VersionInfo).git_version)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        match = None
    if match is None:
        raise DiscoveryError("not a version document")
    return Version(response.body, tuple(int(number or 0) for number in match.groups()))


# -- probes ---------------------------------------------------------------------------------------------------
#
# /healthz, /livez and /readyz of an aggregate: the proxy's own view of the clusters that it needs. Pure.
#
# `kube.healthz` writes the responses. An aggregate is live while the proxy runs. It is ready while it can serve its
# configured resources. `?verbose` shows an unavailable cluster that is not needed for this as failed, but the check
# passes.


_CLUSTER_CHECK = "cluster/"


def probe_checks(
    probe: str, sources: Sequence[Member], members: Sequence[Member], unavailable: UnavailableMembers
) -> list[Check]:
    """Return the checks of a probe: "ping", and one for each cluster.

    Readiness needs every member with `Fail`, one reachable member with `Partial`, and one member whose objects are
    known with `Stale`. Liveness needs no cluster: a restart of the proxy would not make a cluster reachable.
    """
    found = [Check("ping", "", needed=True)]
    usable = [
        source
        for source in members
        if _is_up(source) or (unavailable is UnavailableMembers.STALE and _is_known(source))
    ]
    for source in sources:
        needed = source in members and (unavailable is UnavailableMembers.FAIL or not usable)
        found.append(Check(_CLUSTER_CHECK + source.name, _cause(source), needed=needed and probe != "livez"))
    return found


def _is_up(source: Member) -> bool:
    return _is_known(source) and source.unavailable_since is None


def _is_known(source: Member) -> bool:
    return source.discovery.known


def _cause(source: Member) -> str:
    if source.unavailable_since is not None:
        return "it cannot be reached"  # without the cause, which contains addresses: anybody may request probes
    return "" if _is_known(source) else "its discovery has not been read yet"
