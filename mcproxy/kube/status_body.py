"""Reading the `Status` of a cluster's error response: JSON, or the protobuf that client-go asks for. Pure.

Source: k8s.io/apimachinery `pkg/runtime/serializer/protobuf` (the magic number and the envelope, `runtime.Unknown`) and
`pkg/apis/meta/v1/generated.proto` (`Status`). The caller bounds the size of a body; its content is not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

_MAGIC = b"k8s\x00"
# Field numbers.
_UNKNOWN_TYPE, _UNKNOWN_RAW = 1, 2
_TYPE_KIND = 2
_STATUS_MESSAGE, _STATUS_REASON = 3, 4


class StatusText(NamedTuple):
    """The parts of a Status that say what happened."""

    reason: str
    message: str


def read_status(body: bytes) -> StatusText | None:
    """Return reason and message of a body that is a Status, None for any other."""
    try:
        return _from_protobuf(body[len(_MAGIC) :]) if body.startswith(_MAGIC) else _from_json(body)
    except (ValueError, RecursionError):
        return None


def _from_json(body: bytes) -> StatusText | None:
    status = json.loads(body)
    if not isinstance(status, dict) or status.get("kind") != "Status":
        return None
    reason, message = status.get("reason"), status.get("message")
    return StatusText(reason, message) if isinstance(reason, str) and isinstance(message, str) else None


def _from_protobuf(body: bytes) -> StatusText | None:
    envelope = dict(_fields(body))
    kind = dict(_fields(envelope.get(_UNKNOWN_TYPE, b""))).get(_TYPE_KIND)
    if kind != b"Status":
        return None
    status = dict(_fields(envelope.get(_UNKNOWN_RAW, b"")))
    return StatusText(status.get(_STATUS_REASON, b"").decode(), status.get(_STATUS_MESSAGE, b"").decode())


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a protobuf message; raises ValueError where it is malformed."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 0:
            _, position = _varint(message, position)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        elif kind == 2:
            length, position = _varint(message, position)
            yield key >> 3, message[position : position + length]
            position += length
        else:
            raise ValueError("no such wire type")
    if position > len(message):
        raise ValueError("truncated")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("no varint")
