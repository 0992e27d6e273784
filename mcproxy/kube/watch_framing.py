"""The boundaries of the events of a watch, found without decoding the events.

Source: Kubernetes API concepts, "Efficient detection of changes": JSON events are lines; protobuf events are frames
with their length before them (k8s.io/apimachinery `pkg/util/framer`: four bytes, big-endian).
"""

from __future__ import annotations


class EventBoundary:
    """Follows the bytes of one watch; `clean` is True if they end at the boundary of an event."""

    __slots__ = ("_binary", "_head", "_remaining", "_unknown", "clean")

    def __init__(self, content_type: bytes | None, content_encoding: bytes | None = None) -> None:
        media_type = (content_type or b"").partition(b";")[0].strip().lower()
        self._binary = media_type == b"application/vnd.kubernetes.protobuf"
        # Other media types and compressed bodies cannot be followed; only their beginning is a boundary.
        self._unknown = content_encoding is not None or not (self._binary or media_type == b"application/json")
        self._head = b""
        self._remaining = 0
        self.clean = True

    def passed(self, data: bytes) -> None:
        """Follow the next bytes, which are not empty."""
        if self._unknown:
            self.clean = False
        elif not self._binary:
            self.clean = data.endswith(b"\n")
        else:
            self._frames(data)

    def _frames(self, data: bytes) -> None:
        position, end = 0, len(data)
        while position < end:
            if self._remaining:
                step = min(self._remaining, end - position)
                self._remaining -= step
                position += step
            else:
                missing = 4 - len(self._head)
                self._head += data[position : position + missing]
                position = min(position + missing, end)
                if len(self._head) == 4:
                    self._remaining = int.from_bytes(self._head, "big")
                    self._head = b""
        self.clean = not self._remaining and not self._head
