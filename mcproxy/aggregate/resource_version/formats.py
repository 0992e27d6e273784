"""The formats of an aggregate's resource versions, and the choice between them.

Since Kubernetes 1.35 resource versions are positive integers of any length that can be compared: a longer one is
greater, equal lengths compare as text (KEP-5504, k8s.io/apimachinery `pkg/util/resourceversion`). Clients resume a
watch at the last version that they saw, so lists, bookmarks and events carry the version of every member.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from mcproxy.aggregate.resource_version.layout import Layout, Versions


class VersionFormat(Protocol):
    """Writes the resource versions of one layout."""

    @property
    def layout(self) -> Layout:
        """The layout: the index of each member in version vectors."""

    @property
    def rank(self) -> int:
        """A version in a format with a greater rank compares greater. 0: versions in this format cannot be compared."""

    @property
    def single_number(self) -> bool:
        """Whether one number in an event's version is both the object's version and the member's version to resume
        from.

        Such a format cannot write the versions of a member with several stores, whose events are not one sequence.
        """

    def fits(self, version: int) -> bool:
        """Whether a member's version is small enough for this format."""

    def list_version(self, versions: Versions) -> str:
        """Return the version of a list or a bookmark."""

    def object(self, member: int, version: int) -> str:
        """Return the version of an object in a get or a list: it has only its owner's part, so it changes only with
        the object.
        """

    def object_template(self, member: int) -> Callable[[int], bytes]:
        """Return a function that acts as `object` for one member but returns bytes, for the items of a list."""

    def event(self, versions: Versions, member: int, version: int) -> str:
        """Return the resource version of a watch event.

        The event's object belongs to `member`, where it has `version`; a watch from the returned version resumes each
        member at its part of `versions`.


        If a client sends a write with the returned version, the member gets `version`. A watch from it misses no
        change.
        """

    def written(self, versions: Versions, member: int, version: int) -> str:
        """Return the version in the answer to a write that `member` answered with `version`."""


class PlainFormat:
    """Writes the versions of an aggregate's only member unchanged."""

    rank = 1
    single_number = True

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def fits(self, version: int) -> bool:
        return True

    def list_version(self, versions: Versions) -> str:
        return str(versions[0])

    def object(self, member: int, version: int) -> str:
        return str(version)

    def object_template(self, member: int) -> Callable[[int], bytes]:
        return _plain

    def event(self, versions: Versions, member: int, version: int) -> str:
        return str(version or 1)  # clients give 0 another meaning (any version)

    def written(self, versions: Versions, member: int, version: int) -> str:
        return str(version)


def version_format(layout: Layout, *, karmada: bool = False, long: bool = False, bits: int = 0) -> VersionFormat:
    """Return the format to write: Karmada's if configured, else numbers.

    With one member, a version is the member's own number; with two or three members, it is a number of 128 bits; else
    it has the long form. `long` forces the long form; `bits` is the length of the greatest version of any member, which
    can be too long for the 128-bit form.
    """
    if karmada:
        return KarmadaFormat(layout)
    if not long and len(layout) == 1:
        return PlainFormat(layout)
    if not long and len(layout) in PACKED_SIZES and bits <= PACKED_SIZES[len(layout)].part:
        return PackedFormat(layout)
    return LongFormat(layout)


def _plain(version: int) -> bytes:
    return b"%d" % version


# -- the packed form ------------------------------------------------------------------------------------------
#
# The resource versions of an aggregate of two or three members, in 128 bits.
#
# 128 bits are the maximum that the Kubernetes conformance tests accept: they require a "uint128" in every object. From
# the most significant bit:
#
#     1 | 0: two members, 1: three | CRC of the layout | lead | the lead's place | the other members' parts in order
#
# The highest bit is always set, so there are always 39 digits. The lead is the version of the object's owner. In a list
# or a bookmark, the lead is the greatest part (of equal parts the last one): only then does a later vector never
# compare less.


PACKED_DIGITS: Final = 39
_BITS: Final = 128


class PackedSizes(NamedTuple):
    """Sizes of a version's parts in bits."""

    crc: int
    part: int
    place: int


PACKED_SIZES: Final = {2: PackedSizes(17, 54, 1), 3: PackedSizes(16, 36, 2)}
"""The sizes by the number of members."""
LEAST_BITS: Final = min(sizes.part for sizes in PACKED_SIZES.values())
"""Versions with fewer bits fit into every format."""


class PackedFormat:
    """Writes the packed form. A version that does not fit is written in the long form, which compares greater. Such a
    version comes from a client or a write's answer: in a store, it would switch the whole aggregate to the long form.
    """

    single_number = True

    def __init__(self, layout: Layout) -> None:
        """Raises KeyError unless the layout has two or three members."""
        sizes = PACKED_SIZES[len(layout)]
        self.layout = layout
        self.rank = len(layout)
        self._long = LongFormat(layout)
        self._end = 1 << sizes.part
        others = (len(layout) - 1) * sizes.part  # bits of the parts after the lead
        self._lead = others + sizes.place  # bits by which the lead is shifted
        head = (0b10 | (len(layout) == 3)) << sizes.crc | layout.crc(1 << sizes.crc)
        head <<= _BITS - 2 - sizes.crc
        places = range(len(layout))
        # The bits of each version except the lead and the other parts, by the index of the lead's member.
        self._heads = [head | place << others for place in places]
        self._shifts = [
            [(place, sizes.part * (len(layout) - 2 - number)) for number, place in enumerate(_without(places, lead))]
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


def read_packed(text: str) -> VersionNumber | None:
    """Parse a string of ASCII digits; None if it is not of this form."""
    if len(text) != PACKED_DIGITS:
        return None
    number = int(text)
    if number.bit_length() != _BITS:
        return None
    members = 2 + (number >> (_BITS - 2) & 1)
    sizes = PACKED_SIZES[members]
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
    return VersionNumber(number >> sizes.part & (1 << sizes.crc) - 1, lead, tuple(versions))


def _without(places: range, lead: int) -> list[int]:
    return [place for place in places if place != lead]


# -- the long form --------------------------------------------------------------------------------------------
#
# The long form of a resource version: decimal digits, 20 for each member.
#
# `1`, five digits of the layout's CRC-32, then 20 digits for the lead and for each member's version. Its 26 + 20 n
# digits distinguish it from a member's own version (at most 20 digits) and from the packed form (39 digits).
# The lead precedes the members' versions, so a newer state of an object compares greater in every form and at every
# replica.


PART_DIGITS = 20
"""Digits of one part: the greatest unsigned 64-bit number has 20."""
HEAD_DIGITS = 6
"""The digit 1 and the five digits of the CRC."""
CRC_MODULUS = 100_000
_LEAST_RANK = 10


class VersionNumber(NamedTuple):
    """The parsed parts of a version in the long or the packed form."""

    crc: int
    lead: int
    versions: Versions


class LongFormat:
    """Writes the long form: for more than three members, and for versions that are too great for the packed form."""

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


def read_long(text: str) -> VersionNumber | None:
    """Parse a string of ASCII digits; None if it is not of this form. The parts can have more than 64 bits."""
    count, rest = divmod(len(text) - HEAD_DIGITS, PART_DIGITS)
    if text[:1] != "1" or rest or count < 1:
        return None
    lead, *versions = (int(text[place : place + PART_DIGITS]) for place in range(HEAD_DIGITS, len(text), PART_DIGITS))
    return VersionNumber(int(text[1:HEAD_DIGITS]), lead, tuple(versions))


# -- Karmada's form -------------------------------------------------------------------------------------------
#
# Karmada's form of a resource version: base64url without padding of compact JSON with sorted keys.
#
# Example: `{"east":"1000","west":"2000"}`. Source: Karmada, `pkg/search/proxy/store` (multiClusterResourceVersion).
# Clients cannot compare these versions as numbers.


KARMADA_OBJECT = "/object"
"""The suffix of a member's name for the object's version, if it differs from the version to resume from. No cluster
name ends with it, and Karmada ignores unknown names.
"""
_KARMADA_PARTS = msgspec.json.Decoder(dict[str, str])


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
        return _karmada_text(self._parts(versions)).decode()

    def object(self, member: int, version: int) -> str:
        return _karmada_text({self._names[member]: str(version)}).decode()

    def object_template(self, member: int) -> Callable[[int], bytes]:
        name = self._names[member]

        def write(version: int) -> bytes:
            return _karmada_text({name: str(version)})

        return write

    def event(self, versions: Versions, member: int, version: int) -> str:
        # There is no lead, so writes use the owner's part, too. A part below the version to resume from only repeats
        # events; a part above it would lose events if a member's stores are at different versions.
        name = self._names[member]
        parts = self._parts(versions)
        if version:
            parts[name if version <= versions[member] else name + KARMADA_OBJECT] = str(version)
        return _karmada_text(parts).decode()

    def written(self, versions: Versions, member: int, version: int) -> str:
        return self.object(member, version)  # only the owner's part, as in Karmada's answers

    def _parts(self, versions: Versions) -> dict[str, str]:
        return {name: str(version) for name, version in zip(self._names, versions, strict=True) if version}


def read_karmada(text: str) -> dict[str, str]:
    """Parse a string in either alphabet of base64, with or without padding; return its versions by member.

    Raises ValueError for any other form.
    """
    stripped = text.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        return _KARMADA_PARTS.decode(base64.urlsafe_b64decode(stripped + "=" * (-len(stripped) % 4)))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _karmada_text(parts: dict[str, str]) -> bytes:
    text = json.dumps(parts, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=")
