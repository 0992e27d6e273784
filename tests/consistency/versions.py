"""An aggregate's resource versions as `reference/list-watch.md` ("Resource versions") describes them, written anew.

Nothing here is the proxy's: what it writes is read by another reading of the same page, and compared as KEP-5504 says.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from zlib import crc32

Layout = tuple[str, ...]
"""The names of an aggregate's clusters, in the order of the file."""


class NoVersion(ValueError):
    """A text that is no version of any of the layouts; the message says why."""


@dataclass(frozen=True)
class Version:
    """What a version says."""

    text: str
    parts: Mapping[str, int]
    """The version of each member; one without a part is not in it."""
    lead: int = 0
    """That of the object's owner, or the greatest part; 0 in Karmada's form, which has none."""
    owner: str = ""
    """Whose the lead is, where the form says so."""
    layout: Layout = ()
    """The clusters that it was written for; () in Karmada's form, which names those that it has."""

    @property
    def comparable(self) -> bool:
        return bool(self.layout)

    def part(self, member: str) -> int:
        return self.parts.get(member, 0)


def compare(one: str, other: str) -> int:
    """Return -1, 0 or 1 as `one` is older, equal or newer: longer is newer, of one length the text decides."""
    for text in (one, other):
        if not re.fullmatch("[1-9][0-9]*", text):
            raise NoVersion(f"{text!r} does not compare")
    return (len(one) > len(other)) - (len(one) < len(other)) or (one > other) - (one < other)


def decode(text: str, layouts: Iterable[Layout]) -> Version:
    """Read a version that was written for one of the layouts. Raises NoVersion."""
    known = list(layouts)
    if re.fullmatch("[1-9][0-9]*", text):
        if len(text) <= 20:
            return _plain(text, known)
        return _packed(text, known) if len(text) == 39 else _long(text, known)
    return _karmada(text, known)


def _plain(text: str, layouts: list[Layout]) -> Version:
    for names in layouts:
        if len(names) == 1:
            return Version(text, {names[0]: int(text)}, int(text), names[0], names)
    raise NoVersion(f"{text}: a member's own version, and no layout has one member")


def _packed(text: str, layouts: list[Layout]) -> Version:
    """128 bits: 1, whether there are three, the CRC of the names, the lead, its place, the others in order."""
    bits = f"{int(text):0128b}"
    if len(bits) != 128 or bits[0] != "1":
        raise NoVersion(f"{text} has not 128 bits")
    count, crc_bits, size, place_bits = (3, 16, 36, 2) if bits[1] == "1" else (2, 17, 54, 1)
    at = 2

    def take(width: int) -> int:
        nonlocal at
        at += width
        return int(bits[at - width : at], 2)

    crc, lead, place = take(crc_bits), take(size), take(place_bits)
    others = [take(size) for _ in range(count - 1)]
    if at != 128:
        raise NoVersion(f"{text}: {at} bits were read")
    names = _layout(layouts, count, crc, 1 << crc_bits, text)
    if place >= count:
        raise NoVersion(f"{text}: there is no member {place}")
    values = [*others[:place], lead, *others[place:]]
    return Version(text, _present(names, values), lead, names[place], names)


def _long(text: str, layouts: list[Layout]) -> Version:
    """The digit 1, five digits of the CRC, then 20 digits each: the lead and all parts in order."""
    count, rest = divmod(len(text) - 6, 20)
    if text[0] != "1" or rest or count < 3:
        raise NoVersion(f"{text} has {len(text)} digits")
    names = _layout(layouts, count - 1, int(text[1:6]), 100_000, text)
    lead, *values = (int(text[6 + 20 * place : 26 + 20 * place]) for place in range(count))
    return Version(text, _present(names, values), lead, layout=names)


def _karmada(text: str, layouts: list[Layout]) -> Version:
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        parts = {str(name): int(value) for name, value in found.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise NoVersion(f"{text!r}: {error}") from None
    plain = json.dumps({name: str(parts[name]) for name in sorted(parts)}, separators=(",", ":"))
    if base64.urlsafe_b64encode(plain.encode()).rstrip(b"=").decode() != text:
        raise NoVersion(f"{text!r} is not the compact form of {plain}")
    if not any(parts.keys() <= set(names) for names in layouts):
        raise NoVersion(f"{text!r} is of {', '.join(parts)}")
    return Version(text, {name: value for name, value in parts.items() if value})


def _layout(layouts: list[Layout], count: int, crc: int, modulus: int, text: str) -> Layout:
    for names in layouts:
        if len(names) == count and crc32(",".join(names).encode()) % modulus == crc:
            return names
    raise NoVersion(f"{text}: no layout has {count} members and the CRC {crc}")


def _present(names: Layout, values: list[int]) -> dict[str, int]:
    return {name: value for name, value in zip(names, values, strict=True) if value}
