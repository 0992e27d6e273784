"""Finds the boundaries of a watch's events without decoding the events.

Source: Kubernetes API concepts, "Efficient detection of changes": JSON events are lines; protobuf events are frames
after their length (k8s.io/apimachinery `pkg/util/framer`: four bytes, big-endian). In a watch with gzip compression
(Kubernetes 1.37), each flush ends a gzip member (RFC 1952, section 2.2), and each event is flushed.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

_GZIP: Final = 16 + zlib.MAX_WBITS
_MOST_INFLATED: Final = 4 * 1024 * 1024
"""Maximum of bytes that one received piece of a body inflates to. A watch that exceeds it is not followed any more."""
_STEP: Final = 64 * 1024


class EventBoundary:
    """Follows the bytes of one watch. `clean`: whether the bytes passed until now end at the boundary of an event."""

    __slots__ = ("_binary", "_head", "_member", "_remaining", "_unknown", "_zipped", "clean")

    def __init__(self, content_type: bytes | None, content_encoding: bytes | None = None) -> None:
        media_type = (content_type or b"").partition(b";")[0].strip().lower()
        encoding = (content_encoding or b"identity").strip().lower()
        self._binary = media_type == b"application/vnd.kubernetes.protobuf"
        self._zipped = encoding == b"gzip"
        # Other media types and encodings cannot be followed; only their beginning is a boundary.
        known = self._binary or media_type == b"application/json"
        self._unknown = not known or encoding not in (b"identity", b"gzip")
        self._head = b""
        self._remaining = 0
        self._member: Any = None  # the decompressor of the current gzip member
        self.clean = True

    def passed(self, data: bytes) -> None:
        """Follow the next bytes, which are not empty."""
        if self._unknown:
            self.clean = False
        elif self._zipped:
            self._members(data)
        elif not self._binary:
            self.clean = data.endswith(b"\n")
        else:
            self._frames(data)

    def _members(self, data: bytes) -> None:
        """Inflate the received bytes, the only way to find the end of a member, and discard the result."""
        left = _MOST_INFLATED
        try:
            while data:
                if self._member is None:
                    self._member = zlib.decompressobj(_GZIP)
                left -= len(self._member.decompress(data, _STEP))
                if left < 0:
                    raise zlib.error("too much")
                if self._member.eof:
                    data = self._member.unused_data
                    self._member = None
                else:
                    data = self._member.unconsumed_tail
        except zlib.error:
            self._unknown = True
        self.clean = self._member is None and not self._unknown

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
