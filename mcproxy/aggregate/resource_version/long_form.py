"""The long form of a resource version: decimal digits, 20 for each member.

`1`, five digits of the layout's CRC-32, then 20 digits each of a lead and of every member's version. Its length is
26 + 20 n, so it is never taken for a member's own, which has at most 20 digits, nor for the 39 of the packed form. The
lead precedes the rest, so a newer state of an object compares greater in every form and at every replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mcproxy.aggregate.resource_version.layout import Layout, Versions

PART_DIGITS = 20
"""Digits of one part: the greatest unsigned 64-bit number has 20."""
HEAD_DIGITS = 6
"""The digit 1 and the five of the CRC."""
CRC_MODULUS = 100_000
_LEAST_RANK = 10


class LongNumber(NamedTuple):
    """The parts of a text of this form."""

    crc: int
    lead: int
    versions: Versions


class LongFormat:
    """Writes the long form: for more than three members, and where a version is too great for the packed form."""

    single_number = False

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.rank = _LEAST_RANK + len(layout)
        self._head = f"1{layout.crc(CRC_MODULUS):05d}"
        self._template = self._head + "%020d" * (1 + len(layout))

    def fits(self, version: int) -> bool:
        return True

    def list_version(self, versions: Versions) -> str:
        return self._template % (max(versions, default=0), *versions)

    def object(self, member: int, version: int) -> str:
        return self.object_template(member)(version).decode()

    def object_template(self, member: int) -> Callable[[int], bytes]:
        before = b"0" * (PART_DIGITS * member)
        after = b"0" * (PART_DIGITS * (len(self.layout) - member - 1))
        template = self._head.encode() + b"%020d" + before + b"%020d" + after

        def write(version: int) -> bytes:
            return template % (version, version)

        return write

    def event(self, versions: Versions, member: int, version: int) -> str:
        return self._template % (version, *versions)

    def written(self, versions: Versions, member: int, version: int) -> str:
        return self.event((*versions[:member], version, *versions[member + 1 :]), member, version)


def read_long(text: str) -> LongNumber | None:
    """Read a text of ASCII digits; None if it is not of this form. The parts may be greater than 64 bits."""
    count, rest = divmod(len(text) - HEAD_DIGITS, PART_DIGITS)
    if text[:1] != "1" or rest or count < 1:
        return None
    lead, *versions = (int(text[place : place + PART_DIGITS]) for place in range(HEAD_DIGITS, len(text), PART_DIGITS))
    return LongNumber(int(text[1:HEAD_DIGITS]), lead, tuple(versions))
