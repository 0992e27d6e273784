"""The queue of bytes that a stream could not send yet. Pure.

Large pieces are kept with an offset and never copied. Small pieces are joined before they are sent, which saves records
and system calls if many small watch events are queued.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SMALL: Final = 4 * 1024  # pieces smaller than this are joined, up to RECORD
RECORD: Final = 16 * 1024  # the payload of a full TLS record


class WriteQueue:
    """A queue of pieces; `size` is the number of unsent bytes, `sent` the number of sent bytes."""

    __slots__ = ("_offset", "_pieces", "sent", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._offset = 0  # number of sent bytes of the first piece
        self.size = 0
        self.sent = 0

    def append(self, data: bytes, sent: int = 0) -> None:
        """Add a piece. `sent`, the number of its already sent bytes, is only for the first piece of a queue."""
        if sent:
            self._offset = sent
        self._pieces.append(data)
        self.size += len(data) - sent

    def head(self) -> bytes | memoryview:
        """Return the next bytes to send; the queue must not be empty.

        A blocked send must be repeated with the same bytes or more (SSL_write), so pieces are joined only at the end
        of the queue.
        """
        head, offset = self._pieces[0], self._offset
        if len(head) - offset < SMALL and len(self._pieces) > 1:
            return self._join()
        return memoryview(head)[offset:] if offset else head

    def advance(self, sent: int) -> None:
        """Remove `sent` bytes, at most the number that `head` returned."""
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
