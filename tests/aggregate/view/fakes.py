"""Members, discovery and a provider of stores, without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from mcproxy.kube.resource import APIResource, GroupVersionResource

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store


class FakeDiscovery:
    def __init__(self, *resources: APIResource) -> None:
        self.resources: Mapping[GroupVersionResource, APIResource] = {}
        self.groups: tuple[Any, ...] = ()
        self.fresh = False
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

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)


@dataclass
class FakeMember:
    name: str
    discovery: FakeDiscovery = field(default_factory=FakeDiscovery)


@dataclass
class FakeStore:
    """What a view reads of a store."""

    member: str
    resource: APIResource
    namespace: str
    options: Any
    version: int = 0
    synced: bool = False
    unavailable_since: float | None = None
    unavailable_cause: str = ""
    last_sign: float = 0.0
    __hash__ = object.__hash__

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
