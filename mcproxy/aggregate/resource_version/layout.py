"""Layouts: the order of members in the numeric resource versions of an aggregate."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

Versions = tuple[int, ...]
"""A version vector: one version per member, in the order of the layout; 0 means that the member is not included."""
MAX_EARLIER_LAYOUTS = 64
"""Number of earlier layouts that an aggregate remembers; a version in an older layout gets 410."""
_MAX_MEMBERS = 1000
_MAX_NAME_LENGTH = 253
_MAX_BITS = 64


class Layout:
    """The members of an aggregate at one time, including former members, in the order of the configuration."""

    __slots__ = ("_crc", "_places", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._crc = zlib.crc32(",".join(self.names).encode())
        self._places = {name: place for place, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and other.names == self.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"Layout({self.names!r})"

    def crc(self, modulus: int) -> int:
        """Return the CRC-32 of the names joined by commas, modulo `modulus`, so that it fits into a format.

        Every numeric version contains it, so that a version for other members, or for another order of members, is
        recognized.
        """
        return self._crc % modulus

    def index(self, name: str) -> int:
        """Return the index of a member. Raises KeyError for a member that the layout does not have."""
        return self._places[name]


class LayoutHistory:
    """The present layout of an aggregate and its earlier layouts, the latest first; immutable.

    A reload that adds, removes or reorders members makes a new history with `changed`; `to_json` and `from_json` keep
    the history over a restart. `bits` is the length of the greatest version that any member ever had. It decides
    between the short and the long form, so that an object's versions never become shorter.
    """

    __slots__ = ("bits", "earlier", "present")

    def __init__(self, present: Layout, earlier: Iterable[Layout] = (), bits: int = 0) -> None:
        self.present = present
        self.bits = bits
        known = {present}
        kept: list[Layout] = []
        for layout in earlier:
            if layout not in known and len(kept) < MAX_EARLIER_LAYOUTS:
                known.add(layout)
                kept.append(layout)
        self.earlier = tuple(kept)

    def __iter__(self) -> Iterator[Layout]:
        yield self.present
        yield from self.earlier

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayoutHistory) and tuple(other) == tuple(self) and other.bits == self.bits

    def __hash__(self) -> int:
        return hash(tuple(self))

    def changed(self, names: Iterable[str]) -> LayoutHistory:
        """Return the history after the members have changed to `names`, or this history if nothing changes."""
        layout = Layout(names)
        return self if layout == self.present else LayoutHistory(layout, self, self.bits)

    def grown(self, bits: int) -> LayoutHistory:
        """Return the history after a member had a version of `bits` bits."""
        bits = min(bits, _MAX_BITS)
        return self if bits <= self.bits else LayoutHistory(self.present, self.earlier, bits)

    def find(self, members: int, crc: int, modulus: int) -> Layout | None:
        """Return the layout with this number of members and this CRC, None if the aggregate never had such a layout.

        If several layouts match, the latest is returned.
        """
        return next((layout for layout in self if len(layout) == members and layout.crc(modulus) == crc), None)

    def to_json(self) -> bytes:
        """Return the history as JSON: `{"layouts":[["east","west"],…],"bits":40}`, the present one first."""
        return msgspec.json.encode({"layouts": [layout.names for layout in self], "bits": self.bits})

    @classmethod
    def from_json(cls, data: bytes) -> LayoutHistory:
        """Parse the output of `to_json`. Raises ValueError for any other data."""
        saved = msgspec.json.decode(data, type=_Saved)  # its errors are ValueErrors
        if not saved.layouts or len(saved.layouts) > MAX_EARLIER_LAYOUTS + 1:
            raise ValueError(f"{len(saved.layouts)} layouts: must be 1 to {MAX_EARLIER_LAYOUTS + 1}")
        for names in saved.layouts:
            if len(names) > _MAX_MEMBERS or len(set(names)) < len(names):
                raise ValueError("a layout with too many members, or with one twice")
            if any(not 0 < len(name) <= _MAX_NAME_LENGTH or "," in name for name in names):
                raise ValueError("a layout with the name of no cluster")
        present, *earlier = (Layout(names) for names in saved.layouts)
        return cls(present, earlier, saved.bits)


class _Saved(msgspec.Struct):
    layouts: list[list[str]]
    bits: Annotated[int, msgspec.Meta(ge=0, le=_MAX_BITS)] = 0
