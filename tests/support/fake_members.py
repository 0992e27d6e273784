"""Members, discovery and a provider of stores, without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred, succeed

from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.net.wall_time import WallSeconds

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member


class FakeDiscovery:
    def __init__(self, *resources: APIResource) -> None:
        self.resources: Mapping[GroupVersionResource, APIResource] = {}
        self.groups: tuple[Any, ...] = ()
        self.fresh = False
        self.refreshed = 0
        self.silent = False
        self.coming: Sequence[APIResource] | None = None
        """What a refresh finds."""
        self.callbacks: list[Callable[[], None]] = []
        if resources:
            self.set(*resources)

    def set(self, *resources: APIResource) -> None:
        """The member has these resources now."""
        self.resources = {resource.gvr: resource for resource in resources}
        self.groups = ("",)
        self.fresh = True
        for callback in list(self.callbacks):
            callback()

    def refresh(self) -> Deferred[None]:
        """Read what there is: `coming`, if that is not None."""
        self.refreshed += 1
        if self.silent:
            return Deferred()
        if self.coming is not None:
            self.set(*self.coming)
        return succeed(None)

    def renew(self, age: float) -> Deferred[None]:
        return self.refresh()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)


@dataclass
class FakeMember:
    name: str
    discovery: FakeDiscovery = field(default_factory=FakeDiscovery)
    unavailable_since: WallSeconds | None = None


def as_member(fake: FakeMember) -> Member:
    return cast("Member", fake)


def as_members(fakes: Sequence[FakeMember]) -> list[Member]:
    return [as_member(fake) for fake in fakes]


@dataclass
class FakeStore:
    """What a view reads of a store."""

    member: str
    resource: APIResource
    namespace: str
    options: Any
    version: int = 0
    synced: bool = False
    unavailable_since: WallSeconds | None = None
    unavailable_cause: str = ""
    refused: bool = False
    last_sign: float = 0.0
    listeners: list[Any] = field(default_factory=list)
    __hash__ = object.__hash__

    def subscribe(self, listener: Any) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def see(self, version: int) -> None:
        """Come to a version."""
        self.version = version
        for listener in list(self.listeners):
            listener.store_progress(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class FakeStores:
    """Counts uses as Reflectors do; `log` has each call in order."""

    def __init__(self) -> None:
        self.uses: dict[FakeStore, int] = {}
        self.log: list[tuple[str, str, str, str]] = []

    def acquire(self, member: str, resource: APIResource, namespace: str, options: Any) -> Store:
        self.log.append(("acquire", member, resource.gvr.resource, namespace))
        for store in self.uses:
            if (store.member, store.resource.gvr, store.namespace, store.options) == (
                member,
                resource.gvr,
                namespace,
                options,
            ):
                self.uses[store] += 1
                return cast("Store", store)
        store = FakeStore(member, resource, namespace, options)
        self.uses[store] = 1
        return cast("Store", store)

    def release(self, store: Store) -> None:
        held = cast(FakeStore, store)
        self.log.append(("release", held.member, held.resource.gvr.resource, held.namespace))
        self.uses[held] -= 1
        if not self.uses[held]:
            del self.uses[held]

    def find(self, member: str, resource: str, namespace: str = "") -> FakeStore:
        return next(
            store
            for store in self.uses
            if (store.member, store.resource.gvr.resource, store.namespace) == (member, resource, namespace)
        )
