"""The union of the members' stores of one resource.

A view outlives reloads: running watches stay on it and get what was added and removed. It owns no store and
changes none; `AggregateViews` acquires them and puts them in.
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
    """One member's part of a view; `index` is its place in the layout of resource versions."""

    name: str
    index: int
    member: Member
    stores: tuple[Store, ...]  # one for each namespace of the scope, or one for all; never empty

    @property
    def synced(self) -> bool:
        """Whether all stores have been filled once. The objects of a member that is not synced are left out whole:
        with some of its namespaces alone, its version would say that the others were empty."""
        return all(store.synced for store in self.stores)

    @property
    def unavailable_since(self) -> WallSeconds | None:
        """Since when the member, or one of its namespaces, is unavailable; None: it is available."""
        times = [store.unavailable_since for store in self.stores if store.unavailable_since is not None]
        return min(times) if times else None

    @property
    def unavailable_cause(self) -> str:
        """The cause, from the first unavailable store; "" if none is."""
        return next((store.unavailable_cause for store in self.stores if store.unavailable_since is not None), "")

    @property
    def trouble(self) -> Trouble | None:
        """Why cached objects of the member, or of one of its namespaces, may be old; None: all are followed."""
        down = [store for store in self.stores if store.unavailable_since is not None]
        away = [store.unavailable_since for store in down if store.unavailable_since is not None and not store.refused]
        if away:
            return unreachable(min(away))
        return refused(down[0].resource.gvr) if down else None

    @property
    def last_sign(self) -> float:
        """When all stores were last known to be up to date (an event, a bookmark, a probe)."""
        return min(store.last_sign for store in self.stores)

    def covers(self, namespace: str) -> bool:
        """Whether requests for `namespace` can be answered; "" (all) always can."""
        return not namespace or bool(self.stores_of(namespace))

    def stores_of(self, namespace: str = ALL_NAMESPACES) -> tuple[Store, ...]:
        """Return the stores that may hold objects of `namespace`; "" is all namespaces."""
        if not namespace:
            return self.stores
        return tuple(store for store in self.stores if store.namespace in (ALL_NAMESPACES, namespace))

    def warnings(self, namespace: str = ALL_NAMESPACES) -> Iterator[str]:
        """Yield the texts of the Warnings in the member's own answers."""
        for store in self.stores_of(namespace):
            yield from store.warnings

    def unreadable(self, namespace: str = ALL_NAMESPACES) -> str | None:
        """Return the Warning that objects of `namespace` cannot be parsed; None where all can."""
        found = [store.unreadable for store in self.stores_of(namespace) if store.unreadable]
        count = sum(each.count(namespace) for each in found)
        more = any(each.overflown for each in found)
        return unreadable_text(self.name, count, more=more) if count or more else None

    def may_have_unreadable(self, namespace: str, name: str) -> bool:
        """Whether the member has an object of that name that cannot be parsed, as far as is known."""
        return any(
            store.unreadable.may_have(namespace, name) for store in self.stores_of(namespace) if store.unreadable
        )

    def version(self, namespace: str = ALL_NAMESPACES) -> int:
        """Return the version of the stores that hold `namespace`: the least; 0 where the member is not synced.

        The versions of all namespaces of a cluster come from one counter (etcd's revision).
        """
        stores = self.stores_of(namespace)
        if not stores or not all(store.synced for store in stores):
            return 0
        return min(store.version for store in stores)


@dataclass(frozen=True, slots=True)
class AbsentMember:
    """A member that is not known to have a resource of its scope; `namespaces` are those in scope, `("",)` all."""

    member: Member
    namespaces: tuple[str, ...]
    difference: Difference | None = None
    """Its differing definition, if known."""

    def covers(self, namespace: str) -> bool:
        """Whether its objects of `namespace` ("": of any) are in scope, if it has such."""
        return not namespace or not {ALL_NAMESPACES, namespace}.isdisjoint(self.namespaces)

    def may_have(self, namespace: str) -> bool:
        """Whether it may have objects of `namespace` ("": any), since its discovery cannot be read now."""
        if not self.covers(namespace):
            return False
        return not self.member.discovery.fresh or self.member.unavailable_since is not None


class ViewListener(Protocol):
    """Gets changes of the composition of a view. Changes of objects come from the stores."""

    def view_updated(self, view: View, before: ViewState) -> None:
        """Members, stores or the layout have changed; stores that are no longer in it are released afterwards."""

    def view_closed(self, view: View, *, gone: bool) -> None:
        """The view ends; its stores are released afterwards.

        `gone`: no member has the resource in scope any more; else the aggregate ends, and nothing is said of objects.
        """


@dataclass(frozen=True, slots=True)
class ViewState:
    """The composition of a view at one time."""

    resource: APIResource
    members: tuple[MemberView, ...]
    undiscovered: tuple[Member, ...]
    history: LayoutHistory
    karmada: bool  # the form of resource versions that is written
    format: VersionFormat = field(compare=False)
    reader: VersionReader = field(compare=False)
    absent: tuple[AbsentMember, ...] = ()
    conflicts: Conflicts = NO_RULES
    former: tuple[str, ...] = ()  # former members, which only keep their place in the layout
    long: bool = False  # numbers are written in the long form, whatever the number of members


class View:
    """One resource of one aggregate."""

    __slots__ = ("_listeners", "closed", "state")

    def __init__(self, state: ViewState) -> None:
        self.state = state
        self.closed = False
        self._listeners: list[ViewListener] = []

    def pinned(self) -> View:
        """Return the present composition of the view, for one answer: while the answer waits for members, a reload must
        not change their places in its version.
        """
        return View(self.state)

    # -- what it consists of ----------------------------------------------------------------------------------

    @property
    def resource(self) -> APIResource:
        """The resource, as the first member that has it describes it."""
        return self.state.resource

    @property
    def members(self) -> tuple[MemberView, ...]:
        """The members that have the resource in scope, in the aggregate's order."""
        return self.state.members

    @property
    def undiscovered(self) -> tuple[Member, ...]:
        """Members of the aggregate that were never reached, so they may have the resource."""
        return self.state.undiscovered

    def unasked(self, namespace: str = ALL_NAMESPACES) -> list[str]:
        """Return the members that may have objects of `namespace`, which cannot be found out now."""
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
        """The present places of the members in resource versions."""
        return self.state.history.present

    @property
    def format(self) -> VersionFormat:
        return self.state.format

    @property
    def reader(self) -> VersionReader:
        return self.state.reader

    @property
    def conflicts(self) -> Conflicts:
        """The rules for names that several members have."""
        return self.state.conflicts

    @property
    def custom(self) -> bool:
        """Whether the resource is a custom one, as its members write it."""
        return any(store.items_typed for member in self.state.members for store in member.stores)

    def member(self, name: str) -> MemberView | None:
        """Return the part of the member of that name."""
        return next((member for member in self.state.members if member.name == name), None)

    def owner(self, allowed: Collection[str], namespace: str, name: str) -> str | None:
        """Return the member, one of `allowed`, whose cached object a name means; None if none has it."""
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
        """The version of each member, in the layout's order: the least of its stores; 0 without the member."""
        return self.versions_of(None)

    def versions_of(self, members: Collection[str] | None, namespace: str = ALL_NAMESPACES) -> Versions:
        """Return the vector for an answer that has the objects of `members` (None: all) in `namespace` ("": all).

        The others are 0: a client that watches from it gets their objects as ADDED once it may see them.
        """
        versions = [0] * len(self.layout)
        for member in self.state.members:
            if members is None or member.name in members:
                versions[member.index] = member.version(namespace)
        return tuple(versions)

    # -- changes ----------------------------------------------------------------------------------------------

    def subscribe(self, listener: ViewListener) -> Callable[[], None]:
        """Tell `listener` of changes until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def update(self, state: ViewState) -> None:
        """Replace the composition (a reload, or a CRD that came or went), and tell the listeners."""
        before, self.state = self.state, state
        self._tell(lambda listener: listener.view_updated(self, before))

    def close(self, *, gone: bool) -> None:
        """End the view: the resource is `gone`, or the aggregate ends."""
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
