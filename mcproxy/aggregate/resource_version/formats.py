"""How an aggregate writes resource versions, and which form is written when.

Since Kubernetes 1.35 resource versions are positive integers of any length that compare: longer is greater, equal
length compares as text (KEP-5504, k8s.io/apimachinery `pkg/util/resourceversion`). Clients resume a watch at the
version of whatever they saw last, so lists, bookmarks and events carry the version of every member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mcproxy.aggregate.resource_version.karmada_form import KarmadaFormat
from mcproxy.aggregate.resource_version.layout import Layout, Versions
from mcproxy.aggregate.resource_version.long_form import LongFormat
from mcproxy.aggregate.resource_version.packed_form import SIZES, PackedFormat


class VersionFormat(Protocol):
    """Writes the resource versions of one layout."""

    @property
    def layout(self) -> Layout:
        """The members, whose places the vectors have."""

    @property
    def rank(self) -> int:
        """Every version of a form with a greater rank compares greater; 0: they do not compare."""

    @property
    def single_number(self) -> bool:
        """Whether an event has one number for the object's version and for where to resume in its member.

        Then the versions of a member with several stores, which are not one sequence, cannot be written.
        """

    def fits(self, version: int) -> bool:
        """Whether the version of a member can be written."""

    def list_version(self, versions: Versions) -> str:
        """Return the version of a list or a bookmark."""

    def object(self, member: int, version: int) -> str:
        """Return the version of an object in a get or a list: its owner's part alone, so it stays the same while
        the object does.
        """

    def object_template(self, member: int) -> Callable[[int], bytes]:
        """Return `object` of one member, as bytes: what writes the items of a list."""

    def event(self, versions: Versions, member: int, version: int) -> str:
        """Return the version of an event whose object is `member`'s, with `version`; `versions` is where to resume.

        A write with it reaches the member with `version`, and a watch from it misses nothing.
        """

    def written(self, versions: Versions, member: int, version: int) -> str:
        """Return the version in the answer to a write that `member` answered with `version`."""


class PlainFormat:
    """The versions of an aggregate's only member, as they are."""

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
        return str(version or 1)  # 0 means something else

    def written(self, versions: Versions, member: int, version: int) -> str:
        return str(version)


def version_format(layout: Layout, *, karmada: bool = False, long: bool = False, bits: int = 0) -> VersionFormat:
    """Return the form that is written: Karmada's if configured, else numbers.

    Numbers are the only member's own, 128 bits for two or three, else the long form. `long` forces that; `bits` is
    the length of the greatest version that any member was seen at, which may be too long for the shorter form.
    """
    if karmada:
        return KarmadaFormat(layout)
    if not long and len(layout) == 1:
        return PlainFormat(layout)
    if not long and len(layout) in SIZES and bits <= SIZES[len(layout)].part:
        return PackedFormat(layout)
    return LongFormat(layout)


def _plain(version: int) -> bytes:
    return b"%d" % version
