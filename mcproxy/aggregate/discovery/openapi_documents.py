"""OpenAPI documents: the index of v3 (paths, and the hash of the document at each), and a cache of compressed ones.

Source: KEP-2896; k8s.io/kube-openapi `pkg/handler3` for the form of the index.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.kube.discovery import DiscoveryError
from mcproxy.net.wall_time import WallSeconds

Index = Mapping[str, str]
"""Path ("apis/apps/v1") to hash; "" where the server gave none."""

_PATH = re.compile(r"[A-Za-z0-9._-]{1,253}(?:/[A-Za-z0-9._-]{1,253}){0,3}")
_HASH = re.compile(r"\?hash=([A-Za-z0-9]{1,128})")
_MAX_PATHS = 10_000
_OF_THE_SERVER = frozenset({"api", "apis", "version"})


class _Entry(msgspec.Struct, rename={"url": "serverRelativeURL"}):
    url: str


class _Root(msgspec.Struct):
    paths: dict[str, _Entry]


class Part(NamedTuple):
    """A document of one cluster."""

    cluster: str
    hash: str


class Published(NamedTuple):
    """A document that the aggregate publishes: of one cluster, or made of those of several."""

    hash: str
    parts: tuple[Part, ...]


def read_index(body: bytes) -> Index:
    """Read the answer of /openapi/v3; entries that could not stand in a path are left out. Raises DiscoveryError."""
    if body.count(b",") > 2 * _MAX_PATHS:
        raise DiscoveryError(f"more than {_MAX_PATHS} OpenAPI documents")
    try:
        root = msgspec.json.decode(body, type=_Root)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(f"not an index of OpenAPI documents: {error}") from None
    if len(root.paths) > _MAX_PATHS:
        raise DiscoveryError(f"more than {_MAX_PATHS} OpenAPI documents")
    found = {}
    for path, entry in root.paths.items():
        if _PATH.fullmatch(path) and not {".", ".."} & set(path.split("/")):
            match = _HASH.search(entry.url)
            found[path] = match[1] if match else ""
    return found


def publish(
    indexes: Mapping[str, Index],
    owners: Mapping[tuple[str, str], tuple[str, ...]],
    primary: str | None,
    order: Sequence[str],
) -> dict[str, Published]:
    """Return the documents of an aggregate, by path.

    `owners`: the clusters that describe each group-version together (`merge.MergedDiscovery`); one that has no document
    for it adds nothing. `order`: all clusters. Paths of no group-version are the primary's; without a primary the first
    cluster's, as far as they are the API's own.
    """
    found: dict[str, Published] = {}
    for (group, version), clusters in owners.items():
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        parts = tuple(Part(name, indexes[name][path]) for name in clusters if path in indexes.get(name, ()))
        if parts:
            found[path] = Published(_hash(parts), parts)
    groups = {group for group, _ in owners}
    for name in (primary,) if primary is not None else order:
        for path, hash_ in indexes.get(name, {}).items():
            if path not in found and _is_plain(path, groups, whole=primary is not None):
                found[path] = Published(hash_, (Part(name, hash_),))
    return dict(sorted(found.items()))


def _hash(parts: Sequence[Part]) -> str:
    """Return the owner's hash, or one of the hashes of all; "" if one of them is not known."""
    if len(parts) == 1 or not all(part.hash for part in parts):
        return parts[0].hash if len(parts) == 1 else ""
    return hashlib.sha512("\n".join(part.hash for part in parts).encode()).hexdigest().upper()


def _is_plain(path: str, groups: set[str], *, whole: bool) -> bool:
    """Whether a path is of no group-version, and of nothing that is not served."""
    segments = path.split("/")
    if segments[0] == "apis" and len(segments) == 2:
        return segments[1] in groups
    if segments[0] in ("api", "apis") and len(segments) > 1:
        return False
    return whole or path in _OF_THE_SERVER


def write_index(published: Mapping[str, Published]) -> bytes:
    """Return the answer of /openapi/v3."""
    paths = {}
    for path, document in published.items():
        query = f"?hash={document.hash}" if document.hash else ""
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}{query}"}
    return msgspec.json.encode({"paths": paths})


# -- the cache ------------------------------------------------------------------------------------------------
#
# A cache of OpenAPI documents: compressed, and bounded in bytes.


_GZIP = 31  # wbits of zlib for a gzip header
_LEVEL = 5


class Document(NamedTuple):
    """A document, compressed with gzip; `length` is its size in bytes without that, `etag` has its quotes."""

    zipped: bytes
    length: int
    etag: bytes
    made_at: WallSeconds

    def body(self) -> bytes:
        """Return the document itself."""
        return zlib.decompress(self.zipped, _GZIP)


def compress(body: bytes) -> bytes:
    """Return a document compressed with gzip. For a thread: zlib releases the GIL."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return compressor.compress(body) + compressor.flush()


class DocumentCache:
    """Documents by key, the least recently used dropped first; a missing one is made once for all callers."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of compressed documents together."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._documents: OrderedDict[Hashable, Document] = OrderedDict()
        self._making: dict[Hashable, list[Deferred[Document]]] = {}

    @property
    def size(self) -> int:
        """The bytes of the compressed documents that are kept."""
        return self._bytes

    def get(self, key: Hashable) -> Document | None:
        """Return a document that is kept."""
        found = self._documents.get(key)
        if found is not None:
            self._documents.move_to_end(key)
        return found

    def drop(self, key: Hashable) -> None:
        """Forget a document that is needed no longer."""
        found = self._documents.pop(key, None)
        if found is not None:
            self._bytes -= len(found.zipped)

    async def get_or_make(
        self, key: Hashable, make: Callable[[], Coroutine[Deferred[Any], Any, Document]], *, keep: bool = True
    ) -> Document:
        """Return a document, made by `make` if it is not kept. Raises what `make` raises.

        Who goes away while it is made leaves it to the others.
        """
        found = self.get(key)
        if found is not None:
            return found
        waiter: Deferred[Document] = Deferred()
        waiters = self._making.get(key)
        if waiters is None:
            self._making[key] = [waiter]
            Deferred.fromCoroutine(make()).addBoth(self._made, key, keep=keep)
        else:
            waiters.append(waiter)
        return await waiter

    def _made(self, result: Document | Failure, key: Hashable, *, keep: bool) -> None:
        if isinstance(result, Document) and keep and len(result.zipped) <= self._max_bytes:
            self._documents[key] = result
            self._bytes += len(result.zipped)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._documents.popitem(last=False)[1].zipped)
        for waiter in self._making.pop(key):
            if not waiter.called:  # one that is called may cancel another
                waiter.callback(result)  # a Failure given to `callback` fails it
