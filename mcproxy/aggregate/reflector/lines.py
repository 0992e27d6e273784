"""The lines of a watch, from the pieces in which they arrive."""

from __future__ import annotations

MAX_LINE = 32 * 1024 * 1024  # bytes; an object may have 1.5 MB in etcd, and comes with Table cells and in JSON


class LineTooLong(Exception):
    """A line without end: no event."""


class LineSplitter:
    """Joins pieces and splits them at line feeds."""

    __slots__ = ("_begun", "_limit", "_size")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun: list[bytes] = []  # pieces of the line that is not complete
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, without line feeds; empty ones are left out. Raises LineTooLong."""
        end = data.find(b"\n")
        if end < 0:
            self._keep(data)
            return []
        if self._begun:
            self._keep(data[:end])
            first = b"".join(self._begun)
            self._begun.clear()
            self._size = 0
            lines = [first, *data[end + 1 :].split(b"\n")]
        else:
            lines = data.split(b"\n")
        rest = lines.pop()
        if rest:
            self._keep(rest)
        return [line for line in lines if line]

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._begun.clear()
            raise LineTooLong
        self._begun.append(data)
