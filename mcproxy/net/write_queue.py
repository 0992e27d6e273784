"""The queue of bytes that a stream could not send yet. Pure.

Large pieces are kept with an offset, and never copied; small ones are joined before they are sent, which saves records
and system calls for a queue of small watch events.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SMALL: Final = 4 * 1024  # pieces smaller than this are joined, up to RECORD
RECORD: Final = 16 * 1024  # the payload of a full TLS record


class WriteQueue:
    """A queue of pieces; `size` is the number of unsent bytes, `sent` that of sent bytes."""

    __slots__ = ("_offset", "_pieces", "sent", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._offset = 0  # bytes of the first piece that are sent
        self.size = 0
        self.sent = 0

    def append(self, data: bytes, sent: int = 0) -> None:
        """Add a piece whose first `sent` bytes are sent already; only for the first piece of a queue."""
        if sent:
            self._offset = sent
        self._pieces.append(data)
        self.size += len(data) - sent

    def head(self) -> bytes | memoryview:
        """Return the next bytes to send; the queue must not be empty.

        A send that has blocked must be repeated with the same bytes, or more (SSL_write): pieces are only joined at the
        end.
        """
        head, offset = self._pieces[0], self._offset
        if len(head) - offset < SMALL and len(self._pieces) > 1:
            return self._join()
        return memoryview(head)[offset:] if offset else head

    def advance(self, sent: int) -> None:
        """Remove `sent` bytes, at most as many as `head` returned."""
        self.size -= sent
        self.sent += sent
        sent += self._offset
        if sent < len(self._pieces[0]):
            self._offset = sent
        else:
            self._pieces.popleft()
            self._offset = 0

    def _join(self) -> bytes:
        pieces = self._pieces
        joined = [pieces.popleft()[self._offset :]]
        size = len(joined[0])
        while pieces and size + len(pieces[0]) <= RECORD:
            size += len(pieces[0])
            joined.append(pieces.popleft())
        head = b"".join(joined)
        pieces.appendleft(head)
        self._offset = 0
        return head
