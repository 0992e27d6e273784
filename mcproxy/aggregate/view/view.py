"""The union of the members' stores of one resource.

A view outlives reloads: running watches stay on it and are told what was added and removed. It owns no store and
changes none; `AggregateViews` acquires them and puts them in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

from mcproxy.aggregate.view.scope import ALL_NAMESPACES

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.resource_version.formats import VersionFormat, Versions
    from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
    from mcproxy.aggregate.resource_version.reader import VersionReader
    from mcproxy.aggregate.view.sources import ClusterMember
    from mcproxy.kube.resource import APIResource

log = Logger()


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member's part of a view; `index` is its place in the layout of resource versions."""

    name: str
    index: int
    member: ClusterMember
    stores: tuple[Store, ...]  # one for each namespace of the scope, or one for all; never empty

    @property
    def synced(self) -> bool:
        """Whether all stores have been filled once. The objects of a member that is not synced are left out whole:
        with some of its namespaces alone, its version would say that the others were empty."""
        return all(store.synced for store in self.stores)

    @property
    def unavailable_since(self) -> float | None:
        """Since when the member, or one of its namespaces, cannot be read (reactor's clock); None: it can."""
        times = [store.unavailable_since for store in self.stores if store.unavailable_since is not None]
        return min(times) if times else None

    @property
    def unavailable_cause(self) -> str:
        """Why, as the first store that is unavailable has it; "" where none is."""
        return next((store.unavailable_cause for store in self.stores if store.unavailable_since is not None), "")

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
        """Yield what the member itself warns of with its answers, as text."""
        for store in self.stores_of(namespace):
            yield from store.warnings

    def version(self, namespace: str = ALL_NAMESPACES) -> int:
        """Return the version of the stores that hold `namespace`: the least; 0 where the member is not synced.

        The versions of all namespaces of a cluster come from one counter (etcd's revision).
        """
        stores = self.stores_of(namespace)
        if not stores or not all(store.synced for store in stores):
            return 0
        return min(store.version for store in stores)


class ViewListener(Protocol):
    """Is told when the composition of a view changes. The stores tell of changes of their objects themselves."""

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
    undiscovered: tuple[ClusterMember, ...]
    history: LayoutHistory
    karmada: bool  # the form of resource versions that is written
    format: VersionFormat = field(compare=False)
    reader: VersionReader = field(compare=False)


class View:
    """One resource of one aggregate."""

    __slots__ = ("_listeners", "closed", "state")

    def __init__(self, state: ViewState) -> None:
        self.state = state
        self.closed = False
        self._listeners: list[ViewListener] = []

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
    def undiscovered(self) -> tuple[ClusterMember, ...]:
        """Members of the aggregate of which it is not known yet whether they have the resource: never reached."""
        return self.state.undiscovered

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
    def custom(self) -> bool:
        """Whether the resource is a custom one, as its members write it."""
        return any(store.items_typed for member in self.state.members for store in member.stores)

    def member(self, name: str) -> MemberView | None:
        """Return the part of the member of that name."""
        return next((member for member in self.state.members if member.name == name), None)

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
