"""The resource versions of an aggregate of two or three members, in 128 bits.

That is the most that the conformance specs of Kubernetes accept: they demand a "uint128" of every object. From the top:

    1 | 0 for two members, 1 for three | CRC of the layout | lead | the lead's place | the other members' parts in order

The highest bit is always set, so there are always 39 digits. The lead is the version of the object's owner; in a list's
or a bookmark's it is the greatest part, and of equal ones the last: only so does a later vector never compare less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from mcproxy.aggregate.resource_version.layout import Layout, Versions
from mcproxy.aggregate.resource_version.long_form import LongFormat

DIGITS: Final = 39
_BITS: Final = 128


class Sizes(NamedTuple):
    """Bits of the parts of a version."""

    crc: int
    part: int
    place: int


SIZES: Final = {2: Sizes(17, 54, 1), 3: Sizes(16, 36, 2)}
"""By the number of members."""
LEAST_BITS: Final = min(sizes.part for sizes in SIZES.values())
"""Shorter versions fit into every form."""


class PackedNumber(NamedTuple):
    """The parts of a text of this form."""

    crc: int
    lead: int
    versions: Versions


class PackedFormat:
    """Writes the packed form. A version that does not fit, which only a client or a write's answer can bring (stores
    make the whole aggregate take the long form), is written in the long form, which is greater.
    """

    single_number = True

    def __init__(self, layout: Layout) -> None:
        """Raises KeyError for another number of members than two or three."""
        sizes = SIZES[len(layout)]
        self.layout = layout
        self.rank = len(layout)
        self._long = LongFormat(layout)
        self._end = 1 << sizes.part
        others = (len(layout) - 1) * sizes.part  # bits of the parts after the lead
        self._lead = others + sizes.place  # by how many bits the lead is shifted
        head = (0b10 | (len(layout) == 3)) << sizes.crc | layout.crc(1 << sizes.crc)
        head <<= _BITS - 2 - sizes.crc
        places = range(len(layout))
        self._heads = [head | place << others for place in places]  # by the place of the lead
        self._shifts = [
            [(place, sizes.part * (len(layout) - 2 - number)) for number, place in enumerate(_others(places, lead))]
            for lead in places
        ]

    def fits(self, version: int) -> bool:
        return version < self._end

    def list_version(self, versions: Versions) -> str:
        greatest = max(versions)
        if greatest >= self._end:
            return self._long.list_version(versions)
        lead = len(versions) - 1 - versions[::-1].index(greatest)
        return self._pack(versions, lead, greatest)

    def object(self, member: int, version: int) -> str:
        return self.object_template(member)(version).decode()

    def object_template(self, member: int) -> Callable[[int], bytes]:
        head, shift, end, long = self._heads[member], self._lead, self._end, self._long.object_template(member)

        def write(version: int) -> bytes:
            return b"%d" % (head + (version << shift)) if version < end else long(version)

        return write

    def event(self, versions: Versions, member: int, version: int) -> str:
        if version >= self._end or max(versions) >= self._end:
            return self._long.event(versions, member, version)
        return self._pack(versions, member, version)

    def written(self, versions: Versions, member: int, version: int) -> str:
        if version >= self._end or max(versions) >= self._end:
            return self._long.written(versions, member, version)
        return self._pack(versions, member, version)

    def _pack(self, versions: Versions, member: int, lead: int) -> str:
        number = self._heads[member] + (lead << self._lead)
        for place, shift in self._shifts[member]:
            number += versions[place] << shift
        return str(number)


def read_packed(text: str) -> PackedNumber | None:
    """Read a text of ASCII digits; None if it is not of this form."""
    if len(text) != DIGITS:
        return None
    number = int(text)
    if number.bit_length() != _BITS:
        return None
    members = 2 + (number >> (_BITS - 2) & 1)
    sizes = SIZES[members]
    mask = (1 << sizes.part) - 1
    versions = [0] * (members - 1)
    for place in reversed(range(members - 1)):
        versions[place] = number & mask
        number >>= sizes.part
    place = number & (1 << sizes.place) - 1
    number >>= sizes.place
    if place >= members:
        return None
    lead = number & mask
    versions.insert(place, lead)
    return PackedNumber(number >> sizes.part & (1 << sizes.crc) - 1, lead, tuple(versions))


def _others(places: range, lead: int) -> list[int]:
    return [place for place in places if place != lead]
