"""All views of one aggregate: which there are follows from its configuration and from what its members have.

Views come and go as the members' discovery changes (a CRD), and survive reloads. Stores are acquired before those that
are no longer needed are released, so what stays in use is never listed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from twisted.logger import Logger

from mcproxy.aggregate.resource_version.formats import version_format
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.aggregate.view.scope import Scope
from mcproxy.aggregate.view.view import MemberView, View, ViewState
from mcproxy.config.model.aggregates import Aggregate, ResourceVersions
from mcproxy.kube.resource import GroupVersionResource

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.view.sources import ClusterMember, StoreProvider
    from mcproxy.kube.resource import APIResource

log = Logger()

_SECRETS = ("", "secrets")
_Key = tuple[str, "GroupVersionResource", str, bool, str, Hashable]
# The member, the resource with its kind and whether it is namespaced (a definition may be deleted and made anew between
# two looks), the namespace, the options: what another store is needed for.


class AggregateViews:
    """Owns the views of one aggregate, and the uses of stores in them."""

    def __init__(
        self,
        aggregate: Aggregate,
        members: Sequence[ClusterMember],
        stores: StoreProvider,
        options: Callable[[bool, bool], Hashable],
        history: LayoutHistory | None = None,
    ) -> None:
        """`members` are those of `aggregate.clusters`, in that order. `options(drop_managed_fields, persist)` makes the
        options of a store: `reflector.StoreOptions`. `history` has the layouts that the aggregate had before this
        process was started."""
        self.aggregate = aggregate
        self.history = history.changed(aggregate.clusters) if history else LayoutHistory(Layout(aggregate.clusters))
        self._provider = stores
        self._options = options
        self._members: tuple[ClusterMember, ...] = ()
        self._subscriptions: dict[str, Callable[[], None]] = {}  # to discovery, by member
        self._scope = Scope(aggregate.cache.resources)
        self._stores: dict[_Key, Store] = {}
        self._views: dict[GroupVersionResource, View] = {}
        self._unwatchable: dict[GroupVersionResource, APIResource] = {}
        self._listeners: list[Callable[[], None]] = []
        self._disagreements: set[tuple[GroupVersionResource, str]] = set()
        self._absent: set[GroupVersionResource] = set()  # that a line was logged about
        self.update(aggregate, members)

    # -- what there is ----------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """What is read from cache."""
        return self._scope

    @property
    def members(self) -> tuple[ClusterMember, ...]:
        """The members, in the aggregate's order."""
        return self._members

    @property
    def views(self) -> Mapping[GroupVersionResource, View]:
        """All views: every resource that is read from cache."""
        return self._views

    @property
    def stores(self) -> Collection[Store]:
        """The caches that the views read from."""
        return self._stores.values()

    def view(self, gvr: GroupVersionResource) -> View | None:
        """Return the view of a resource; None if it is outside the scope, or no member is known to have it."""
        return self._views.get(gvr)

    def unwatchable(self, gvr: GroupVersionResource) -> APIResource | None:
        """Return a resource in scope that can be listed but not watched: it is read from the members each time."""
        return self._unwatchable.get(gvr)

    def names(self, gvr: GroupVersionResource) -> bool:
        """Whether the scope names a resource, whether or not any member is known to have it."""
        return self._scope.names(gvr)

    @property
    def undiscovered(self) -> tuple[ClusterMember, ...]:
        """The members that were never reached: nothing is known of what they have."""
        return tuple(member for member in self._members if not _discovered(member))

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after views or their members have changed, until the returned function is called."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    # -- changes ----------------------------------------------------------------------------------------------

    def update(self, aggregate: Aggregate, members: Sequence[ClusterMember]) -> None:
        """Apply a configuration (a reload): unaffected stores and views stay."""
        self.history = self.history.changed(aggregate.clusters)
        self.aggregate = aggregate
        self._scope = Scope(aggregate.cache.resources)
        self._members = tuple(members)
        for name, unsubscribe in list(self._subscriptions.items()):
            unsubscribe()
            del self._subscriptions[name]
        for member in self._members:
            self._subscriptions[member.name] = member.discovery.subscribe(self._compose)
        self._compose()

    def close(self) -> None:
        """End all views (the aggregate was removed, or the process stops)."""
        for unsubscribe in self._subscriptions.values():
            unsubscribe()
        self._subscriptions.clear()
        views, self._views = self._views, {}
        for view in views.values():
            view.close(gone=False)
        stores, self._stores = self._stores, {}
        for store in stores.values():
            self._provider.release(store)
        self._unwatchable = {}

    def _compose(self) -> None:
        """Work out which views there must be, and change what is different."""
        wanted, unwatchable = self._wanted()
        used: set[_Key] = set()
        states = {gvr: self._state(gvr, parts, used) for gvr, parts in wanted.items()}
        self._unwatchable = {gvr: resource for gvr, resource in unwatchable.items() if gvr not in states}
        for gvr in [gvr for gvr in self._views if gvr not in states]:
            self._views.pop(gvr).close(gone=True)
        for gvr, state in states.items():
            view = self._views.get(gvr)
            if view is None:
                self._views[gvr] = View(state)
            elif view.state != state:
                view.update(state)
        for key in [key for key in self._stores if key not in used]:
            self._provider.release(self._stores.pop(key))
        self._log_absent()
        for callback in list(self._listeners):
            try:
                callback()
            except Exception:
                log.failure("a listener of an aggregate's views failed", event="internal_error")

    def _wanted(
        self,
    ) -> tuple[
        dict[GroupVersionResource, list[tuple[ClusterMember, APIResource, tuple[str, ...]]]],
        dict[GroupVersionResource, APIResource],
    ]:
        """Return the members of each view, with the namespaces in scope, and the resources that cannot be watched."""
        wanted: dict[GroupVersionResource, list[tuple[ClusterMember, APIResource, tuple[str, ...]]]] = {}
        unwatchable: dict[GroupVersionResource, APIResource] = {}
        group_versions = self._scope.group_versions()
        for member in self._members:
            for gvr, resource in member.discovery.resources.items():
                if gvr[:2] not in group_versions or not resource.listable:
                    continue
                namespaces = self._scope.namespaces(member.name, resource)
                if not namespaces:
                    continue
                if not resource.watchable:
                    unwatchable.setdefault(gvr, resource)
                    continue
                parts = wanted.setdefault(gvr, [])
                if parts and not _agree(parts[0][1], resource):
                    self._log_disagreement(gvr, parts[0][0].name, member.name)
                    continue
                parts.append((member, resource, namespaces))
        return wanted, unwatchable

    def _state(
        self,
        gvr: GroupVersionResource,
        parts: Sequence[tuple[ClusterMember, APIResource, tuple[str, ...]]],
        used: set[_Key],
    ) -> ViewState:
        layout = self.history.present
        members = tuple(
            MemberView(
                name=member.name,
                index=layout.index(member.name),
                member=member,
                stores=tuple(self._store(member.name, resource, namespace, used) for namespace in namespaces),
            )
            for member, resource, namespaces in parts
        )
        karmada = self.aggregate.resource_versions is ResourceVersions.KARMADA
        return ViewState(
            resource=parts[0][1],
            members=members,
            undiscovered=self.undiscovered,
            history=self.history,
            format=version_format(layout, karmada=karmada),
            reader=VersionReader(self.history),
            karmada=karmada,
        )

    def _store(self, member: str, resource: APIResource, namespace: str, used: set[_Key]) -> Store:
        cache = self.aggregate.cache
        persist = resource.gvr[::2] != _SECRETS or cache.persist_secrets
        options = self._options(cache.drop_managed_fields, persist)
        key = (member, resource.gvr, resource.kind, resource.namespaced, namespace, options)
        used.add(key)
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = self._provider.acquire(member, resource, namespace, options)
        return store

    def _log_disagreement(self, gvr: GroupVersionResource, first: str, other: str) -> None:
        if (gvr, other) not in self._disagreements:
            self._disagreements.add((gvr, other))
            log.warn(
                "a resource of a member is left out of an aggregate",
                event="resource_left_out",
                aggregate=self.aggregate.name,
                resource=str(gvr),
                cluster=other,
                cause=f"its kind or its scope is not that in cluster {first}, which comes first",
                todo="serve the same definition in all members, or limit the resource with `clusters`",
            )

    def _log_absent(self) -> None:
        """Write a line for each resource that the configuration names and no member has, once all are known."""
        if self.undiscovered or not self._members:
            return
        entries = self.aggregate.cache.resources
        named = {
            GroupVersionResource(each.group, each.version, each.resource) for each in entries if each.resource != "*"
        }
        absent = {gvr for gvr in named if gvr not in self._views and gvr not in self._unwatchable}
        for gvr in sorted(absent - self._absent):
            log.warn(
                "no member has a resource that an aggregate is to cache",
                event="resource_unknown",
                aggregate=self.aggregate.name,
                resource=str(gvr),
                version=gvr.version,
                cause="cache.resources names it, but the discovery of no member that the entry is for has it",
                todo="none if its definition is still to come; else compare the entry with `kubectl api-resources`",
            )
        self._absent = absent


def _discovered(member: ClusterMember) -> bool:
    return bool(member.discovery.groups) or member.discovery.fresh


def _agree(first: APIResource, other: APIResource) -> bool:
    return first.kind == other.kind and first.namespaced == other.namespaced
