"""The version of a collection now, asked of its member with a list of one object."""

from __future__ import annotations

import msgspec


class _ListMeta(msgspec.Struct):
    resourceVersion: str = ""


class _List(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


def version_of_list(body: bytes) -> int:
    """Return the resourceVersion of a list, 0 if it is no positive integer of 64 bits."""
    try:
        text = msgspec.json.decode(body, type=_List).metadata.resourceVersion
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 2**64 else 0
