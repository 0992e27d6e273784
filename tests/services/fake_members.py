"""Clusters whose stores a test writes, as a reflector would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.services.cache_scopes import FollowedKind
from tests.services.objects import cached
from tests.support.clock import Clock


def resource_of(kind: FollowedKind, version: str = "") -> APIResource:
    gvr = GroupVersionResource(kind.group, version or kind.versions[0], kind.resource)
    return APIResource(
        gvr, kind.name, kind.name.lower(), namespaced=kind.namespaced, verbs=frozenset({"list", "watch"})
    )


class FakeDiscovery:
    def __init__(self) -> None:
        self.resources: Mapping[GroupVersionResource, APIResource] = {}
        self.groups: tuple[Any, ...] = ()
        self.fresh = False
        self._listeners: list[Callable[[], None]] = []

    def serve(self, *resources: APIResource) -> None:
        self.resources = {each.gvr: each for each in resources}
        self.fresh, self.groups = True, (1,)
        for listener in list(self._listeners):
            listener()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)


class FakeMember:
    def __init__(self, name: str) -> None:
        self.name = name
        self.discovery = FakeDiscovery()


class FakeMembers:
    """A `service_caches.CacheProvider`; the test writes to its stores."""

    def __init__(self, clock: Clock, *names: str) -> None:
        self.clock = clock
        self._members = {name: FakeMember(name) for name in names}
        self.stores: dict[tuple[str, str, str], Store] = {}
        self.uses: dict[Store, int] = {}
        self.versions = 0
        self.away = False
        self.probes = 0

    @property
    def members(self) -> Any:
        return self._members

    def serve(
        self, *names: str, kinds: tuple[FollowedKind, ...] = (FollowedKind.SLICES, FollowedKind.SERVICES)
    ) -> None:
        for name in names or tuple(self._members):
            self._members[name].discovery.serve(*map(resource_of, kinds))

    def acquire_any(self, member: str, resource: APIResource, namespace: str) -> Store:
        for key in ((member, resource.gvr.resource, namespace), (member, resource.gvr.resource, "")):
            if key in self.stores:
                store = self.stores[key]
                break
        else:
            store = self.stores[member, resource.gvr.resource, namespace] = Store(
                cast(Any, self.clock), member, resource, namespace
            )
        self.uses[store] = self.uses.get(store, 0) + 1
        return store

    def release(self, store: Store) -> None:
        self.uses[store] -= 1
        if not self.uses[store]:
            self.stores = {key: each for key, each in self.stores.items() if each is not store}

    async def probe(self, store: Store, timeout: float) -> int:
        self.probes += 1
        if self.away:
            raise MemberError("away")
        return self.versions

    # -- what a reflector would do --------------------------------------------------------------------------------

    def store(self, cluster: str, kind: FollowedKind, namespace: str = "demo") -> Store:
        key = cluster, kind.resource, namespace
        return self.stores[key if key in self.stores else (cluster, kind.resource, "")]

    def cached(self, found: Mapping[str, Any]) -> CachedObject:
        self.versions += 1
        return cached(found, self.versions)

    def list(self, cluster: str, kind: FollowedKind, *objects: Mapping[str, Any], namespace: str = "demo") -> None:
        """Make a first list, or a relist."""
        store = self.store(cluster, kind, namespace)
        items = sorted((self.cached(each) for each in objects), key=lambda item: item.key)
        replacement = store.replace()
        for item in items:
            replacement.add(item)
        store.available()
        self.versions += 1
        replacement.commit(self.versions)

    def put(self, cluster: str, kind: FollowedKind, found: Mapping[str, Any], namespace: str = "demo") -> None:
        self.store(cluster, kind, namespace).apply(EventType.ADDED, self.cached(found))

    def delete(self, cluster: str, kind: FollowedKind, name: str, namespace: str = "demo") -> None:
        store = self.store(cluster, kind, namespace)
        item = store.get(namespace, name)
        if item is not None:
            self.versions += 1
            store.apply(EventType.DELETED, item.deleted_at(self.versions))
