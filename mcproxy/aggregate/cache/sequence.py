"""An immutable sorted sequence of cached objects: each change makes a new sequence, which shares all chunks except one
with the old sequence.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain
from typing import Generic, NamedTuple, TypeVar
from zlib import crc32

from mcproxy.aggregate.cache.cached_object import CachedObject

_MASK = 2**64 - 1
CHUNK = 512
"""Maximum number of objects in a chunk: a change copies up to this many references."""
_MOST_COLUMNS = 4  # fields whose values are kept at a time
_MOST_TEXTS = 4096
LONGEST_VALUE = 253
"""Maximum characters of a field's value that is kept whole; a longer one is kept as one character more than this."""
_SMALL = 64  # a chunk that has fewer after a removal is joined to its neighbour

Chunk = tuple[CachedObject, ...]


class LabelRuns(NamedTuple):
    """The labels in a chunk, once for each run of adjacent objects with the same labels, such as the pods of a
    Deployment.

    A label selector that is evaluated per run instead of per object takes half the time for 100,000 pods.
    """

    labels: tuple[dict[str, str], ...]
    ends: array[int]
    """Where each run ends in the chunk."""


class FieldColumn:
    """The values of one field of the objects of a sequence, by chunk; None for a chunk whose values are not read yet.

    The value of a changed object is read at once, unless the values have not been used for as many changes as there are
    objects: reading all of them again then costs less.
    """

    __slots__ = ("_texts", "chunks", "read", "unused")

    def __init__(
        self, read: Callable[[CachedObject], str], chunks: list[list[str] | None], texts: dict[str, str], unused: int
    ) -> None:
        self.read = read
        self.chunks = chunks
        self.unused = unused
        self._texts = texts

    def value(self, item: CachedObject) -> str:
        """Return the value of an object; equal values are one string, as far as possible.

        A longer value than LONGEST_VALUE is cut, so that members cannot fill the memory with values.
        """
        text = self.read(item)[: LONGEST_VALUE + 1]
        known = self._texts.get(text)
        if known is None:
            if len(self._texts) >= _MOST_TEXTS:
                return text
            known = self._texts[text] = text
        return known

    def with_chunks(self, index: int, parts: list[list[str] | None], end: int) -> FieldColumn:
        """Return the column of a sequence in which `parts` replace the chunks from `index` to `end`."""
        return FieldColumn(self.read, [*self.chunks[:index], *parts, *self.chunks[end:]], self._texts, self.unused + 1)


def key_of(item: CachedObject) -> str:
    """Return `namespace/name`, the order in which a kube-apiserver lists."""
    return f"{item.namespace}/{item.name}"


class ObjectSequence:
    """Objects in the order of their keys, each key once; immutable.

    The garbage collector tracks neither the objects nor the chunks, which are tuples of such objects.
    """

    __slots__ = ("_chunks", "_columns", "_fingerprint", "_firsts", "_length", "_runs")

    def __init__(
        self,
        chunks: tuple[Chunk, ...] = (),
        firsts: tuple[str, ...] = (),
        length: int = 0,
        runs: list[LabelRuns | None] | None = None,
        fingerprint: int | None = None,
        columns: dict[Hashable, FieldColumn] | None = None,
    ) -> None:
        self._chunks = chunks
        self._columns = columns or {}  # the kept values of fields, by field
        self._fingerprint = fingerprint  # None until it is first requested
        self._firsts = firsts  # the key of the first object in each chunk
        self._length = length
        self._runs = runs  # the label runs of each chunk, computed on the first request

    @classmethod
    def from_sorted(cls, items: list[CachedObject], fingerprint: int | None = None) -> ObjectSequence:
        """Return the sequence of objects that are already in order, without duplicate keys.

        `fingerprint` is the sum of their `fingerprint_part`, if it is known.
        """
        chunks = tuple(tuple(items[start : start + CHUNK]) for start in range(0, len(items), CHUNK))
        known = None if fingerprint is None else fingerprint & _MASK
        return cls(chunks, tuple(key_of(chunk[0]) for chunk in chunks), len(items), None, known)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[CachedObject]:
        return chain.from_iterable(self._chunks)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks, for callers that work in slices."""
        return self._chunks

    @property
    def fingerprint(self) -> int:
        """A 64-bit hash of the objects and their versions; it is the same in every process.

        The fingerprint is computed once; each later change updates it.
        """
        if self._fingerprint is None:
            self._fingerprint = sum(map(fingerprint_part, self)) & _MASK
        return self._fingerprint

    def label_runs(self, index: int) -> LabelRuns:
        """Return the labels in a chunk; they are cached, also for later sequences that share the chunk."""
        if self._runs is None:
            self._runs = [None] * len(self._chunks)
        runs = self._runs[index]
        if runs is None:
            runs = self._runs[index] = _label_runs(self._chunks[index])
        return runs

    def field_values(self, index: int, field: Hashable, read: Callable[[CachedObject], str]) -> list[str]:
        """Return the value of a field of each object in a chunk; `read` returns that of one object.

        They are kept, also for later sequences: one change of a chunk reads one object again.
        """
        column = self._columns.get(field)
        if column is None:
            if len(self._columns) >= _MOST_COLUMNS:
                self._columns.clear()
            column = self._columns[field] = FieldColumn(read, [None] * len(self._chunks), {}, 0)
        column.unused = 0
        values = column.chunks[index]
        if values is None:
            values = column.chunks[index] = [column.value(item) for item in self._chunks[index]]
        return values

    def get(self, key: str) -> CachedObject | None:
        """Return the object with that key, None if there is none."""
        index, place = self._find(key)
        if index < len(self._chunks) and place < len(chunk := self._chunks[index]) and key_of(chunk[place]) == key:
            return chunk[place]
        return None

    def rank(self, key: str) -> int:
        """Return the number of objects before `key`."""
        index, place = self._find(key)
        return sum(map(len, self._chunks[:index])) + place

    def between(self, start: str, end: str | None = None) -> Iterator[CachedObject]:
        """Iterate over the objects from `start` (included) to `end` (excluded); None is the end of the sequence."""
        index, place = self._find(start)
        last, stop = self._find(end) if end is not None else (len(self._chunks), 0)
        chunks = self._chunks
        if index >= len(chunks) or (index, place) >= (last, stop):
            return iter(())
        if index == last:
            return iter(chunks[index][place:stop])
        rest = chunks[last][:stop] if last < len(chunks) else ()
        return chain(chunks[index][place:], chain.from_iterable(chunks[index + 1 : last]), rest)

    def put(self, item: CachedObject) -> ObjectSequence:
        """Return the sequence with `item`, in place of the object with its key if there is one."""
        key = key_of(item)
        if not self._chunks:
            return ObjectSequence(((item,),), (key,), 1)
        index, place = self._find(key)
        chunk = self._chunks[index]
        if place < len(chunk) and key_of(chunk[place]) == key:
            return self._with(index, place, (*chunk[:place], item, *chunk[place + 1 :]), chunk[place], item)
        return self._with(index, place, (*chunk[:place], item, *chunk[place:]), None, item)

    def remove(self, key: str) -> ObjectSequence:
        """Return the sequence without the object with that key, or this sequence if it has no such object."""
        index, place = self._find(key)
        if index >= len(self._chunks):
            return self
        chunk = self._chunks[index]
        if place >= len(chunk) or key_of(chunk[place]) != key:
            return self
        return self._with(index, place, chunk[:place] + chunk[place + 1 :], chunk[place], None)

    def changed(self, changes: Mapping[str, CachedObject | None]) -> ObjectSequence:
        """Return the sequence with many changes by key; None removes the object. Each chunk is copied at most once."""
        by_chunk: dict[int, dict[str, CachedObject | None]] = {}
        for key, item in changes.items():
            by_chunk.setdefault(self._find(key)[0], {})[key] = item
        chunks: list[Chunk] = []
        for index in range(max(len(self._chunks), 1)):
            chunk = self._chunks[index] if self._chunks else ()
            if index in by_chunk:
                merged: dict[str, CachedObject | None] = {key_of(item): item for item in chunk}
                merged.update(by_chunk[index])
                chunks += _split(tuple(item for _, item in sorted(merged.items()) if item is not None))
            else:
                chunks.append(chunk)
        fingerprint = self.fingerprint
        for key, item in changes.items():
            fingerprint += _difference(self.get(key), item)
        kept = tuple(chunk for chunk in chunks if chunk)
        firsts = tuple(key_of(chunk[0]) for chunk in kept)
        return ObjectSequence(kept, firsts, sum(map(len, kept)), None, fingerprint & _MASK)

    def _find(self, key: str) -> tuple[int, int]:
        """Return the index of the chunk, and the index in it, at which `key` is or would be inserted."""
        index = bisect_right(self._firsts, key) - 1
        if index < 0:
            return 0, 0
        return index, bisect_left(self._chunks[index], key, key=key_of)

    def _with(
        self, index: int, place: int, chunk: Chunk, before: CachedObject | None, after: CachedObject | None
    ) -> ObjectSequence:
        """Return the sequence with the chunk at `index` replaced by one in which the object at `place` is added,
        replaced or removed.
        """
        known = self._fingerprint
        changed, end = index, index + 1
        if len(chunk) < _SMALL and len(self._chunks) > 1:
            if index:
                index -= 1
                chunk = self._chunks[index] + chunk
            else:
                chunk += self._chunks[end]
                end += 1
        parts = _split(chunk)
        columns: dict[Hashable, FieldColumn] = {}
        for field, column in self._columns.items():
            if column.unused < self._length:
                pieces: list[list[str] | None] = [None] * len(parts)
                values = column.chunks[changed]
                if values is not None and len(parts) == end - index == 1:
                    added = [] if after is None else [column.value(after)]
                    pieces = [[*values[:place], *added, *values[place + (before is not None) :]]]
                columns[field] = column.with_chunks(index, pieces, end)
        return ObjectSequence(
            (*self._chunks[:index], *parts, *self._chunks[end:]),
            (*self._firsts[:index], *(key_of(part[0]) for part in parts), *self._firsts[end:]),
            self._length + (after is not None) - (before is not None),
            self._runs and [*self._runs[:index], *[None] * len(parts), *self._runs[end:]],
            None if known is None else (known + _difference(before, after)) & _MASK,
            columns,
        )


def _label_runs(chunk: Chunk) -> LabelRuns:
    labels: list[dict[str, str]] = []
    ends = array("H")
    for end, item in enumerate(chunk, 1):
        if labels and item.labels is labels[-1]:
            ends[-1] = end
        else:
            labels.append(item.labels)
            ends.append(end)
    return LabelRuns(tuple(labels), ends)


def _split(chunk: Chunk) -> list[Chunk]:
    if len(chunk) <= CHUNK:
        return [chunk] if chunk else []
    size = -(-len(chunk) // -(-len(chunk) // CHUNK))  # equal parts, so that the next change does not split again
    return [chunk[start : start + size] for start in range(0, len(chunk), size)]


def fingerprint_part(item: CachedObject) -> int:
    """Return the number that an object adds to a sequence's fingerprint; each of its versions has another number."""
    return (crc32(f"{item.namespace}/{item.name}\0{item.uid}".encode("utf-8", "surrogatepass")) + 1) * item.version


def _difference(before: CachedObject | None, after: CachedObject | None) -> int:
    return (0 if after is None else fingerprint_part(after)) - (0 if before is None else fingerprint_part(before))


StoreT = TypeVar("StoreT")
_BEHIND_SLASH = "0"  # the character after the slash: "ns0" is where the keys that begin with "ns/" end


class Snapshot(Generic[StoreT]):
    """An immutable state of a store, in the order in which a kube-apiserver lists. A new snapshot costs nothing. A
    snapshot that is kept holds the memory of the objects that have changed since. `columns` are the store's columns at
    the time of the snapshot.
    """

    __slots__ = ("_objects", "columns", "store", "version")

    def __init__(self, store: StoreT, version: int, objects: ObjectSequence, columns: bytes | None = None) -> None:
        self.store = store
        self.version = version
        self.columns = columns
        self._objects = objects

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[CachedObject]:
        return iter(self._objects)

    @property
    def objects(self) -> ObjectSequence:
        """The objects, with access by chunk."""
        return self._objects

    def get(self, namespace: str, name: str) -> CachedObject | None:
        """Return one object; `namespace` is "" for a cluster-scoped resource."""
        return self._objects.get(f"{namespace}/{name}")

    def range(self, namespace: str = "") -> Iterator[CachedObject]:
        """Iterate over the objects of a namespace; "" is all."""
        if not namespace:
            return iter(self._objects)
        return self._objects.between(f"{namespace}/", namespace + _BEHIND_SLASH)

    def count(self, namespace: str = "") -> int:
        """Return how many objects a namespace has; "" is all."""
        if not namespace:
            return len(self._objects)
        return self._objects.rank(namespace + _BEHIND_SLASH) - self._objects.rank(f"{namespace}/")

    def after(self, namespace: str, name: str, within_namespace: str = "") -> Iterator[CachedObject]:
        """Iterate over the objects after that name; an object with the name need not exist."""
        end = within_namespace + _BEHIND_SLASH if within_namespace else None
        start = max(f"{namespace}/{name}\0", f"{within_namespace}/" if within_namespace else "")
        return self._objects.between(start, end)

    def count_after(self, namespace: str, name: str, within_namespace: str = "") -> int:
        """Return the number of objects that `after` yields."""
        objects = self._objects
        start = max(f"{namespace}/{name}\0", f"{within_namespace}/" if within_namespace else "")
        end = objects.rank(within_namespace + _BEHIND_SLASH) if within_namespace else len(objects)
        return max(0, end - objects.rank(start))
