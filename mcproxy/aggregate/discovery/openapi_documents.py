"""OpenAPI documents: the index of v3 (the path and hash of each document), and a cache of compressed documents.

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

from mcproxy.aggregate.discovery.openapi_merge import decode
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.net.wall_time import WallSeconds

Index = Mapping[str, str]
"""Maps a path ("apis/apps/v1") to the hash of its document, or to "" if the server sent no hash."""

_PATH = re.compile(r"[A-Za-z0-9._-]{1,253}(?:/[A-Za-z0-9._-]{1,253}){0,3}")
_HASH = re.compile(r"\?hash=([A-Za-z0-9]{1,128})")
_MAX_PATHS = 10_000
_OF_THE_SERVER = frozenset({"api", "apis", "version"})


class _Entry(msgspec.Struct, rename={"url": "serverRelativeURL"}):
    url: str


class _Root(msgspec.Struct):
    paths: dict[str, _Entry]


class MemberDocument(NamedTuple):
    """A document of one cluster."""

    cluster: str
    hash: str


class Published(NamedTuple):
    """A document that the aggregate publishes: that of one cluster, or a merged one."""

    hash: str
    parts: tuple[MemberDocument, ...]


def read_index(body: bytes) -> Index:
    """Read the response of /openapi/v3; entries with invalid paths are left out. Raises DiscoveryError."""
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

    `owners`: the clusters that together describe each group-version (`merge.MergedDiscovery`); a cluster without a
    document for it adds nothing. `order`: all clusters. Paths without a group-version come from the primary; without a
    primary, the API server's own paths come from the first cluster.
    """
    found: dict[str, Published] = {}
    for (group, version), clusters in owners.items():
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        parts = tuple(MemberDocument(name, indexes[name][path]) for name in clusters if path in indexes.get(name, ()))
        if parts:
            found[path] = Published(_hash(parts), parts)
    groups = {group for group, _ in owners}
    for name in (primary,) if primary is not None else order:
        for path, hash_ in indexes.get(name, {}).items():
            if path not in found and _is_plain(path, groups, whole=primary is not None):
                found[path] = Published(hash_, (MemberDocument(name, hash_),))
    return dict(sorted(found.items()))


def _hash(parts: Sequence[MemberDocument]) -> str:
    """Return the hash of a single part, or a digest of all parts' hashes; "" if one of the hashes is unknown."""
    if len(parts) == 1 or not all(part.hash for part in parts):
        return parts[0].hash if len(parts) == 1 else ""
    return hashlib.sha512("\n".join(part.hash for part in parts).encode()).hexdigest().upper()


def _is_plain(path: str, groups: set[str], *, whole: bool) -> bool:
    """Whether to serve a path without a group-version; `whole`: serve all paths outside /api and /apis."""
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


class CompressedDocument(NamedTuple):
    """A document, compressed with gzip. `length` is its uncompressed size in bytes, `etag` includes the quotes."""

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
    """An LRU cache of documents; concurrent callers share the making of a missing document."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: maximum total size of the compressed documents."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._documents: OrderedDict[Hashable, CompressedDocument] = OrderedDict()
        self._making: dict[Hashable, list[Deferred[CompressedDocument]]] = {}

    @property
    def size(self) -> int:
        """Total bytes of the cached compressed documents."""
        return self._bytes

    def get(self, key: Hashable) -> CompressedDocument | None:
        """Return a cached document."""
        found = self._documents.get(key)
        if found is not None:
            self._documents.move_to_end(key)
        return found

    def drop(self, key: Hashable) -> None:
        """Forget a document that is no longer needed."""
        found = self._documents.pop(key, None)
        if found is not None:
            self._bytes -= len(found.zipped)

    async def get_or_make(
        self, key: Hashable, make: Callable[[], Coroutine[Deferred[Any], Any, CompressedDocument]], *, keep: bool = True
    ) -> CompressedDocument:
        """Return a cached document, or make it with `make`. Raises what `make` raises.

        If a caller is cancelled, the document is still made for the other callers.
        """
        found = self.get(key)
        if found is not None:
            return found
        waiter: Deferred[CompressedDocument] = Deferred()
        waiters = self._making.get(key)
        if waiters is None:
            self._making[key] = [waiter]
            Deferred.fromCoroutine(make()).addBoth(self._made, key, keep=keep)
        else:
            waiters.append(waiter)
        return await waiter

    def _made(self, result: CompressedDocument | Failure, key: Hashable, *, keep: bool) -> None:
        if isinstance(result, CompressedDocument) and keep and len(result.zipped) <= self._max_bytes:
            self._documents[key] = result
            self._bytes += len(result.zipped)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._documents.popitem(last=False)[1].zipped)
        for waiter in self._making.pop(key):
            if not waiter.called:  # calling one waiter can cancel another
                waiter.callback(result)  # a Failure given to `callback` fails it


# -- field paths in schemas, for field selectors --------------------------------------------------------------


_KINDS = "x-kubernetes-group-version-kind"
_PREFIX = "#/components/schemas/"
_SCALARS = ("string", "integer", "number", "boolean")  # a tuple: the compared value may be of any type


class SchemaNode:
    """The schema of one value in an object. Schemas that refer to themselves make cycles of nodes.

    `fields`: the schemas of an object's fields. `others`: the schema of all other keys (a map), or None. `scalar`: the
    value is a string, number or boolean. `open`: the schema is incomplete, so other paths may exist.
    """

    __slots__ = ("fields", "open", "others", "scalar")

    def __init__(self) -> None:
        self.fields: dict[str, SchemaNode] = {}
        self.others: SchemaNode | None = None
        self.scalar = False
        self.open = False

    def has(self, path: str) -> bool | None:
        """Return whether a dotted path leads to a scalar; None if the schema leaves this open."""
        node = self
        for part in path.split("."):
            child = node.fields.get(part, node.others)
            if child is None:
                return None if node.open else False
            node = child
        if node.scalar:
            return True
        return None if node.open and not node.fields else False


def read_schema(document: bytes, group: str, version: str, kind: str) -> SchemaNode | None:
    """Return the schema of a kind in an OpenAPI v3 document, None if it is missing. Raises DiscoveryError."""
    components = _mapping(decode(document).get("components"))
    schemas = _mapping(components.get("schemas"))
    wanted = {"group": group, "version": version, "kind": kind}
    for schema in schemas.values():
        kinds = _mapping(schema).get(_KINDS)
        if isinstance(kinds, list) and wanted in kinds:
            return _Reader(schemas).node(schema)
    return None


class _Reader:
    """Makes exactly one node for each named schema."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._named: dict[str, SchemaNode] = {}

    def node(self, root: Any) -> SchemaNode:
        """Return the node of a schema. It does not recurse, since schemas can be nested as deeply as JSON can."""
        first = SchemaNode()
        waiting = [(first, root)]
        while waiting:
            node, schema = waiting.pop()
            self._fill(node, _mapping(schema), waiting)
        return first

    def _fill(self, node: SchemaNode, schema: Mapping[str, Any], waiting: list[tuple[SchemaNode, Any]]) -> None:
        schema = self._resolved(schema)
        alternatives = schema.get("oneOf") or schema.get("anyOf")
        if schema.get("type") in _SCALARS or schema.get("x-kubernetes-int-or-string") is True:
            node.scalar = True
            return
        if isinstance(alternatives, list) and "properties" not in schema:
            node.scalar = all(_mapping(one).get("type") in _SCALARS for one in alternatives)
            node.open = not node.scalar
            return
        if schema.get("type") == "array":
            return
        properties = _mapping(schema.get("properties"))
        for name, child in properties.items():
            node.fields[name] = self._child(child, waiting)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and more:
            node.others = self._child(more, waiting)
        elif more is not False and (more is not None or not properties):
            node.open = True
        node.open = node.open or schema.get("x-kubernetes-preserve-unknown-fields") is True

    def _child(self, schema: Any, waiting: list[tuple[SchemaNode, Any]]) -> SchemaNode:
        name = _reference(_mapping(schema))
        if name is not None and name in self._named:
            return self._named[name]
        node = SchemaNode()
        if name is not None:
            self._named[name] = node
        waiting.append((node, schema))
        return node

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Follow references; a cyclic chain ends in an empty schema."""
        seen: set[str] = set()
        while (name := _reference(schema)) is not None:
            if name in seen:
                return {}
            seen.add(name)
            schema = _mapping(self._schemas.get(name))
        return schema


def _reference(schema: Mapping[str, Any]) -> str | None:
    """Return the name that a schema refers to: directly, or as `allOf` with one entry, next to a description."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1 and "properties" not in schema:
        schema = _mapping(parts[0])
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_PREFIX):
        return reference[len(_PREFIX) :]
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
