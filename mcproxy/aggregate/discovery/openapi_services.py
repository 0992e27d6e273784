"""The OpenAPI documents of API services: each group-version's document comes only from its API server, and is bounded.

An API server that is slow or sends invalid documents affects only its own documents: the last known ones stay, and no
request waits for it twice. In every document, content for other group-versions is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec
from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.discovery.api_services import GroupVersion
from mcproxy.aggregate.discovery.last_read import LastRead
from mcproxy.aggregate.discovery.openapi_documents import (
    CompressedDocument,
    DocumentCache,
    Index,
    MemberDocument,
    Published,
    compress,
    read_index,
)
from mcproxy.aggregate.discovery.openapi_merge import decode, own_part
from mcproxy.aggregate.discovery.service_source import timed
from mcproxy.aggregate.discovery.service_sources import Services
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.kube.nesting import TooDeep, refuse_deep
from mcproxy.requests.coroutines import InThread
from mcproxy.upstream.control import ControlResponse

log = Logger(__name__)

Make = Callable[[bytes], "Coroutine[Deferred[Any], Any, CompressedDocument]"]
"""Makes a compressed document from the bytes of a response."""

JSON = "application/json"
_LIFETIME, _PATIENCE = 1.5, 0.25  # seconds: requests see a change within 2 s
_TIMEOUT = 5.0  # seconds for one answer
_MAX_INDEX = 1024 * 1024
_MAX_V2 = 16 * 1024 * 1024  # bytes; the document of a kube-apiserver has 4 MB
_MAX_V3 = 8 * 1024 * 1024
_MAX_KEPT_V3 = 32 * 1024 * 1024  # compressed bytes of all API services of a server
_MAX_MERGED_V2 = 32 * 1024 * 1024  # bytes of all parts of the merged document, not compressed
_RESTS_FROM, _RESTS, _MAX_REST = 0.1, 10.0, 30.0
"""If decoding a document took 0.1 s of CPU time or more, it is not decoded again for ten times as long, at most 30 s.
All requests share this core; the documents of well-behaved API servers take less.
"""
_AT_A_TIME, _AFTER_FAILURE = 8, 2  # large documents that are read at the same time


class _ServiceIndex(NamedTuple):
    """The used part of an API server's index: the paths of the registered group-versions."""

    etag: str
    wanted: frozenset[GroupVersion]
    paths: Index


class ServiceV2(NamedTuple):
    """The merged part of an API server's v2 document, compressed. `digest` and `length` belong to this part."""

    etag: str
    source: bytes  # digest of the whole document
    wanted: frozenset[GroupVersion]
    digest: bytes
    length: int
    zipped: bytes


class OwnPaths:
    """Matches the paths of a document that belong to some group-versions of API services."""

    def __init__(self, group_versions: Collection[GroupVersion]) -> None:
        self.group_versions = frozenset(group_versions)
        self._groups = {group for group, _ in group_versions}

    def __call__(self, path: str) -> bool:
        segments = path.removesuffix("/").split("/")
        if segments[:2] != ["", "apis"] or len(segments) < 3:
            return False
        if len(segments) == 3:
            return segments[2] in self._groups
        return (segments[2], segments[3]) in self.group_versions

    def owns(self, kind: tuple[Any, ...]) -> bool:
        """Whether a kind (group, version, kind) belongs to these group-versions."""
        return tuple(kind[:2]) in self.group_versions


class ServiceOpenAPI:
    """The OpenAPI documents of the API services of one server."""

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._services: Services | None = None
        self._indexes = LastRead(
            "the index of OpenAPI documents", clock, self._read_index, lifetime=_LIFETIME, patience=_PATIENCE
        )
        self._v2 = LastRead("the OpenAPI v2 document", clock, self._read_v2, lifetime=_LIFETIME, patience=_PATIENCE)
        self._documents = DocumentCache(_MAX_KEPT_V3)
        self._newest: dict[tuple[str, str], object] = {}
        self._failed: set[str] = set()  # clusters whose last v2 document could not be used
        self._places = DeferredSemaphore(_AT_A_TIME)
        self._places_after_failure = DeferredSemaphore(_AFTER_FAILURE)
        self._left_out: frozenset[str] = frozenset()
        self._rests_until: dict[object, float] = {}
        self._without_hash: dict[
            tuple[str, str], CompressedDocument
        ] = {}  # the last decoded documents of owners whose index has no hash

    def use(self, services: Services | None) -> None:
        """Apply a configuration; None: the server has no API services."""
        if services is not self._services:
            self._services = services
            for documents in (self._indexes, self._v2):
                documents.expire()
                documents.forget(() if services is None else services.clusters)
            self._rests_until.clear()
            self._without_hash.clear()
            self._failed &= set(() if services is None else services.clusters)

    async def published(self, shown: Collection[GroupVersion]) -> dict[str, Published]:
        """Return the v3 documents of the API services that may be shown, by path."""
        services = self._services
        if services is None or not shown:
            return {}
        registered = [each for each in services.registered if each.group_version in shown]
        sources = [services.source(name) for name in dict.fromkeys(each.cluster for each in registered)]
        await self._indexes.refresh(sources, wait_for_late=False)
        found = {}
        for each in registered:
            index = self._indexes.known(each.cluster)
            path = f"apis/{each.group}/{each.version}"
            if index is not None and path in index.paths:
                hash_ = index.paths[path]
                found[path] = Published(hash_, (MemberDocument(each.cluster, hash_),))
        return found

    async def document(self, path: str, published: Published, form: str, make: Make) -> CompressedDocument:
        """Return a v3 document that `make` makes from its bytes. Raises MemberError, DiscoveryError and NotThere."""
        assert self._services is not None
        source = self._services.source(published.parts[0].cluster)
        key = path, published, form
        before = self._newest.get((path, form))
        if before != key:
            self._documents.drop(before)
            self._newest[path, form] = key

        async def read() -> CompressedDocument:
            resting = form == JSON and self._rests(path)
            if resting and not published.hash and (path, form) in self._without_hash:
                return self._without_hash[path, form]
            if resting:
                raise MemberError(f"/openapi/v3/{path} takes long to decode, and has changed again: it is read later")
            query = f"?hash={published.hash}" if published.hash else ""
            response = await self._get(source, f"/openapi/v3/{path}{query}", (("accept", form),), _MAX_V3)
            if response.status in (301, 404, 406):
                self._indexes.expire([source.name])
                raise NotThere(response.status)
            if response.status != 200:
                raise MemberError(f"the API server answered {response.status} on /openapi/v3/{path}")
            body = response.body
            if form == JSON:
                body = await self._decoded(path, own_v3, body, path)
            elif form.encode() not in response.header(b"content-type"):
                raise NotThere(406)
            made = await make(body)
            if not published.hash and self._rests(path):
                self._without_hash[path, form] = made
            return made

        return await self._documents.get_or_make(key, read, keep=bool(published.hash))

    async def v2(self, shown: Collection[GroupVersion]) -> list[tuple[ServiceV2, frozenset[GroupVersion]]]:
        """Return the merged parts of the API services' v2 documents, each with its group-versions that may be shown."""
        services = self._services
        if services is None or not shown:
            return []
        owned: dict[str, set[GroupVersion]] = {}
        for each in services.registered:
            if each.group_version in shown:
                owned.setdefault(each.cluster, set()).add(each.group_version)
        await self._v2.refresh([services.source(name) for name in owned], wait_for_late=False)
        known = [(name, document) for name in owned if (document := self._v2.known(name)) is not None]
        return [(document, frozenset(owned[name])) for name, document in self._bounded(known)]

    def _bounded(self, known: Sequence[tuple[str, ServiceV2]]) -> list[tuple[str, ServiceV2]]:
        """Return the documents that fit into `_MAX_MERGED_V2` together; large documents are left out first."""
        room = _MAX_MERGED_V2
        taken: set[str] = set()
        for name, document in sorted(known, key=lambda one: (one[1].length, one[0])):
            room -= document.length
            if room >= 0:
                taken.add(name)
        left_out = frozenset(name for name, _ in known) - taken
        for name in sorted(left_out - self._left_out):
            log.warn(
                "the OpenAPI v2 document of an API server is left out: all together are too large",
                event="openapi_too_large",
                cluster=name,
                todo="see what the API server publishes; clients with OpenAPI v3 have its document nevertheless",
            )
        self._left_out = left_out
        return [one for one in known if one[0] in taken]

    # -- reading -----------------------------------------------------------------------------------------------

    async def _read_index(self, source: Member, last: _ServiceIndex | None) -> _ServiceIndex:
        group_versions = self._wanted(source.name)
        if last is not None and last.wanted != group_versions:
            last = None  # a 304 has no content for newly registered group-versions
        response = await self._get(source, "/openapi/v3", _conditional(last), _MAX_INDEX)
        if response.status == 304 and last is not None:
            return last
        if response.status == 404:  # it has no OpenAPI v3
            return _ServiceIndex("", group_versions, {})
        if response.status != 200:
            raise DiscoveryError(f"the API server answered {response.status} on /openapi/v3")
        wanted = {f"apis/{group}/{version}" for group, version in group_versions}
        paths = {path: hash_ for path, hash_ in read_index(response.body).items() if path in wanted}
        return _ServiceIndex(response.etag, group_versions, paths)

    async def _read_v2(self, source: Member, last: ServiceV2 | None) -> ServiceV2:
        places = self._places_after_failure if source.name in self._failed else self._places
        await places.acquire()
        try:
            self._failed.add(source.name)
            found = await self._read_v2_now(source, last)
            self._failed.discard(source.name)
            return found
        finally:
            places.release()

    async def _read_v2_now(self, source: Member, last: ServiceV2 | None) -> ServiceV2:
        wanted = self._wanted(source.name)
        if last is not None and last.wanted != wanted:
            last = None
        key = source.name, wanted
        if self._rests(key):
            if last is not None:
                return last
            raise DiscoveryError("an OpenAPI document that takes long to decode, and cannot be taken: it is read later")
        response = await self._get(source, "/openapi/v2", _conditional(last), _MAX_V2)
        if response.status == 304 and last is not None:
            return last
        if response.status != 200:
            raise DiscoveryError(f"the API server answered {response.status} on /openapi/v2")
        whole = hashlib.sha256(response.body).digest()
        if last is not None and last.source == whole:
            return last
        digest, length, zipped = await self._decoded(key, _own_v2, response.body, OwnPaths(wanted))
        return ServiceV2(response.etag, whole, wanted, digest, length, zipped)

    async def _decoded(self, key: object, decode: Callable[..., Any], *arguments: object) -> Any:
        """Run `decode` in a thread; if it takes long, block further decoding for a time. Raises DiscoveryError."""
        found, seconds = await self._in_thread(timed, decode, *arguments)
        if seconds >= _RESTS_FROM:
            self._rests_until[key] = self._clock.seconds() + min(_MAX_REST, _RESTS * seconds)
        if isinstance(found, DiscoveryError):
            raise found
        return found

    def _rests(self, key: object) -> bool:
        """Whether a document must not be decoded again yet."""
        return self._clock.seconds() < self._rests_until.get(key, 0.0)

    def _wanted(self, cluster: str) -> frozenset[GroupVersion]:
        registered = () if self._services is None else self._services.registered
        return frozenset(each.group_version for each in registered if each.cluster == cluster)

    async def _get(
        self, source: Member, path: str, headers: tuple[tuple[str, str], ...], max_body: int
    ) -> ControlResponse:
        work = Deferred.fromCoroutine(source.get(path, headers=headers, max_body=max_body))
        try:
            return await work.addTimeout(_TIMEOUT, self._clock)
        except DeferredTimeoutError:
            raise MemberError(f"no whole answer on {path} within {_TIMEOUT:g} s") from None


class NotThere(Exception):
    """The owner lacks the document that its index lists, or has it in another form; `status` is the HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def own_v3(body: bytes, path: str) -> bytes:
    """Return a v3 document without paths of other group-versions. Raises DiscoveryError if it is no v3 document."""
    try:
        refuse_deep(body)
    except TooDeep as error:
        raise DiscoveryError(f"an OpenAPI document that is {error}") from None
    document = decode(body)
    paths = document.get("paths", {})
    if not isinstance(paths, dict):
        raise DiscoveryError("not an OpenAPI document")
    own = f"/{path}"
    kept = {key: item for key, item in paths.items() if key == own or key.startswith(f"{own}/")}
    return body if len(kept) == len(paths) else msgspec.json.encode({**document, "paths": kept})


def _own_v2(body: bytes, own: OwnPaths) -> tuple[bytes, int, bytes]:
    part = own_part(body, own, own.owns)
    return hashlib.sha256(part).digest(), len(part), compress(part)


def _conditional(last: _ServiceIndex | ServiceV2 | None) -> tuple[tuple[str, str], ...]:
    condition = (("if-none-match", last.etag),) if last is not None and last.etag else ()
    return (("accept", JSON), *condition)
