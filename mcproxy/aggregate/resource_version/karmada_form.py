"""Karmada's form of a resource version: base64url without padding of compact JSON with sorted keys.

`{"east":"1000","west":"2000"}`. Source: Karmada, `pkg/search/proxy/store` (multiClusterResourceVersion). These do not
compare as numbers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import msgspec

from mcproxy.aggregate.resource_version.layout import Layout, Versions

OBJECT = "/object"
"""What follows a member's name where an object's version is not the one to resume from. No cluster has such a name,
and Karmada leaves out what it does not know."""
_PARTS = msgspec.json.Decoder(dict[str, str])


class KarmadaFormat:
    """Writes Karmada's form."""

    rank = 0
    single_number = False

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._names = layout.names

    def fits(self, version: int) -> bool:
        return True

    def list_version(self, versions: Versions) -> str:
        return _encoded(self._parts(versions)).decode()

    def object(self, member: int, version: int) -> str:
        return _encoded({self._names[member]: str(version)}).decode()

    def object_template(self, member: int) -> Callable[[int], bytes]:
        name = self._names[member]

        def write(version: int) -> bytes:
            return _encoded({name: str(version)})

        return write

    def event(self, versions: Versions, member: int, version: int) -> str:
        # There is no lead, so the owner's part is for writes, too. One that is lower than where to resume repeats
        # events at most. A higher one would lose some: where the stores of a member are at different versions.
        name = self._names[member]
        parts = self._parts(versions)
        if version:
            parts[name if version <= versions[member] else name + OBJECT] = str(version)
        return _encoded(parts).decode()

    def written(self, versions: Versions, member: int, version: int) -> str:
        return self.object(member, version)  # the owner's part alone, as Karmada answers

    def _parts(self, versions: Versions) -> dict[str, str]:
        return {name: str(version) for name, version in zip(self._names, versions, strict=True) if version}


def read_karmada(text: str) -> dict[str, str]:
    """Read a text of either alphabet of base64, with padding or without: what it has by name.

    Raises ValueError for what is not of this form.
    """
    stripped = text.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        return _PARTS.decode(base64.urlsafe_b64decode(stripped + "=" * (-len(stripped) % 4)))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _encoded(parts: dict[str, str]) -> bytes:
    text = json.dumps(parts, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=")
