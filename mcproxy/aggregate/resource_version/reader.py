"""Parses the resource versions that clients send to an aggregate, in every format, not only in that which it writes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

from mcproxy.aggregate.resource_version.formats import (
    CRC_MODULUS,
    KARMADA_OBJECT,
    PACKED_SIZES,
    PART_DIGITS,
    read_karmada,
    read_long,
    read_packed,
)
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.kube.status import StatusError


class Expired(StatusError):
    """410: the client must list again."""

    def __init__(self, message: str = "The resourceVersion for the provided watch is too old.") -> None:
        super().__init__(410, message, reason="Expired")


MAX_LENGTH = 64 * 1024
"""Maximum characters of a resource version; a numeric version of 1,000 members has 20 KB."""
_MAX_VERSION = 2**64 - 1
_SHOWN = 64  # characters of a client's text that are quoted in a message
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)


class _Vector(NamedTuple):
    """The parts of a resource version: the members' versions except 0, and the version of the object that carried it.

    `objects` has the object's version by member, if it can differ from the version to resume from; "" stands for an
    unnamed member.
    """

    versions: dict[str, int]
    objects: dict[str, int]


class VersionReader:
    """Parses resource versions for an aggregate with the layouts of `history`, its present and earlier ones.

    `former` are removed members that keep their index in the present layout.
    """

    __slots__ = ("_former", "_history")

    def __init__(self, history: LayoutHistory, former: Collection[str] = ()) -> None:
        self._history = history
        self._former = frozenset(former)

    def read(self, text: str, owner: str | None = None) -> dict[str, int] | None:
        """Return the members' versions in `text`; None for "" and "0".

        `owner` is the member to which a plain number belongs, if the request names one object whose member is known.
        Without `owner`, a plain number is accepted only for an aggregate of one member.

        Raises Expired for a version in a layout that the aggregate does not know (other members, or another order), and
        for a part of a removed member. Raises StatusError (400) for an invalid resource version.
        """
        found = self._parts(text)
        if found is None:
            return None
        present = self._history.present
        if isinstance(found, int):
            name = present.names[0] if len(present) == 1 else owner
            if name is None or name not in present:
                raise Expired(f"resource version {found} is that of one cluster; this server has several")
            return {name: found}
        for name in found.versions:
            if name not in present or name in self._former:
                raise Expired(
                    f"the resource version has a part of cluster {_quoted(name)}, which this server does not have"
                )
        return found.versions

    def owner_part(self, text: str, member: str, subject: str = "the object") -> str:
        """Return an object's resource version at its owner, for a write that is sent to the owner.

        "", zeros and plain numbers stay unchanged. In the long form the result is the lead, which is always the
        object's version at its owner; the owner's part in an event can be older, since watches resume from it.
        `subject` names the object in the error: `pods "web"`. Raises StatusError: 409 for a version without a part of
        the member, 400 for an invalid version.
        """
        return self._part(text, member, subject, of_object=True)

    def list_part(self, text: str, member: str, subject: str = "the list") -> str:
        """Return the member's part of a list's version; raises the same errors as `owner_part`."""
        return self._part(text, member, subject, of_object=False)

    def _part(self, text: str, member: str, subject: str, *, of_object: bool) -> str:
        try:
            found = self._parts(text)
        except Expired:
            found = _Vector({}, {})
        if found is None or isinstance(found, int):
            return text
        version = found.versions.get(member, 0)
        if of_object:
            version = found.objects.get(member) or (version and found.objects.get("")) or version
        if not version:
            raise StatusError(
                409,
                f"Operation cannot be fulfilled on {subject}: the resource version has no part of cluster"
                f" {_quoted(member)}; please apply your changes to the latest version and try again",
            )
        return str(version)

    def _parts(self, text: str) -> _Vector | int | None:
        """Return the parts of a version: a vector, the number of a plain version, or None for "" and 0."""
        if not text:
            return None
        if len(text) > MAX_LENGTH:
            raise _invalid(text, "value out of range")
        if _DIGITS.fullmatch(text):
            return self._vector(text) if len(text) > PART_DIGITS else _number(text) or None
        if _BASE64.fullmatch(text):
            return _karmada(text)
        raise _invalid(text)

    def _vector(self, text: str) -> _Vector:
        """Parse a number that is longer than a member's own version; each format has a different number of digits."""
        if (packed := read_packed(text)) is not None:
            count = len(packed.versions)
            return _Vector(self._named(packed.versions, packed.crc, 1 << PACKED_SIZES[count].crc), {})
        long = read_long(text)
        if long is None:
            raise _invalid(text, "value out of range")
        versions = self._named(long.versions, long.crc, CRC_MODULUS)
        if max(long.lead, *versions.values(), 0) > _MAX_VERSION:
            raise _invalid(text, "value out of range")
        return _Vector(versions, {"": long.lead})

    def _named(self, versions: tuple[int, ...], crc: int, modulus: int) -> dict[str, int]:
        layout: Layout | None = self._history.find(len(versions), crc, modulus)
        if layout is None:
            raise Expired("the resource version is of other clusters than this server has, or of another order of them")
        return {name: version for name, version in zip(layout.names, versions, strict=True) if version}


def _number(text: str) -> int:
    version = int(text)
    if version > _MAX_VERSION:
        raise _invalid(text, "value out of range")
    return version


def _karmada(text: str) -> _Vector:
    try:
        found = read_karmada(text)
    except ValueError:
        raise _invalid(text) from None
    vector = _Vector({}, {})
    for name, version in found.items():
        if version == "":  # in Karmada "" means the member's present state
            continue
        if len(version) > PART_DIGITS or not _DIGITS.fullmatch(version):
            raise _invalid(text)
        number = _number(version)
        if name.endswith(KARMADA_OBJECT):
            vector.objects[name.removesuffix(KARMADA_OBJECT)] = number
        elif number:
            vector.versions[name] = number
    return vector


def _invalid(text: str, why: str = "invalid syntax") -> StatusError:
    value = _quoted(text)
    return StatusError(
        400,
        f"invalid resource version: resourceVersion: Invalid value: {value}: strconv.ParseUint: parsing {value}: {why}",
    )


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= _SHOWN else text[:_SHOWN] + "…", ensure_ascii=False)
