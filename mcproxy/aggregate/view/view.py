"""The union of the members' stores of one resource.

A view outlives reloads: running watches stay on it and get the added and removed objects. It neither owns nor changes
stores; `AggregateViews` acquires the stores and adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

from mcproxy.aggregate.view.conflicts import NO_RULES, Conflicts
from mcproxy.aggregate.view.scope import ALL_NAMESPACES, Difference
from mcproxy.aggregate.warnings import Trouble, refused, unreachable, unreadable_text

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.resource_version.formats import VersionFormat
    from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory, Versions
    from mcproxy.aggregate.resource_version.reader import VersionReader
    from mcproxy.kube.resource import APIResource
    from mcproxy.net.wall_time import WallSeconds

log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class MemberView:
    """The stores of one member in a view; `index` is the member's index in the layout of resource versions."""

    name: str
    index: int
    member: Member
    stores: tuple[Store, ...]  # one for each namespace of the scope, or one for all; never empty

    @property
    def synced(self) -> bool:
        """Whether all stores have been filled. A member that is not synced is left out completely: with only some of
        its namespaces, its version would claim that the other namespaces are empty."""
        return all(store.synced for store in self.stores)

    @property
    def unavailable_since(self) -> WallSeconds | None:
        """The time since which the member, or one of its namespaces, is unavailable; None: it is available."""
        times = [store.unavailable_since for store in self.stores if store.unavailable_since is not None]
        return min(times) if times else None

    @property
    def unavailable_cause(self) -> str:
        """The cause from the first unavailable store; "" if all stores are available."""
        return next((store.unavailable_cause for store in self.stores if store.unavailable_since is not None), "")

    @property
    def trouble(self) -> Trouble | None:
        """The reason why cached objects of one of the member's stores may be old; None: all stores are followed."""
        down = [store for store in self.stores if store.unavailable_since is not None]
        away = [store.unavailable_since for store in down if store.unavailable_since is not None and not store.refused]
        if away:
            return unreachable(min(away))
        return refused(down[0].resource.gvr) if down else None

    @property
    def last_sign(self) -> float:
        """The time up to which all stores are known to be up to date, by an event, a bookmark, a list or a probe."""
        return min(store.last_sign for store in self.stores)

    def covers(self, namespace: str) -> bool:
        """Whether the stores cover requests for `namespace`; "" (all namespaces) is always covered."""
        return not namespace or bool(self.stores_of(namespace))

    def stores_of(self, namespace: str = ALL_NAMESPACES) -> tuple[Store, ...]:
        """Return the stores that may hold objects of `namespace`; "" is all namespaces."""
        if not namespace:
            return self.stores
        return tuple(store for store in self.stores if store.namespace in (ALL_NAMESPACES, namespace))

    def warnings(self, namespace: str = ALL_NAMESPACES) -> Iterator[str]:
        """Yield the texts of the Warning headers in the member's own answers."""
        for store in self.stores_of(namespace):
            yield from store.warnings

    def unreadable(self, namespace: str = ALL_NAMESPACES) -> str | None:
        """Return the Warning that objects of `namespace` cannot be parsed; None if all can be parsed."""
        found = [store.unreadable for store in self.stores_of(namespace) if store.unreadable]
        count = sum(each.count(namespace) for each in found)
        more = any(each.overflown for each in found)
        return unreadable_text(self.name, count, more=more) if count or more else None

    def may_have_unreadable(self, namespace: str, name: str) -> bool:
        """Whether the member has, or may have, an object of that name that cannot be parsed."""
        return any(
            store.unreadable.may_have(namespace, name) for store in self.stores_of(namespace) if store.unreadable
        )

    def version(self, namespace: str = ALL_NAMESPACES) -> int:
        """Return the minimum version of the stores that hold `namespace`; 0 if the member is not synced.

        The versions are comparable, since those of all namespaces of a cluster come from one counter (etcd's revision).
        """
        stores = self.stores_of(namespace)
        if not stores or not all(store.synced for store in stores):
            return 0
        return min(store.version for store in stores)


@dataclass(frozen=True, slots=True)
class AbsentMember:
    """A member that is not known to have a resource in its scope; `namespaces` are in scope, `("",)` is all."""

    member: Member
    namespaces: tuple[str, ...]
    difference: Difference | None = None
    """The member's differing definition, if known."""

    def covers(self, namespace: str) -> bool:
        """Whether the member's objects of the resource in `namespace` ("": in any namespace) would be in scope."""
        return not namespace or not {ALL_NAMESPACES, namespace}.isdisjoint(self.namespaces)

    def may_have(self, namespace: str) -> bool:
        """Whether the member may have objects of `namespace` ("": any), since its discovery cannot be read now."""
        if not self.covers(namespace):
            return False
        return not self.member.discovery.fresh or self.member.unavailable_since is not None


class ViewListener(Protocol):
    """Gets changes of the composition of a view. Changes of objects come from the stores."""

    def view_updated(self, view: View, before: ViewState) -> None:
        """Members, stores or the layout have changed; stores that left the view are released after this call."""

    def view_closed(self, view: View, *, gone: bool) -> None:
        """The view ends; its stores are released after this call.

        `gone`: no member has the resource in scope any more. Otherwise the aggregate ends, and the objects still exist.
        """


@dataclass(frozen=True, slots=True)
class ViewState:
    """The composition of a view at one time."""

    resource: APIResource
    members: tuple[MemberView, ...]
    undiscovered: tuple[Member, ...]
    history: LayoutHistory
    karmada: bool  # resource versions are written in Karmada's form
    format: VersionFormat = field(compare=False)
    reader: VersionReader = field(compare=False)
    absent: tuple[AbsentMember, ...] = ()
    conflicts: Conflicts = NO_RULES
    former: tuple[str, ...] = ()  # removed members, which only keep their index in the layout
    long: bool = False  # numbers are written in the long form with any number of members


class View:
    """One resource of one aggregate."""

    __slots__ = ("_listeners", "closed", "state")

    def __init__(self, state: ViewState) -> None:
        self.state = state
        self.closed = False
        self._listeners: list[ViewListener] = []

    def pinned(self) -> View:
        """Return a copy of the view with the present composition, for one answer. While the answer waits for members, a
        reload must not change the members' indexes in the answer's resource version.
        """
        return View(self.state)

    # -- composition ------------------------------------------------------------------------------------------

    @property
    def resource(self) -> APIResource:
        """The resource as described by the first member that has it."""
        return self.state.resource

    @property
    def members(self) -> tuple[MemberView, ...]:
        """The members that have the resource in scope, in the aggregate's order."""
        return self.state.members

    @property
    def undiscovered(self) -> tuple[Member, ...]:
        """Members of the aggregate that were never reached and may have the resource."""
        return self.state.undiscovered

    def unasked(self, namespace: str = ALL_NAMESPACES) -> list[str]:
        """Return the members that may have objects of `namespace` but cannot be asked now."""
        return [each.member.name for each in self.state.absent if each.may_have(namespace)]

    def differing(self, namespace: str = ALL_NAMESPACES) -> list[tuple[str, Difference]]:
        """Return the members whose definition of the resource differs, each with the difference."""
        return [
            (each.member.name, each.difference)
            for each in self.state.absent
            if each.difference is not None and each.covers(namespace) and not each.may_have(namespace)
        ]

    @property
    def layout(self) -> Layout:
        """The present layout: the order of the members in resource versions."""
        return self.state.history.present

    @property
    def format(self) -> VersionFormat:
        return self.state.format

    @property
    def reader(self) -> VersionReader:
        return self.state.reader

    @property
    def conflicts(self) -> Conflicts:
        """The `conflicts` rules for names that several members have."""
        return self.state.conflicts

    @property
    def custom(self) -> bool:
        """Whether the resource is a custom resource, according to the order of fields in the members' JSON."""
        return any(store.items_typed for member in self.state.members for store in member.stores)

    def member(self, name: str) -> MemberView | None:
        """Return the MemberView of the member with that name; None if the member is not in the view."""
        return next((member for member in self.state.members if member.name == name), None)

    def owner(self, allowed: Collection[str], namespace: str, name: str) -> str | None:
        """Return the member in `allowed` whose cached object a name refers to; None if none has the object."""
        holders = [
            member.name
            for member in self.state.members
            if member.name in allowed
            and any(store.get(namespace, name) is not None for store in member.stores_of(namespace))
        ]
        chosen = self.conflicts.chosen(namespace)
        return chosen if chosen in holders else next(iter(holders), None)

    def covers(self, namespace: str) -> bool:
        """Whether any member's objects of `namespace` are in scope; "" is all namespaces."""
        return any(member.covers(namespace) for member in self.state.members)

    # -- versions ---------------------------------------------------------------------------------------------

    @property
    def versions(self) -> Versions:
        """The version of each member in layout order: the minimum of its stores; 0 if the member is not in the view."""
        return self.versions_of(None)

    def versions_of(self, members: Collection[str] | None, namespace: str = ALL_NAMESPACES) -> Versions:
        """Return the version vector of an answer with the objects of `members` (None: all) in `namespace` ("": all).

        The versions of other members are 0: a client that watches from this version gets their objects as ADDED as soon
        as it may see them.
        """
        versions = [0] * len(self.layout)
        for member in self.state.members:
            if members is None or member.name in members:
                versions[member.index] = member.version(namespace)
        return tuple(versions)

    # -- changes ----------------------------------------------------------------------------------------------

    def subscribe(self, listener: ViewListener) -> Callable[[], None]:
        """Notify `listener` of changes; the returned function unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def update(self, state: ViewState) -> None:
        """Replace the composition (after a reload or a change of CRDs), and notify the listeners."""
        before, self.state = self.state, state
        self._tell(lambda listener: listener.view_updated(self, before))

    def close(self, *, gone: bool) -> None:
        """End the view, because the resource is `gone` or the aggregate ends."""
        self.closed = True
        self._tell(lambda listener: listener.view_closed(self, gone=gone))
        self._listeners.clear()

    def _tell(self, call: Callable[[ViewListener], None]) -> None:
        for listener in list(self._listeners):
            try:
                call(listener)
            except Exception:
                log.failure("a listener of a view failed", event="internal_error")


def stores_of(members: Sequence[MemberView]) -> dict[int, Store]:
    """Return the stores of `members`, by identity."""
    return {id(store): store for member in members for store in member.stores}
