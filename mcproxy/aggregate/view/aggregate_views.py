"""Creates and updates all views of one aggregate, from its configuration and its members' discovery.

Views come and go with the members' discovery (e.g. CRDs), and survive reloads. New stores are acquired before old ones
are released, so a collection that stays in use is never listed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from twisted.logger import Logger

from mcproxy.aggregate.reflector.reflectors import StoreOptions
from mcproxy.aggregate.resource_version.formats import LEAST_BITS, LongFormat, version_format
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.aggregate.view.conflicts import conflicts_of
from mcproxy.aggregate.view.scope import Scope, agree, difference
from mcproxy.aggregate.view.view import AbsentMember, MemberView, View, ViewState
from mcproxy.config.model.aggregates import Aggregate, ResourceVersions
from mcproxy.kube.resource import GroupVersionResource

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import Event
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.reflector.reflectors import Reflectors
    from mcproxy.kube.resource import APIResource


class GreatestVersion:
    """Tracks the greatest version in the stores. Versions from clients do not count, since a client could invent a long
    version and so change the form of the versions for all clients.
    """

    def __init__(self, bits: int, on_growth: Callable[[int], None]) -> None:
        """`bits` is the length of the greatest version so far. `on_growth` is called with the length of each version
        that is longer, if it is also longer than the shortest part of any format. The call comes before listeners that
        subscribed to the store later get that version.
        """
        self._bits = max(bits, LEAST_BITS)
        self._on_growth = on_growth
        self._followed: dict[Store, Callable[[], None]] = {}

    def follow(self, store: Store) -> None:
        """Follow the versions of a store until `leave`."""
        self._followed[store] = store.subscribe(self)
        self._look(store)

    def leave(self, store: Store) -> None:
        self._followed.pop(store)()

    def store_event(self, store: Store, event: Event) -> None:
        self._look(store)

    def store_progress(self, store: Store) -> None:
        self._look(store)

    def _look(self, store: Store) -> None:
        if store.version >> self._bits:
            self._bits = store.version.bit_length()
            self._on_growth(self._bits)


log = Logger(__name__)

_SECRETS = ("", "secrets")
_Key = tuple[str, "GroupVersionResource", str, bool, str, StoreOptions]
# The key of a store: the member, the resource with its kind and scope (a definition may be deleted and created again
# between two updates), the namespace and the options.
_Wanted = dict["GroupVersionResource", "list[tuple[Member, APIResource, tuple[str, ...]]]"]
# The members of each view, with the namespaces in scope.


class LeftOutResource(NamedTuple):
    """A member's resource whose objects are not shown, and the reason as text for an operator."""

    gvr: GroupVersionResource
    member: str
    why: str


class AggregateViews:
    """Owns the views of one aggregate, and acquires their stores."""

    def __init__(
        self,
        aggregate: Aggregate,
        members: Sequence[Member],
        reflectors: Reflectors,
        history: LayoutHistory | None = None,
    ) -> None:
        """`members` are those of `aggregate.clusters`, in that order. `history` has the aggregate's layouts from before
        the process start."""
        self.aggregate = aggregate
        self.history = history.changed(aggregate.layout) if history else LayoutHistory(Layout(aggregate.layout))
        self._reflectors = reflectors
        self._members: tuple[Member, ...] = ()
        self._subscriptions: dict[str, Callable[[], None]] = {}  # subscriptions to discovery, by member
        self._scope = Scope(aggregate.cache.resources)
        self._stores: dict[_Key, Store] = {}
        self._views: dict[GroupVersionResource, View] = {}
        self._unwatchable: dict[GroupVersionResource, APIResource] = {}
        self._listeners: list[Callable[[], None]] = []
        self._disagreements: set[tuple[GroupVersionResource, str]] = set()
        self._absent: set[GroupVersionResource] = set()  # resources that were logged as absent
        self._greatest = GreatestVersion(self.history.bits, self._grown)
        self._composing = False
        self.update(aggregate, members)

    # -- contents ---------------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """The resources that are read from cache, with members and namespaces."""
        return self._scope

    @property
    def members(self) -> tuple[Member, ...]:
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
        """Return the view of a resource; None if it is out of scope, or no member is known to have it."""
        return self._views.get(gvr)

    def unwatchable(self, gvr: GroupVersionResource) -> APIResource | None:
        """Return a resource in scope that can be listed but not watched; each request reads it from the members."""
        return self._unwatchable.get(gvr)

    def names(self, gvr: GroupVersionResource) -> bool:
        """Whether a resource is in scope, even if no member is known to have it."""
        return self._scope.names(gvr)

    @property
    def left_out(self) -> list[LeftOutResource]:
        """The members' resources whose definitions differ from the served ones, so that their objects are left out."""
        return [
            LeftOutResource(gvr, member, found.why)
            for gvr, view in sorted(self._views.items())
            for member, found in view.differing()
        ]

    @property
    def undiscovered(self) -> tuple[Member, ...]:
        """The members that were never reached, and whose resources are therefore unknown."""
        return tuple(member for member in self._members if not _discovered(member))

    def in_scope(self, gvr: GroupVersionResource) -> list[Member]:
        """Return the members in whose scope a resource is, even if they do not have it."""
        return [member for member in self._members if self._scope.names(gvr, member.name)]

    def known(self, gvr: GroupVersionResource) -> bool:
        """Whether a member is known to have a resource in its scope, even if this aggregate does not serve it."""
        return any(gvr in member.discovery.resources for member in self.in_scope(gvr))

    def unasked(self, resource: APIResource, namespace: str) -> list[str]:
        """Return the members that may have objects of `namespace` ("": any) but cannot be asked now."""
        return [each.member.name for each in self._lacking(resource) if each.may_have(namespace)]

    def _lacking(self, resource: APIResource) -> tuple[AbsentMember, ...]:
        """Return the members in scope that are not known to have a resource with its served definition."""
        return tuple(
            AbsentMember(member, namespaces, difference(resource, member.discovery))
            for member in self._members
            if (found := member.discovery.resources.get(resource.gvr)) is None or not agree(found, resource)
            if (namespaces := self._scope.namespaces(member.name, resource))
        )

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of the views or their members. The returned function unsubscribes."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    # -- changes ----------------------------------------------------------------------------------------------

    def update(self, aggregate: Aggregate, members: Sequence[Member]) -> None:
        """Apply a configuration (a reload): unaffected stores and views stay."""
        self.history = self.history.changed(aggregate.layout)
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
            self._release(store)
        self._unwatchable = {}

    def _release(self, store: Store) -> None:
        self._greatest.leave(store)
        self._reflectors.release(store)

    def _grown(self, bits: int) -> None:
        """Handle that a version of `bits` bits has appeared for the first time, which can require the long form."""
        self.history = self.history.grown(bits)
        if not self._composing:
            self._compose()

    def _compose(self) -> None:
        """Compute the required views, and apply the differences to the present ones."""
        wanted, unwatchable = self._wanted()
        used: set[_Key] = set()
        states = self._states(wanted, used)
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
            self._release(self._stores.pop(key))
        self._log_absent()
        for callback in list(self._listeners):
            try:
                callback()
            except Exception:
                log.failure("a listener of an aggregate's views failed", event="internal_error")

    def _states(self, wanted: _Wanted, used: set[_Key]) -> dict[GroupVersionResource, ViewState]:
        self._composing = True
        try:
            states = {gvr: self._state(gvr, parts, used) for gvr, parts in wanted.items()}
            if any(state.history is not self.history for state in states.values()):
                # A store that is shared with another aggregate can already have a greater version.
                states = {gvr: self._state(gvr, parts, used) for gvr, parts in wanted.items()}
        finally:
            self._composing = False
        return states

    def _wanted(self) -> tuple[_Wanted, dict[GroupVersionResource, APIResource]]:
        """Return the members of each view, with the namespaces in scope, and the resources that cannot be watched."""
        wanted: _Wanted = {}
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
                if parts and not agree(parts[0][1], resource):
                    self._log_disagreement(gvr, parts[0][0].name, member.name)
                    continue
                parts.append((member, resource, namespaces))
        return wanted, unwatchable

    def _state(
        self,
        gvr: GroupVersionResource,
        parts: Sequence[tuple[Member, APIResource, tuple[str, ...]]],
        used: set[_Key],
    ) -> ViewState:
        layout, first = self.history.present, parts[0][1]
        absent = self._lacking(first)
        members = tuple(
            MemberView(
                name=member.name,
                index=layout.index(member.name),
                member=member,
                stores=tuple(self._store(member.name, resource, namespace, used) for namespace in namespaces),
            )
            for member, resource, namespaces in parts
        )
        former = self.aggregate.former_members
        karmada = self.aggregate.resource_versions is ResourceVersions.KARMADA
        # The changes of several namespaces are not one sequence, so an event needs both its object's version and the
        # version to resume from. Among the numeric forms, only the long form has room for both.
        several = any(len(member.stores) > 1 for member in members)
        written = version_format(layout, karmada=karmada, long=several, bits=self.history.bits)
        return ViewState(
            resource=first,
            members=members,
            undiscovered=tuple(each.member for each in absent if not _discovered(each.member)),
            history=self.history,
            format=written,
            reader=VersionReader(self.history, former),
            karmada=karmada,
            absent=absent,
            former=former,
            conflicts=conflicts_of(self.aggregate, gvr),
            long=isinstance(written, LongFormat),
        )

    def _store(self, member: str, resource: APIResource, namespace: str, used: set[_Key]) -> Store:
        cache = self.aggregate.cache
        persist = resource.gvr[::2] != _SECRETS or cache.persist_secrets
        options = StoreOptions(cache.drop_managed_fields, persist)
        key = (member, resource.gvr, resource.kind, resource.namespaced, namespace, options)
        used.add(key)
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = self._reflectors.acquire(member, resource, namespace, options)
            self._greatest.follow(store)
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
            )

    def _log_absent(self) -> None:
        """Log each resource that the configuration names and no member has, once all members are known."""
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
            )
        self._absent = absent


def _discovered(member: Member) -> bool:
    return bool(member.discovery.groups) or member.discovery.fresh
