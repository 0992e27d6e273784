"""The position of a watch: the stores that it reads, the version up to which it has sent each store, and its resource
version.

Every line has the resource version of the position after the line, so a watch that resumes there, at any replica,
misses nothing. A member's part of the vector is the minimum of its stores' versions. It is 0 ("without this member")
until all its stores have begun. How a watch begins, resumes and follows the changes is in `catch_up.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from mcproxy.aggregate.encoding.columns import StoreColumns
from mcproxy.aggregate.resource_version.formats import KarmadaFormat, LongFormat, VersionFormat
from mcproxy.aggregate.resource_version.layout import Versions
from mcproxy.aggregate.resource_version.reader import Expired

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.view.view import MemberView, ViewState
    from mcproxy.aggregate.watch.changes import ChangeQueue, StoreVersions


class WatchedStores:
    """The stores of `members` (names) that can have objects of `namespace`, in one composition of a view. Pure.

    `form` writes the versions; its layout has all these members, and can be an earlier one.
    """

    __slots__ = ("_places", "_size", "columns", "form", "key", "members", "namespace", "state", "stores")

    def __init__(self, state: ViewState, members: frozenset[str], namespace: str, form: VersionFormat) -> None:
        self.key = (members, namespace, type(form), form.layout)
        self.state = state
        self.namespace = namespace
        self.form = form
        self.members: tuple[MemberView, ...] = _watched_members(state, members, namespace)
        layout = form.layout
        places = [(layout.index(member.name), tuple(map(id, member.stores_of(namespace)))) for member in self.members]
        self._places = tuple(places)
        self._size = len(layout)
        self.stores: dict[int, tuple[MemberView, Store]] = {
            id(store): (member, store) for member in self.members for store in member.stores_of(namespace)
        }
        self.columns = StoreColumns([store for _, store in self.stores.values()], state.resource.gvr)

    def vector(self, sent: StoreVersions) -> Versions:
        """Return the vector of a watch that has sent the stores' changes up to these versions."""
        versions = [0] * self._size
        for index, stores in self._places:
            versions[index] = (
                sent.get(stores[0], 0) if len(stores) == 1 else min(sent.get(store, 0) for store in stores)
            )
        return tuple(versions)

    def part(self, sent: StoreVersions, store: Store) -> int:
        """Return the part of the vector for the store's member."""
        layout = self.form.layout
        return self.vector(sent)[layout.index(store.member)] if store.member in layout else 0

    def resource_version(self, sent: StoreVersions) -> bytes:
        """Return the resource version of a bookmark."""
        return self.form.list_version(self.vector(sent)).encode()

    def event_version(self, sent: StoreVersions, store: Store, lead: int) -> bytes:
        """Return the resource version of an event whose object in `store` has the version `lead`.

        If the object is sent as DELETED, its member may have left the layout.
        """
        if store.member not in self.form.layout:
            return self.resource_version(sent)
        return self.form.event(self.vector(sent), self.form.layout.index(store.member), lead).encode()

    def lags(self, sent: StoreVersions, lead: int) -> bool:
        """Whether the version of an event with this lead compares less than that of a bookmark at the same position."""
        return self._size > 1 and self.form.rank > 0 and lead < max(self.vector(sent))


WatchedStoresOf = Callable[["ViewState", frozenset[str], str, VersionFormat], WatchedStores]
"""Returns the watched stores; the same object for equal arguments (`FanOut.watched_stores`)."""


class WatchPosition:
    """The position of one watch in the changes of its view."""

    __slots__ = (
        "_queue",
        "_watched_stores",
        "lags",
        "members",
        "number",
        "pending_resumes",
        "sent",
        "sent_definitions",
        "stores_behind_client",
        "watched",
    )

    def __init__(
        self,
        queue: ChangeQueue,
        watched_stores: WatchedStoresOf,
        members: frozenset[str],
        namespace: str,
        resumed: Mapping[str, int],
    ) -> None:
        """`members` are the members whose objects are sent. `resumed` has the version to resume from for each member; a
        member without a version begins with its present objects.

        Raises Expired (410) for a version of a member that is not watched.
        """
        self._queue = queue
        self._watched_stores = watched_stores
        self.members = members
        form = _first_form(queue.state, resumed.values())
        self.watched = watched_stores(queue.state, members, namespace, form)
        self.number = queue.end
        """The queue number of the next item."""
        self.sent: StoreVersions = {}
        """The version up to which all changes of a store were sent; a store that has not begun has none. It is greater
        than the store's version if the client comes from a replica that is ahead: changes up to it are skipped.
        """
        self.sent_definitions: bytes | None = None
        """The columnDefinitions that were sent to the client (`Encoder`); None before the first line."""
        self.lags = False
        """Whether the version of the last sent event compares less than a bookmark at the same position."""
        self.stores_behind_client: set[int] = set()
        """Stores that have not reached the client's version from another replica."""
        self.pending_resumes: dict[int, int] = {}
        """The resumed versions of stores that are not filled yet. Every sent version contains them, in case the client
        resumes at another replica before the stores are filled.
        """
        watched = {member.name: member for member in self.watched.members}
        for name, version in resumed.items():
            member = watched.get(name)
            if member is None:
                raise Expired(f"the objects of cluster {name} are no longer in what is watched")
            for store in member.stores_of(namespace):
                self.pending_resumes[id(store)] = version

    # -- resource version of the position -----------------------------------------------------------------------

    @property
    def vector_versions(self) -> StoreVersions:
        """The versions in the resource version."""
        return {**self.pending_resumes, **self.sent} if self.pending_resumes else self.sent

    def resource_version(self) -> bytes:
        """Return the resource version at which a watch resumes from this position."""
        return self.watched.resource_version(self.vector_versions)

    def part(self, store: Store) -> int:
        """Return the part of the resource version for the store's member."""
        return self.watched.part(self.vector_versions, store)

    # -- progress -----------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether the queue has changes that the watch has not sent."""
        return self.number < self._queue.end

    @property
    def in_step(self) -> bool:
        """Whether the watch has sent all changes of all stores and is at the end of the queue."""
        sent, present = self.sent, self._queue.versions
        return (
            not self.behind
            and self.watched.state is self._queue.state
            and all(sent.get(store) == present.get(store) for store in self.watched.stores)
        )

    def waits_for(self, member: MemberView) -> bool:
        """Whether the objects of a member have not been sent yet."""
        return any(id(store) not in self.sent for store in member.stores_of(self.watched.namespace))

    def startable(self) -> list[MemberView]:
        """Return the members whose stores are filled and whose objects have not been sent yet."""
        present, sent = self._queue.versions, self.sent
        if self.pending_resumes and self.shows_one and not self.pending_resumes.keys() <= present.keys():
            return []  # only all resumed stores together show which object of a name the client has
        namespace = self.watched.namespace
        return [
            member
            for member in self.watched.members
            if any(id(store) in present and id(store) not in sent for store in member.stores_of(namespace))
        ]

    @property
    def unreached(self) -> dict[Store, int]:
        """The stores that have not reached the client's version, with that version."""
        stores = self.watched.stores
        found = {stores[key][1]: version for key, version in self.pending_resumes.items() if key in stores}
        for key in self.stores_behind_client:
            if (store := stores[key][1]).version < (version := self.sent[key]):
                found[store] = version
        return found

    @property
    def shows_one(self) -> bool:
        """Whether a rule of `conflicts` shows one object of each name."""
        return self.watched.state.conflicts.shows_one_in(self.watched.namespace)

    # -- changes of the position --------------------------------------------------------------------------------

    def advance(self, stores: Iterable[int], version: int) -> None:
        """Record that all changes of these stores up to a version were sent."""
        self.sent = {**self.sent, **dict.fromkeys(stores, version)}

    def adopt_bookmarks(self) -> None:
        """At the end of the queue, adopt the versions from the members' bookmarks.

        Raises Expired (410) as `store_has_passed`.
        """
        present = self._queue.versions
        for key in list(self.stores_behind_client):
            if present.get(key, 0) >= self.sent[key]:
                self.store_has_passed(self.watched.stores[key][1], self.sent[key])
        self.sent = {store: max(version, present.get(store, 0)) for store, version in self.sent.items()}

    def store_has_passed(self, store: Store, version: int) -> None:
        """Handle that a store has reached the client's version, which comes from another replica.

        Raises Expired (410) if the client may have missed events: a list after an outage shows only the present
        objects, not those that were added and removed during the outage.
        """
        store.events_after(version)
        self.stores_behind_client.discard(id(store))

    def forget(self, stores: Collection[int]) -> None:
        """Forget these stores: the watch does not read them any more, or will send their objects anew."""
        self.sent = {store: version for store, version in self.sent.items() if store not in stores}
        self.stores_behind_client.difference_update(stores)
        for store in stores:
            self.pending_resumes.pop(store, None)

    def admit(self, members: frozenset[str]) -> None:
        """Watch these members from now on. Raises Expired (410) if this watch cannot change to them."""
        self.recompose(self.watched.state, members)  # a newer composition arrives in the queue, in order

    def recompose(self, state: ViewState, members: frozenset[str]) -> None:
        """Watch these members in a composition of the view. Raises Expired (410) as `admit`."""
        before = self.watched.state.conflicts
        if state.conflicts != before and (before.shows_one or state.conflicts.shows_one):
            raise Expired("the rules for names that several clusters have are others than when this watch began")
        namespace = self.watched.namespace
        form = _running_form(self.watched.form, state, members, namespace)
        self.members = members
        self.watched = self._watched_stores(state, members, namespace, form)


# -- the version format of a watch ------------------------------------------------------------------------------
#
# Versions of different layouts or formats cannot be compared. So a watch keeps its first format, even if a reload
# changes the setting or the order of members; removed members get zeros. If the format has no room for added members,
# the watch takes the new format if all its versions are greater; otherwise the watch ends with 410.


def _first_form(state: ViewState, resumed: Iterable[int]) -> VersionFormat:
    """Return the version format of a watch that is resumed at these versions of members.

    If one of the versions, which can come from another replica, does not fit the present format, this watch gets the
    long form.
    """
    if all(state.format.fits(version) for version in resumed):
        return state.format
    return LongFormat(state.history.present)


def _running_form(form: VersionFormat, state: ViewState, members: frozenset[str], namespace: str) -> VersionFormat:
    """Return the version format for a running watch of these members in another composition of its view.

    Raises Expired (410) if there is none.
    """
    present = state.history.present
    if isinstance(form, KarmadaFormat):  # a version in Karmada's form has member names, so any member fits
        return form if form.layout == present else KarmadaFormat(present)
    if not form.fits((1 << state.history.bits) - 1):
        raise Expired("the versions of a cluster have become greater than this watch can tell")
    read = _watched_members(state, members, namespace)
    if form.single_number and any(len(member.stores_of(namespace)) > 1 for member in read):
        raise Expired("this watch cannot tell the versions of several namespaces of a cluster")
    if all(member.name in form.layout for member in read):
        return form
    if state.format.rank > form.rank:
        return state.format
    raise Expired("the clusters of this server are others, or in another order, than when this watch began")


def _watched_members(state: ViewState, members: Collection[str], namespace: str) -> tuple[MemberView, ...]:
    """Return the members of a composition that are in `members` and can have objects of `namespace`."""
    return tuple(member for member in state.members if member.name in members and member.stores_of(namespace))
