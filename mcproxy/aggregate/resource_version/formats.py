"""How an aggregate writes resource versions: as comparable numbers, as Karmada does, or as its only member's own.

Since Kubernetes 1.35 resource versions are positive integers of any length that compare: longer is greater, equal
length compares as text (KEP-5504, k8s.io/apimachinery `pkg/util/resourceversion`). Clients resume a watch at the
version of whatever they saw last, so lists, bookmarks and events carry the version of every member.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Protocol

from mcproxy.aggregate.resource_version.layout import Layout

Versions = tuple[int, ...]
"""One version for each member, in the order of the layout; 0 is a vector without that member."""
PART_DIGITS = 20
"""Digits of one part: the greatest unsigned 64-bit number has 20."""
HEAD_DIGITS = 6
"""The digit 1 and the five of the CRC."""


class VersionFormat(Protocol):
    """Writes the resource versions of one layout."""

    def whole(self, versions: Versions, lead: int = 0) -> str:
        """Return the version of a list, a bookmark or an event.

        `lead` is the owner's version of an event's object; 0, for lists and bookmarks, is the greatest of `versions`.
        """

    def object(self, member: int, version: int) -> str:
        """Return the version of an object in a get or a list: its owner's part alone, so it stays the same while
        the object does.
        """

    def object_template(self, member: int) -> Callable[[int], bytes]:
        """Return `object` of one member, as bytes: what writes the items of a list."""

    def event(self, versions: Versions, member: int, version: int) -> str:
        """Return the version of an event whose object is `member`'s, with `version`; `versions` is where to resume.

        A write with it must reach the member with `version`, and a watch from it must miss nothing.
        """

    def written(self, versions: Versions, member: int, version: int) -> str:
        """Return the version in the answer to a write that `member` answered with `version`."""


class NumberFormat:
    """`1`, the layout's CRC in five digits, then the lead and each member's version in 20 digits each.

    Its length is 26 + 20 n, so it is never taken for a member's own, which has at most 20 digits. The lead stands
    before the rest, so a newer state of an object compares greater in every form and at every replica.
    """

    def __init__(self, layout: Layout) -> None:
        self._head = f"1{layout.crc:05d}"
        self._members = len(layout)
        self._template = self._head + "%020d" * (1 + self._members)

    def whole(self, versions: Versions, lead: int = 0) -> str:
        return self._template % (lead or max(versions, default=0), *versions)

    def object(self, member: int, version: int) -> str:
        before, after = "0" * (PART_DIGITS * member), "0" * (PART_DIGITS * (self._members - member - 1))
        part = f"{version:020d}"
        return f"{self._head}{part}{before}{part}{after}"

    def object_template(self, member: int) -> Callable[[int], bytes]:
        before = b"0" * (PART_DIGITS * member)
        after = b"0" * (PART_DIGITS * (self._members - member - 1))
        template = self._head.encode() + b"%020d" + before + b"%020d" + after

        def write(version: int) -> bytes:
            return template % (version, version)

        return write

    def event(self, versions: Versions, member: int, version: int) -> str:
        return self.whole(versions, version)

    def written(self, versions: Versions, member: int, version: int) -> str:
        return self.whole((*versions[:member], version, *versions[member + 1 :]), version)


class KarmadaFormat:
    """base64url without padding of compact JSON with sorted keys: `{"east":"1000","west":"2000"}`.

    Source: Karmada, `pkg/search/proxy/store` (multiClusterResourceVersion). These do not compare as numbers.
    """

    def __init__(self, layout: Layout) -> None:
        self._names = layout.names
        self._sorted = sorted(range(len(layout)), key=layout.names.__getitem__)

    def whole(self, versions: Versions, lead: int = 0) -> str:
        return _encoded(
            {self._names[place]: str(versions[place]) for place in self._sorted if versions[place]}
        ).decode()

    def object(self, member: int, version: int) -> str:
        return _encoded({self._names[member]: str(version)}).decode()

    def object_template(self, member: int) -> Callable[[int], bytes]:
        name = self._names[member]

        def write(version: int) -> bytes:
            return _encoded({name: str(version)})

        return write

    def event(self, versions: Versions, member: int, version: int) -> str:
        # There is no lead, so the owner's part is for writes, too. A lower one than that to resume from repeats
        # events at most; a higher one would lose some, and there a write is a conflict until the client has read.
        return self.whole((*versions[:member], min(version, versions[member]), *versions[member + 1 :]))

    def written(self, versions: Versions, member: int, version: int) -> str:
        return self.object(member, version)  # the owner's part alone, as Karmada answers


class PlainFormat:
    """The versions of an aggregate's only member, as they are."""

    def whole(self, versions: Versions, lead: int = 0) -> str:
        return str(lead or versions[0])

    def object(self, member: int, version: int) -> str:
        return str(version)

    def object_template(self, member: int) -> Callable[[int], bytes]:
        return _plain

    def event(self, versions: Versions, member: int, version: int) -> str:
        return str(version)

    def written(self, versions: Versions, member: int, version: int) -> str:
        return str(version)


def version_format(layout: Layout, *, karmada: bool = False) -> VersionFormat:
    """Return the format of an aggregate: Karmada's if asked for, else numbers, which for one member are its own."""
    if karmada:
        return KarmadaFormat(layout)
    return PlainFormat() if len(layout) == 1 else NumberFormat(layout)


def _encoded(versions: dict[str, str]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(versions, separators=(",", ":")).encode()).rstrip(b"=")


def _plain(version: int) -> bytes:
    return b"%d" % version
