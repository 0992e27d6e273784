"""Reading the `Status` of a cluster's error response: JSON, or the protobuf that client-go asks for. Pure.

Source: k8s.io/apimachinery `pkg/runtime/serializer/protobuf` (the magic number and the envelope, `runtime.Unknown`) and
`pkg/apis/meta/v1/generated.proto` (`Status`). The caller bounds the size of a body; its content is not trusted.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from mcproxy.kube.protobuf import MAGIC, envelope, scan

_STATUS_MESSAGE, _STATUS_REASON = 3, 4  # field numbers


class StatusText(NamedTuple):
    """Reason and message of a Status."""

    reason: str
    message: str


def read_status(body: bytes) -> StatusText | None:
    """Return reason and message of a body that is a Status, None for any other."""
    try:
        return _from_protobuf(body) if body.startswith(MAGIC) else _from_json(body)
    except (ValueError, RecursionError):
        return None


def _from_json(body: bytes) -> StatusText | None:
    status = json.loads(body)
    if not isinstance(status, dict) or status.get("kind") != "Status":
        return None
    reason, message = status.get("reason"), status.get("message")
    return StatusText(reason, message) if isinstance(reason, str) and isinstance(message, str) else None


def _from_protobuf(body: bytes) -> StatusText | None:
    found = envelope(body)
    if found.kind != "Status":
        return None
    texts = {_STATUS_REASON: "", _STATUS_MESSAGE: ""}
    for field in scan(body, found.raw.content, found.raw.end):
        if field.number in texts:
            texts[field.number] = body[field.content : field.end].decode()
    return StatusText(texts[_STATUS_REASON], texts[_STATUS_MESSAGE])
