"""Which stores a watch reads, and how the positions in them become a resource version. Pure.

A position is the version up to which all changes of one store were sent. A member's part of a vector is the least
position of its stores; 0, which is "without that member", while one of them has not begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mcproxy.aggregate.resource_version.formats import VersionFormat, Versions

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.view.view import MemberView, ViewState

Marks = Mapping[int, int]
"""The position in each store, by the store's identity; never changed, but replaced."""


class Coverage:
    """The stores of `members` (names) that may have objects of `namespace`, in one composition of a view."""

    __slots__ = ("_format", "_places", "_size", "key", "members", "namespace", "state", "stores")

    def __init__(self, state: ViewState, members: frozenset[str], namespace: str) -> None:
        self.key = (members, namespace)
        self.state = state
        self.namespace = namespace
        self.members: tuple[MemberView, ...] = tuple(
            member for member in state.members if member.name in members and member.stores_of(namespace)
        )
        places = [(member.index, tuple(map(id, member.stores_of(namespace)))) for member in self.members]
        self._places = tuple(places)
        self._format: VersionFormat = state.format
        self._size = len(state.history.present)
        self.stores: dict[int, tuple[MemberView, Store]] = {
            id(store): (member, store) for member in self.members for store in member.stores_of(namespace)
        }

    def versions(self, marks: Marks) -> Versions:
        """Return the vector of a watch at these positions."""
        versions = [0] * self._size
        for index, stores in self._places:
            versions[index] = (
                marks.get(stores[0], 0) if len(stores) == 1 else min(marks.get(store, 0) for store in stores)
            )
        return tuple(versions)

    def whole(self, marks: Marks, lead: int = 0) -> bytes:
        """Return the resource version at these positions; `lead` as in `VersionFormat.whole`."""
        return self._format.whole(self.versions(marks), lead).encode()


def advanced(marks: Marks, stores: Iterable[int], version: int) -> Marks:
    """Return `marks` with these stores at `version`."""
    return {**marks, **dict.fromkeys(stores, version)}
