"""Reads, merges and caches the OpenAPI documents of an aggregate.

v3: each document comes from the cluster that owns the group-version, identified by its hash. If several clusters
describe a group-version together, their documents are merged. v2: one document is merged from all owners. The proxy
reads the clusters with its own credential, since every authenticated user may read these documents (system:discovery).
Documents of API services: `openapi_services`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import msgspec
from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.discovery.last_read import LastRead
from mcproxy.aggregate.discovery.merge_cache import AggregateMerges, VisibleClusters
from mcproxy.aggregate.discovery.openapi_documents import (
    CompressedDocument,
    DocumentCache,
    Index,
    MemberDocument,
    Published,
    SchemaNode,
    compress,
    publish,
    read_index,
    read_schema,
)
from mcproxy.aggregate.discovery.openapi_merge import Spec, everything, merge_specs
from mcproxy.aggregate.discovery.openapi_services import NotThere, OwnPaths, ServiceOpenAPI
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.kube.resource import APIResource
from mcproxy.net.wall_time import WallSeconds, wall_seconds
from mcproxy.requests.coroutines import InThread
from mcproxy.upstream.control import ControlResponse

JSON = "application/json"
V3_PROTOBUF = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_INDEX_LIFETIME, _INDEX_PATIENCE = 10.0, 3.0  # seconds
_V2_LIFETIME, _V2_PATIENCE = 60.0, 20.0
_MAX_INDEX = 8 * 1024 * 1024  # bytes
_MAX_DOCUMENT = 32 * 1024 * 1024
_MAX_KEPT = 32 * 1024 * 1024  # bytes of compressed documents in the cache
_MAX_SCHEMAS = 32
_RESTS, _MAX_REST = 2.0, 30.0
"""Pause before API services' changed documents are merged again: `_RESTS` times the last merge, at most 30 s."""


class DocumentChanged(Exception):
    """A cluster's document does not match its index: the index is out of date."""


class NoSuchForm(Exception):
    """A merged document is not available as protobuf."""


class _Object(msgspec.Struct):
    """Any JSON object; its fields are skipped, not kept."""


class _V2(NamedTuple):
    """The v2 document of a cluster, compressed."""

    etag: bytes
    zipped: bytes


class OpenAPI:
    """The OpenAPI documents of one aggregate."""

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._indexes = LastRead(
            "the index of OpenAPI documents", clock, _read_index, lifetime=_INDEX_LIFETIME, patience=_INDEX_PATIENCE
        )
        self._v2 = LastRead(
            "the OpenAPI v2 document", clock, self._read_v2, lifetime=_V2_LIFETIME, patience=_V2_PATIENCE
        )
        self._services = ServiceOpenAPI(clock, in_thread)
        self._cache = DocumentCache(_MAX_KEPT)
        self._merging = DeferredLock()  # one v2 document at a time, since each takes much memory
        self._schemas: OrderedDict[tuple[str, Published, str], SchemaNode | None] = OrderedDict()
        self._last_merged: dict[Hashable, tuple[Hashable, float]] = {}
        self._generation = -1

    # -- v3 --------------------------------------------------------------------------------------------------

    async def published(self, merges: AggregateMerges, shown: VisibleClusters) -> dict[str, Published]:
        """Return the v3 documents by path, for a request whose user may discover the `shown` clusters."""
        self._follow(merges)
        owners = merges.of(shown).merged.owners
        primary = merges.primary
        if primary is not None and primary.name not in shown.clusters:
            primary = None
        needed = {name for clusters in owners.values() for name in clusters}
        sources = [source for source in merges.sources if source.name in needed or source is primary]
        await self._indexes.refresh(sources)
        indexes = {source.name: self._indexes.known(source.name) or {} for source in sources}
        found = publish(indexes, owners, None if primary is None else primary.name, list(indexes))
        return dict(sorted((found | await self._services.published(shown.services)).items()))

    async def document(self, merges: AggregateMerges, path: str, published: Published, form: str) -> CompressedDocument:
        """Return a v3 document, as JSON or V3_PROTOBUF.

        Raises MemberError if no cluster returns it, DiscoveryError if it is malformed, DocumentChanged, and NoSuchForm.
        """
        if form != JSON and len(published.parts) > 1:
            raise NoSuchForm
        if merges.services is not None and merges.services.owns(path):
            try:
                return await self._services.document(
                    path, published, form, lambda body: self._make([body], published.hash, form)
                )
            except NotThere as error:
                raise (NoSuchForm if error.status == 406 else DocumentChanged) from None
        key = path, published.hash or published.parts, form

        async def make() -> CompressedDocument:
            bodies = [await self._fetch(merges, path, part, form) for part in published.parts]
            return await self._make(bodies, published.hash, form)

        return await self._cache.get_or_make(key, make, keep=bool(published.hash))

    def _follow(self, merges: AggregateMerges) -> None:
        """Mark the indexes out of date if the members or their resources have changed."""
        self._services.use(merges.services)
        if self._generation != merges.generation:
            self._generation = merges.generation
            self._indexes.expire()
            self._v2.expire()
            names = [source.name for source in merges.sources]
            self._indexes.forget(names)
            self._v2.forget(names)

    async def _fetch(self, merges: AggregateMerges, path: str, part: MemberDocument, form: str) -> bytes:
        """Get a document from its owner, else from another cluster whose document has the same hash."""
        same = [source for source in merges.sources if source.name != part.cluster and self._has(source, path, part)]
        owner = [source for source in merges.sources if source.name == part.cluster]
        query = f"?hash={part.hash}" if part.hash else ""
        error = MemberError(f"no cluster has the OpenAPI document of {path}")
        for source in sorted((*owner, *same), key=lambda one: one.unavailable_since is not None):
            try:
                response = await source.get(
                    f"/openapi/v3/{path}{query}", headers=(("accept", form),), max_body=_MAX_DOCUMENT
                )
            except MemberError as failed:
                error = failed
                continue
            if response.status == 200:
                if form != JSON and V3_PROTOBUF.encode() not in response.header(b"content-type"):
                    raise NoSuchForm
                return response.body
            self._indexes.expire([source.name])
            if response.status in (301, 404):
                raise DocumentChanged
            if response.status == 406:
                raise NoSuchForm
            error = MemberError(f"the cluster answered {response.status} on /openapi/v3/{path}")
        raise error

    def _has(self, source: Member, path: str, part: MemberDocument) -> bool:
        index = self._indexes.known(source.name) or {}
        return bool(part.hash) and index.get(path) == part.hash

    async def _make(self, bodies: Sequence[bytes], hash_: str, form: str) -> CompressedDocument:
        etag, zipped, length = await self._in_thread(_pack, bodies, form)
        quoted = b'"%b"' % (hash_.encode() or etag)
        return CompressedDocument(zipped, length, quoted, wall_seconds(self._clock))

    async def schema(self, merges: AggregateMerges, shown: VisibleClusters, resource: APIResource) -> SchemaNode | None:
        """Return the published schema of a resource's kind; None if it is unknown or cannot be read now."""
        gvr = resource.gvr
        path = gvr.group_version_path.removeprefix("/")
        try:
            published = (await self.published(merges, shown)).get(path)
            if published is None:
                return None
            key = path, published, resource.kind
            if published.hash and key in self._schemas:
                self._schemas.move_to_end(key)
                return self._schemas[key]
            document = await self.document(merges, path, published, JSON)
            found = await self._in_thread(_read_schema, document, gvr.group, gvr.version, resource.kind)
        except (MemberError, DiscoveryError, DocumentChanged, NoSuchForm):
            return None
        self._schemas[key] = found
        if len(self._schemas) > _MAX_SCHEMAS:
            self._schemas.popitem(last=False)
        return self._schemas[key]

    # -- v2 --------------------------------------------------------------------------------------------------

    async def document_v2(
        self, merges: AggregateMerges, shown: VisibleClusters, form: str, *, partial: bool = False
    ) -> CompressedDocument:
        """Return the v2 document, as JSON or V2_PROTOBUF. Raises MemberError, DiscoveryError and NoSuchForm.

        A merged document is not available as protobuf. `partial`: return the document of the cluster that describes
        most instead. (kubectl before 1.27 accepts only protobuf, and does not validate resources without a schema.)
        """
        self._follow(merges)
        owners = merges.of(shown).merged.owners
        counted = Counter(name for clusters in owners.values() for name in clusters)
        sources = [source for source in merges.sources if source.name in counted]
        sources.sort(key=lambda source: -counted[source.name])
        await self._v2.refresh(sources, wait_for_old=False)
        known = [(source, document) for source in sources if (document := self._v2.known(source.name)) is not None]
        if not known:
            raise MemberError("no cluster has given its OpenAPI document")
        taken = [
            (document, frozenset(key for key, clusters in owners.items() if source.name in clusters))
            for source, document in known
        ]
        beside = await self._services.v2(shown.services)
        whole = len(taken) == 1 and not beside and _has_all(known[0][0], taken[0][1])
        if form != JSON:
            if not whole and not partial:
                raise NoSuchForm
            return await self._v2_protobuf(*known[0])

        parts = [(document.zipped, versions) for document, versions in beside]
        services = tuple((document.digest, versions) for document, versions in beside)
        backend = tuple((document.etag, versions) for document, versions in taken)
        key: Hashable = "v2", backend, services
        of_whom = backend, shown.services
        last, rests_until = self._last_merged.get(of_whom, (None, 0.0))
        if last != key and self._clock.seconds() < rests_until and (kept := self._cache.get(last)) is not None:
            return kept  # a former document: it limits the number of merges while an API server keeps changing
        if len(self._last_merged) > _MAX_SCHEMAS:
            self._last_merged.clear()

        async def make() -> CompressedDocument:
            began = self._clock.seconds()
            etag, zipped, length = await self._merging.run(self._in_thread, _merge_v2, taken, parts)
            now = self._clock.seconds()
            self._last_merged[of_whom] = key, now + min(_MAX_REST, _RESTS * (now - began))
            return CompressedDocument(zipped, length, b'"%b"' % etag, wall_seconds(self._clock))

        if whole:
            return await self._cache.get_or_make(("v2", known[0][1].etag), lambda: self._as_it_is(known[0][1]))
        return await self._cache.get_or_make(key, make)

    async def _as_it_is(self, document: _V2) -> CompressedDocument:
        length = len(await self._in_thread(_unzip, document.zipped))
        return CompressedDocument(document.zipped, length, document.etag, wall_seconds(self._clock))

    async def _v2_protobuf(self, source: Member, document: _V2) -> CompressedDocument:
        async def make() -> CompressedDocument:
            headers = (("accept", V2_PROTOBUF),)
            response = await source.get("/openapi/v2", headers=headers, max_body=_MAX_DOCUMENT)
            if response.status != 200 or V2_PROTOBUF.encode() not in response.header(b"content-type"):
                raise NoSuchForm
            zipped = await self._in_thread(compress, response.body)
            return CompressedDocument(zipped, len(response.body), document.etag, wall_seconds(self._clock))

        return await self._cache.get_or_make(("v2", document.etag, V2_PROTOBUF), make)

    async def _read_v2(self, source: Member, last: _V2 | None) -> _V2:
        condition = (("if-none-match", last.etag.decode("latin-1")),) if last is not None else ()
        headers = (("accept", JSON), *condition)
        response = await source.get("/openapi/v2", headers=headers, max_body=_MAX_DOCUMENT)
        if response.status == 304 and last is not None:
            return last
        if response.status != 200:
            raise DiscoveryError(f"the cluster answered {response.status} on /openapi/v2")
        etag, zipped, _ = await self._in_thread(_pack, [response.body], JSON)
        return _V2(_etag(response) or b'"%b"' % etag, zipped)


async def _read_index(source: Member, _: Index | None) -> Index:
    response = await source.get("/openapi/v3", headers=(("accept", JSON),), max_body=_MAX_INDEX)
    if response.status == 404:  # a kube-apiserver before 1.23 has no OpenAPI v3
        return {}
    if response.status != 200:
        raise DiscoveryError(f"the cluster answered {response.status} on /openapi/v3")
    return read_index(response.body)


def _pack(bodies: Sequence[bytes], form: str) -> tuple[bytes, bytes, int]:
    """Return hash, compressed document and length of the bodies, merged if there are several. Raises DiscoveryError."""
    if len(bodies) > 1:
        body = merge_specs([Spec(body, everything) for body in bodies])
    else:
        (body,) = bodies
        if form == JSON:
            try:
                msgspec.json.decode(body, type=_Object)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise DiscoveryError(f"not an OpenAPI document: {error}") from None
    return _digest(body), compress(body), len(body)


def _merge_v2(
    taken: Sequence[tuple[_V2, frozenset[tuple[str, str]]]],
    services: Sequence[tuple[bytes, frozenset[tuple[str, str]]]],
) -> tuple[bytes, bytes, int]:
    """Return hash, compressed document and its length. Paths without a group come from the first document.

    `services` are the compressed parts of API services; they are merged after the backend's documents.
    """
    specs = [
        Spec(_unzip(document.zipped), _Taken(versions, first=index == 0))
        for index, (document, versions) in enumerate(taken)
    ]
    for zipped, versions in services:
        own = OwnPaths(versions)
        specs.append(Spec(_unzip(zipped), own, own.owns))
    body = merge_specs(specs)
    return _digest(body), compress(body), len(body)


def _read_schema(document: CompressedDocument, group: str, version: str, kind: str) -> SchemaNode | None:
    return read_schema(document.body(), group, version, kind)


class _Taken:
    """A predicate for the paths of a v2 document that belong to certain group-versions."""

    def __init__(self, versions: Collection[tuple[str, str]], *, first: bool) -> None:
        self._versions = versions
        self._groups = {group for group, _ in versions if group}
        self._first = first

    def __call__(self, path: str) -> bool:
        segments = path.strip("/").split("/")
        if segments[0] == "api" and len(segments) > 1:
            return ("", segments[1]) in self._versions
        if segments[0] == "apis" and len(segments) > 1:
            if len(segments) == 2:
                return segments[1] in self._groups
            return (segments[1], segments[2]) in self._versions
        return self._first


def _has_all(source: Member, versions: Collection[tuple[str, str]]) -> bool:
    """Whether a cluster has exactly these group-versions, so that its document can serve as the aggregate's."""
    groups = source.discovery.groups
    return {(group.metadata.name, one.version) for group in groups for one in group.versions} <= set(versions)


def _unzip(zipped: bytes) -> bytes:
    return CompressedDocument(zipped, 0, b"", WallSeconds(0.0)).body()


def _digest(body: bytes) -> bytes:
    return hashlib.sha512(body).hexdigest().upper().encode()


def _etag(response: ControlResponse) -> bytes:
    """Return the ETag in a form that can be forwarded; b"" if there is none."""
    etag = response.header(b"etag")
    strong = len(etag) > 2 and etag[:1] == etag[-1:] == b'"' and len(etag) <= 200
    return etag if strong and etag[1:-1].isalnum() and etag.isascii() else b""
