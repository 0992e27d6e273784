"""The caches of EndpointSlices, Services, ServiceExports and ServiceImports of clusters.

They read the reflectors and stores of the process (`aggregate.member_caches`), so objects that an aggregate has cached
are not watched again. An index by Service limits the work of a change to one Service. Listeners are notified of
changed Services once in a turn of the reactor.

The known state of a cluster is kept while it is unreachable, and over a restart (`daemon.stateDir`). After a restart a
cache counts as followed only when it provably has its cluster's present state, so that no write is based on old state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.services.api_types import MCS_SERVICE_NAME, SERVICE_NAME
from mcproxy.services.cache_scopes import ALL, FollowedKind, Scopes
from mcproxy.services.endpoint_table import ClusterServiceKey

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member

log = Logger(__name__)

PROOF_TIMEOUT = 10.0
"""Maximum of seconds for a cluster to report its resource version, and again for the cache to reach that version."""
PROOF_RETRY = 2.0
"""Seconds between two attempts to prove that a cache is up to date."""


@dataclass(frozen=True, slots=True)
class CacheState:
    """The state of the cache of one kind in one cluster, for one namespace or all."""

    served: bool | None = None
    """Whether the cluster serves the kind; None: not known yet."""
    synced: bool = False
    """Whether all objects have been known once: listed, or restored from `stateDir`."""
    followed: bool = False
    """Whether the cache is up to date; False: the cluster is unreachable, refuses requests, or has not yet sent all
    changes since the start or since the restored state was saved."""
    refused: bool = False
    """Whether the cluster refuses lists or watches of the proxy (401, 403)."""
    cause: str = ""
    """Why the cache is not followed."""
    replaced: bool = False
    """Whether the former state is invalid: the name means another cluster now, or the kind is not served any more."""


class ServiceListener(Protocol):
    """A reader of the caches."""

    def services_changed(self, keys: Collection[ClusterServiceKey]) -> None:
        """Called when objects of these Services have changed: their EndpointSlices, or objects with the same name."""

    def cluster_changed(self, cluster: str) -> None:
        """Called when a `CacheState` of a cluster has changed."""


class CacheProvider(Protocol):
    """Provides stores (`reflectors.Reflectors`)."""

    @property
    def members(self) -> Mapping[str, Member]: ...
    def acquire_any(self, member: str, resource: APIResource, namespace: str) -> Store: ...
    def release(self, store: Store) -> None: ...
    async def probe(self, store: Store, timeout: float) -> int: ...


def object_json(item: CachedObject) -> bytes:
    """Return an object as JSON, without kind and apiVersion.

    It equals the cluster's object, except for the label `mcproxy.io/cluster` and the annotation
    `resource.karmada.io/cached-from-cluster`, which the cache adds to name the cluster.
    """
    return item.json(b"", b"%d" % item.version)


class ServiceCaches:
    """The cached objects of services in all clusters of a configuration."""

    def __init__(self, provider: CacheProvider, clock: IReactorTime) -> None:
        self._provider = provider
        self._clock = clock
        self._clusters: dict[str, _Cluster] = {}
        self._listeners: dict[int, ServiceListener] = {}
        self._next_number = 0
        self._changed: set[ClusterServiceKey] = set()
        self._changed_clusters: dict[str, None] = {}
        self._notification: IDelayedCall | None = None

    def update(self, scopes: Scopes) -> None:
        """Follow these scopes, whose clusters are members already. Scopes that remain are not listed again."""
        for name in [name for name in self._clusters if name not in scopes]:
            self._clusters.pop(name).close()
            self.changed_cluster(name)
        for name, kinds in scopes.items():
            cluster = self._clusters.get(name)
            if cluster is None:
                cluster = self._clusters[name] = _Cluster(self, name, self._provider)
            cluster.update(self._provider.members[name], kinds)

    def stop(self) -> None:
        """Stop everything; no listener is called."""
        self._listeners.clear()
        clusters, self._clusters = self._clusters, {}
        for cluster in clusters.values():
            cluster.close()
        if self._notification is not None:
            self._notification.cancel()
            self._notification = None

    def subscribe(self, listener: ServiceListener) -> Callable[[], None]:
        """Notify `listener` of later changes, in the next turn of the reactor; returns a function that ends this."""
        number = self._next_number
        self._next_number += 1
        self._listeners[number] = listener

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def clusters(self) -> Collection[str]:
        """The names of the clusters whose objects are cached."""
        return self._clusters.keys()

    def state(self, cluster: str, kind: FollowedKind, namespace: str = ALL) -> CacheState:
        """Return the state of the cache of a kind in a namespace; unknown outside of the configured scopes."""
        found = self._clusters.get(cluster)
        return CacheState() if found is None else found.state(kind, namespace)

    def is_wanted(self, cluster: str, kind: FollowedKind) -> bool:
        """Whether the configuration needs a kind of a cluster."""
        found = self._clusters.get(cluster)
        return found is not None and found.wants(kind)

    def slices(self, key: ClusterServiceKey) -> Mapping[str, CachedObject]:
        """Return the EndpointSlices of a Service, by name: those with the label `kubernetes.io/service-name`."""
        found = self._clusters.get(key.cluster)
        return _NOTHING if found is None else found.slices.get(key, _NOTHING)

    def import_slices(self, key: ClusterServiceKey) -> Mapping[str, CachedObject]:
        """Return the EndpointSlices of a ServiceImport, by name (`multicluster.kubernetes.io/service-name`)."""
        found = self._clusters.get(key.cluster)
        return _NOTHING if found is None else found.import_slices.get(key, _NOTHING)

    def get(self, kind: FollowedKind, key: ClusterServiceKey) -> CachedObject | None:
        """Return the object of a kind under a key; for an EndpointSlice `key.service` is the name of the slice."""
        found = self._clusters.get(key.cluster)
        return None if found is None else found.objects[kind].get(key)

    def resource(self, cluster: str, kind: FollowedKind) -> GroupVersionResource | None:
        """Return the resource of a kind in the version that is followed in a cluster; None if it is not served."""
        found = self._clusters.get(cluster)
        return None if found is None else found.resource(kind)

    def objects(self, cluster: str, kind: FollowedKind) -> Iterator[CachedObject]:
        """Iterate over a snapshot of all objects of a kind in a cluster, unordered."""
        found = self._clusters.get(cluster)
        return iter(()) if found is None else iter(tuple(found.objects[kind].values()))

    @property
    def clock(self) -> IReactorTime:
        """The reactor's clock."""
        return self._clock

    @property
    def stores(self) -> Iterable[Store]:
        """The stores in use, each once."""
        return {id(store): store for each in self._clusters.values() for store in each.stores}.values()

    # -- called by the clusters' caches -------------------------------------------------------------------------

    def changed(self, keys: Iterable[ClusterServiceKey]) -> None:
        """Note changes for the next notification."""
        self._changed.update(keys)
        self._notify_soon()

    def changed_cluster(self, name: str) -> None:
        """Note a change of state for the next notification."""
        self._changed_clusters[name] = None
        self._notify_soon()

    def _notify_soon(self) -> None:
        if self._notification is None and self._listeners:
            self._notification = self._clock.callLater(0, self._notify)

    def _notify(self) -> None:
        self._notification = None
        changed, self._changed = self._changed, set()
        clusters, self._changed_clusters = self._changed_clusters, {}
        for number, listener in tuple(self._listeners.items()):
            if number not in self._listeners:
                continue
            try:
                if changed:
                    listener.services_changed(changed)
                for name in clusters:
                    listener.cluster_changed(name)
            except Exception:
                log.failure("a reader of services failed", event="internal_error")


_NOTHING: Mapping[str, CachedObject] = {}


class _Cluster:
    """The cached objects of one cluster."""

    def __init__(self, owner: ServiceCaches, name: str, provider: CacheProvider) -> None:
        self.name = name
        self.objects: dict[FollowedKind, dict[ClusterServiceKey, CachedObject]] = {kind: {} for kind in FollowedKind}
        self.slices: dict[ClusterServiceKey, dict[str, CachedObject]] = {}
        self.import_slices: dict[ClusterServiceKey, dict[str, CachedObject]] = {}
        self._owner = owner
        self._provider = provider
        self._member: Member | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._kinds: Mapping[FollowedKind, frozenset[str]] = {}
        self._scopes: dict[tuple[FollowedKind, str], _Scope] = {}  # by kind and namespace

    def update(self, member: Member, kinds: Mapping[FollowedKind, frozenset[str]]) -> None:
        self._unsubscribe()
        self._member, self._kinds = member, kinds
        self._unsubscribe = member.discovery.subscribe(self._compose)
        self._compose()

    def close(self) -> None:
        self._unsubscribe()
        scopes, self._scopes = self._scopes, {}
        for scope in scopes.values():
            scope.close()

    @property
    def stores(self) -> list[Store]:
        return [scope.store for scope in self._scopes.values()]

    def resource(self, kind: FollowedKind) -> GroupVersionResource | None:
        found = self._resource(kind)
        return None if found is None else found.gvr

    def _resource(self, kind: FollowedKind) -> APIResource | None:
        """Return the resource of a kind in the first version of `kind.versions` that the cluster serves."""
        assert self._member is not None
        resources = self._member.discovery.resources
        for version in kind.versions:
            found = resources.get(GroupVersionResource(kind.group, version, kind.resource))
            if found is not None and found.watchable and found.namespaced == kind.namespaced:
                return found
        return None

    def wants(self, kind: FollowedKind) -> bool:
        return kind in self._kinds

    def state(self, kind: FollowedKind, namespace: str) -> CacheState:
        wanted = self._kinds.get(kind, frozenset())
        if namespace not in wanted and ALL not in wanted:
            return CacheState()
        scope = self._scopes.get((kind, namespace)) or self._scopes.get((kind, ALL))
        if scope is None:
            assert self._member is not None
            discovery = self._member.discovery
            known = discovery.groups or discovery.fresh
            return CacheState(served=False if known else None, replaced=bool(known))
        return scope.state

    def _compose(self) -> None:
        """Acquire and release stores, according to the needed and the served kinds."""
        wanted: dict[tuple[FollowedKind, str], APIResource] = {}
        for kind, namespaces in self._kinds.items():
            resource = self._resource(kind)
            if resource is not None:
                wanted |= {(kind, namespace): resource for namespace in namespaces}
        acquired = {
            place: _Scope(self, place[0], place[1], resource, self._provider, self._owner.clock)
            for place, resource in wanted.items()
            if place not in self._scopes or self._scopes[place].resource != resource
        }
        gone = [scope for place, scope in self._scopes.items() if place not in wanted or place in acquired]
        self._scopes = {place: acquired.get(place) or self._scopes[place] for place in wanted}
        for scope in acquired.values():
            scope.begin()
        for scope in gone:
            scope.close()
        for scope in gone:
            self.remove_uncovered(scope)
        self._owner.changed_cluster(self.name)

    def remove_uncovered(self, gone: _Scope) -> None:
        """Remove the objects of a closed scope from the index, except those that another scope covers."""
        covering = {place[1] for place in self._scopes if place[0] is gone.kind}
        if ALL in covering:
            return
        for key in [key for key in self.objects[gone.kind] if key.namespace not in covering]:
            self.take(gone.kind, key.namespace, key.service, None)

    # -- the index ------------------------------------------------------------------------------------------------

    def take(self, kind: FollowedKind, namespace: str, name: str, item: CachedObject | None) -> None:
        """Put an object into the index, replacing the object with its name; None removes that object."""
        key = ClusterServiceKey(self.name, namespace, name)
        objects = self.objects[kind]
        before = objects.get(key)
        if before is item:
            return
        if item is None:
            objects.pop(key, None)
        else:
            objects[key] = item
        if kind is not FollowedKind.SLICES:
            self._owner.changed((key,))
            return
        changed: set[ClusterServiceKey] = set()
        for label, index in ((SERVICE_NAME, self.slices), (MCS_SERVICE_NAME, self.import_slices)):
            old, new = self._named(before, label), self._named(item, label)
            if old is not None and old != new:
                of_service = index[old]
                del of_service[name]
                if not of_service:
                    del index[old]
            if new is not None and item is not None:
                index.setdefault(new, {})[name] = item
            changed |= {each for each in (old, new) if each is not None}
        self._owner.changed(changed)

    def _named(self, item: CachedObject | None, label: str) -> ClusterServiceKey | None:
        name = None if item is None else item.labels.get(label)
        return ClusterServiceKey(self.name, item.namespace, name) if item is not None and name else None

    def take_all(self, kind: FollowedKind, namespace: str, items: Iterable[CachedObject]) -> None:
        """Replace all objects of a namespace, or of `ALL`, in the index."""
        found = {ClusterServiceKey(self.name, item.namespace, item.name): item for item in items}
        gone = [key for key in self.objects[kind] if key not in found and (namespace in (ALL, key.namespace))]
        for key in gone:
            self.take(kind, key.namespace, key.service, None)
        for item in found.values():
            self.take(kind, item.namespace, item.name, item)

    def changed_state(self) -> None:
        self._owner.changed_cluster(self.name)


def _log_unless_cancelled(failure: Failure) -> None:
    if not isinstance(failure.value, CancelledError):
        log.failure("the proof of a restored cache failed unexpectedly", failure, event="internal_error")


class _Scope:
    """Reads one kind in one namespace (or all) from a store, which can have more objects and other readers."""

    def __init__(
        self,
        cluster: _Cluster,
        kind: FollowedKind,
        namespace: str,
        resource: APIResource,
        provider: CacheProvider,
        clock: IReactorTime,
    ) -> None:
        self.kind = kind
        self.namespace = namespace
        self.resource = resource
        self.store = provider.acquire_any(cluster.name, resource, namespace)
        self.state = CacheState(served=True)
        self._cluster = cluster
        self._provider = provider
        self._clock = clock
        self._unsubscribe: Callable[[], None] = lambda: None
        self._proof: Deferred[None] | None = None  # the proof that a restored state is up to date
        self._proven = False

    def begin(self) -> None:
        """Read the store, and follow it."""
        self._unsubscribe = self.store.subscribe(self)
        self.store_progress(self.store)

    def close(self) -> None:
        self._unsubscribe()
        if self._proof is not None:
            self._proof.cancel()
        self._provider.release(self.store)

    def _has_caught_up(self) -> bool:
        """Whether the store has been up to date with its cluster once since the start; if not, begin the proof."""
        if not self.store.lists and self._proof is None:
            self._proof = Deferred.fromCoroutine(self._prove())
            self._proof.addErrback(_log_unless_cancelled)
        return self.store.lists > 0 or self._proven

    async def _prove(self) -> None:
        """Wait until the store has reached a resource version that its cluster has reported since the start."""
        delay = 0.0
        while not self._proven and not self.store.lists:
            await deferLater(self._clock, delay)
            delay = PROOF_RETRY
            if self.store.unavailable_since is not None:
                continue  # the reflector retries meanwhile, with its backoff
            try:
                version = await self._provider.probe(self.store, PROOF_TIMEOUT)
                self._proven = await self.store.when_version(version, PROOF_TIMEOUT)
            except CancelledError:
                raise
            except Exception as error:
                name, cause = self.store.member, str(error)
                log.debug("a member does not answer", event="member_not_answering", cluster=name, cause=cause)
        self.store_progress(self.store)

    def store_event(self, store: Store, event: Event) -> None:
        item = event.object
        if self.namespace in (ALL, item.namespace):
            gone = event.type is EventType.DELETED
            self._cluster.take(self.kind, item.namespace, item.name, None if gone else item)

    def store_progress(self, store: Store) -> None:
        before = self.state
        followed = store.unavailable_since is None and store.synced and store.answered and self._has_caught_up()
        if (
            before.synced == store.synced
            and before.followed == followed
            and before.refused == store.refused
            and before.cause == store.unavailable_cause
        ):
            return
        replaced = not store.synced and not store.older and (before.synced or before.replaced)
        self.state = CacheState(True, store.synced, followed, store.refused, store.unavailable_cause, replaced)
        if store.synced and not before.synced:
            self._cluster.take_all(self.kind, self.namespace, store.snapshot().range(self.namespace))
        self._cluster.changed_state()
