"""A cache of OpenAPI documents: compressed, and bounded in bytes."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.net.wall_time import WallSeconds

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
