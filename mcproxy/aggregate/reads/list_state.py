"""Finds the state for a list according to resourceVersion, resourceVersionMatch and continue.

Source: Kubernetes API concepts, "Resource versions"; apiserver `storage/cacher` and `storage/etcd3` (GetList).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mcproxy.aggregate.freshness import FreshnessWaiter, NotHeld, Readable, check_parts, read_version
from mcproxy.aggregate.reads.continue_token import INCONSISTENT, ContinueToken, layout_digest, state_digest
from mcproxy.aggregate.reads.list_page import StoreState
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.warnings import left_out_text
from mcproxy.kube.list_options import ListOptions
from mcproxy.kube.status import StatusError, expired, too_large_resource_version

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime

    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.reads.list_page import Hidden
    from mcproxy.aggregate.request import LeftOut
    from mcproxy.aggregate.view.view import MemberView, View

_CONTINUE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
_LIST_TOO_OLD = "The resourceVersion for the provided list is too old."


@dataclass(frozen=True, slots=True)
class ListState:
    """The input of a list: the states of stores in the order of its items, and its resource version."""

    stores: tuple[StoreState, ...]
    resource_version: str
    warnings: tuple[str, ...]
    away: tuple[str, ...] = ()
    """Members whose present state is not known."""

    def store_versions(self) -> dict[str, dict[str, int]]:
        """Return the versions by member and namespace, for members whose stores have different versions."""
        found: dict[str, dict[str, int]] = {}
        for each in self.stores:
            found.setdefault(each.member.name, {})[each.store.namespace] = each.snapshot.version
        return {member: versions for member, versions in found.items() if len(set(versions.values())) > 1}

    def digest(self) -> str:
        """Return a digest of the objects, which distinguishes states with the same versions (`state_digest`)."""
        return state_digest(
            (each.member.name, each.store.namespace, each.snapshot.objects.fingerprint) for each in self.stores
        )


class ListStates:
    """Finds the states of lists, and holds the states for further pages."""

    def __init__(self, waiter: FreshnessWaiter, held: HeldSnapshots) -> None:
        self._waiter = waiter
        self._held = held

    def hold(self, state: ListState, hidden: Hidden | None) -> None:
        """Hold a state for the next page, with its hidden objects."""
        self._held.hold([each.snapshot for each in state.stores], hidden)

    def hidden(self, state: ListState, namespace: str, name: str) -> Hidden | None:
        """Return the hidden objects of a held state, if they are known; the arguments are those of `hidden_of`."""
        return self._held.hidden([each.snapshot for each in state.stores], (namespace, name))

    async def fresh(
        self,
        view: View,
        allowed: Sequence[str],
        namespace: str,
        resource_version: str,
        name: str = "",
        left_out: Sequence[LeftOut] = (),
    ) -> Readable:
        """Wait until the caches are as fresh as a resourceVersion parameter without resourceVersionMatch requires."""
        if resource_version == "0":
            return await self._waiter.cached(view, allowed, namespace)
        if not resource_version:
            return await self._waiter.current(view, allowed, namespace)
        versions = self._read_version(view, allowed, resource_version, namespace, name, left_out)
        return await self._waiter.at_least(view, allowed, namespace, versions, resource_version)

    def _read_version(
        self, view: View, allowed: Sequence[str], text: str, namespace: str, name: str, left_out: Sequence[LeftOut]
    ) -> dict[str, int]:
        """Read a version. The answer must not depend on whether members outside `allowed` have the object."""
        owner = view.owner(allowed, namespace, name) if name else None
        return read_version(view, text, owner, name, namespace, left_out) or {}

    async def find(
        self,
        view: View,
        allowed: Sequence[str],
        namespace: str,
        options: ListOptions,
        name: str,
        token: ContinueToken | None,
        left_out: Sequence[LeftOut] = (),
    ) -> ListState:
        """Return the state for a list. Raises StatusError 400, 410, 503, 504.

        `name` is that of the only listed object, "" if there can be several. `left_out` are the members that do not
        allow the list.
        """
        text = options.resource_version
        if token is not None and not _keeps_order(view, token):
            raise expired(_CONTINUE_TOO_OLD)
        if token is not None and token.resource_version != INCONSISTENT:
            return await self._state_of_token(view, allowed, namespace, token, left_out)
        if token is not None:
            if token.cluster not in view.layout:
                raise _token_expired(view, token)
            text = ""
        versions = None if text in ("", "0") else self._read_version(view, allowed, text, namespace, name, left_out)
        if versions is not None:
            check_parts(view, versions, namespace, left_out)
        if versions is not None and (options.match == "Exact" or (options.limit and not options.match)):
            # A limit without resourceVersionMatch means Exact, as in Kubernetes (and in its recorded answers).
            return await self._exact(view, allowed, namespace, versions, text)
        if versions is not None:
            readable = await self._waiter.at_least(view, allowed, namespace, versions, text)
        else:
            readable = await self.fresh(view, allowed, namespace, text)
        states = [
            StoreState(member, store.snapshot()) for member in readable.members for store in _ordered(member, namespace)
        ]
        return _state_of(view, states, readable)

    async def _exact(
        self, view: View, allowed: Sequence[str], namespace: str, versions: dict[str, int], text: str
    ) -> ListState:
        """Return the state at exactly these versions. Raises StatusError 410, 504."""
        readable = await self._waiter.at_least(view, allowed, namespace, versions, text)
        _check_complete(view, readable, namespace, versions)
        try:
            return self._state_at(view, readable, namespace, versions)
        except Expired:
            raise expired(_LIST_TOO_OLD) from None

    async def _state_of_token(
        self, view: View, allowed: Sequence[str], namespace: str, token: ContinueToken, left_out: Sequence[LeftOut]
    ) -> ListState:
        """Return the state of a list's earlier pages. Raises StatusError 400, 410, 503, 504."""
        try:
            versions = view.reader.read(token.resource_version) or {}
            if token.cluster not in view.layout:
                raise Expired
            check_parts(view, versions, namespace, left_out)
            text = token.resource_version
            readable = await self._waiter.at_least(view, allowed, namespace, versions, text, token.stores)
            _check_complete(view, readable, namespace, versions)
            state = self._state_at(view, readable, namespace, versions, token)
            if token.state and token.state != state.digest():
                # Since the earlier pages, which may come from another replica, a member was restored from a backup.
                # Some objects of these pages no longer exist, so the list cannot continue.
                raise expired(_CONTINUE_TOO_OLD)
            # All pages have the same version text, even if a reload has changed the form of versions.
            return replace(state, resource_version=token.resource_version)
        except (Expired, NotHeld):
            raise _token_expired(view, token) from None
        except StatusError as error:
            if error.code == 400:
                raise StatusError(400, f"invalid continue token: {error.message}") from None
            raise

    def _state_at(
        self,
        view: View,
        readable: Readable,
        namespace: str,
        versions: Mapping[str, int],
        token: ContinueToken | None = None,
    ) -> ListState:
        """Return the states of members at their versions. Raises Expired, or StatusError 504 for a future version.

        A member without a version is shown in its present state. On a page after the first (`token`) such a member is
        left out, since its objects can belong to earlier pages.
        """
        states = []
        texts = list(readable.warnings)
        for member in readable.members:
            version = versions.get(member.name, 0)
            if not version and token is not None:
                texts.append(left_out_text(member.name, "the list began without it"))
                continue
            stores = _ordered(member, namespace)
            if not version:
                states += [StoreState(member, store.snapshot()) for store in stores]
                continue
            for store in stores:
                by_store = {} if token is None else token.stores.get(member.name, {})
                wanted_version = by_store.get(store.namespace, version)
                snapshot = self._held.at(store, wanted_version)
                if snapshot.version < wanted_version:
                    wanted = view.format.object(member.index, wanted_version)
                    raise too_large_resource_version(wanted, view.format.object(member.index, snapshot.version))
                states.append(StoreState(member, snapshot))
        whole = _versions_of(view, states)
        for each in states:
            whole[each.member.index] = versions.get(each.member.name, 0) or whole[each.member.index]
        return ListState(tuple(states), view.format.list_version(tuple(whole)), tuple(texts), tuple(readable.away))


def _state_of(view: View, states: Sequence[StoreState], readable: Readable) -> ListState:
    """Return the state of a list that has the present objects."""
    whole = view.format.list_version(tuple(_versions_of(view, states)))
    return ListState(tuple(states), whole, tuple(readable.warnings), tuple(readable.away))


def _versions_of(view: View, states: Sequence[StoreState]) -> list[int]:
    """Return the version vector of a state: a member's version is the minimum of its stores' versions, or 0 if the
    member is left out.
    """
    versions = [0] * len(view.layout)
    for each in states:
        known = versions[each.member.index]
        versions[each.member.index] = min(known, each.snapshot.version) if known else each.snapshot.version
    return versions


def _ordered(member: MemberView, namespace: str) -> list[Store]:
    """Return the stores in the order of their objects' keys."""
    return sorted(member.stores_of(namespace), key=lambda store: f"{store.namespace}/")


def _check_complete(view: View, readable: Readable, namespace: str, versions: Mapping[str, int]) -> None:
    """Raise Expired if a member that has a part in the version cannot be read: its objects would be missing."""
    shown = {member.name for member in readable.members}
    for name, version in versions.items():
        member = view.member(name)
        if version and name not in shown and (member is None or member.covers(namespace)):
            raise Expired


def _keeps_order(view: View, token: ContinueToken) -> bool:
    """Return whether the present members have the same order as for the earlier pages.

    In another order, the objects after the end of the previous page are not the remaining objects, so a token cannot
    continue with the present state.
    """
    if not token.order:
        return True
    layout = next((each for each in view.state.history if layout_digest(each.names) == token.order), None)
    if layout is None:
        return False
    kept = [name for name in layout.names if name in view.layout]
    return kept == sorted(kept, key=view.layout.index)


def _token_expired(view: View, token: ContinueToken) -> StatusError:
    """Return the 410 for a state that is no longer held, with a token that continues with the present state.

    If the member of the previous page's last object was removed, the token continues with the first object of the next
    member. There is no token if no next member is known.
    """
    place = token.inconsistent()
    if token.cluster not in view.layout:
        layout = next((layout for layout in view.state.history if token.cluster in layout), None)
        behind = () if layout is None else layout.names[layout.index(token.cluster) + 1 :]
        following = next((name for name in behind if name in view.layout), None)
        if following is None:
            return expired(_CONTINUE_TOO_OLD)
        place = place.at_start_of(following)
    return expired(_CONTINUE_TOO_OLD, continue_token=place.encode())


# -- states that are held for further pages -------------------------------------------------------------------
#
# The states of lists that are held for further pages.
#
# All pages of a list come from one state, which is held for a while after each page. After that, the state can still be
# computed from the stores' event logs, here or at another replica, if they reach back to it.


HOLD_SECONDS = 120.0
"""Seconds for which a state is held after its last use; it keeps objects in memory that have changed since."""
MAX_HELD = 256
"""Maximum number of held states of stores, over all lists of an aggregate; the oldest is dropped first."""
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Maximum bytes of objects that only held states keep in memory. The store with the most such bytes loses its oldest
state first.
"""
_EXPIRY_INTERVAL = 1.0  # seconds between two checks of the bounds
_MAX_HIDDEN = 16  # lists with the same first state, of users who may read different members


class _Held(NamedTuple):
    snapshot: Snapshot
    until: float
    replaced: int
    """`Store.replaced` at the time when this was the store's present state, or a smaller number as a safe estimate."""
    hidden: dict[Hashable, Hidden]
    """The hidden objects of lists whose first state is this one, by the lists' names and all their states."""


class HeldSnapshots:
    """States of stores by (store, version), for further pages; bounded in number, in time and in bytes."""

    def __init__(
        self, clock: IReactorTime, *, seconds: float = HOLD_SECONDS, number: int = MAX_HELD, size: int = MAX_HELD_BYTES
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._number = number
        self._size = size
        self._held: OrderedDict[tuple[int, int, int], _Held] = OrderedDict()
        self._timer: IDelayedCall | None = None

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, snapshots: Sequence[Snapshot], hidden: Hidden | None = None) -> None:
        """Hold states for the next page of their list, with their hidden objects."""
        until = self._clock.seconds() + self._seconds
        for snapshot in snapshots:
            key = _held_key(snapshot.store, snapshot.version)
            known = self._held.get(key)
            replaced = _replaced(snapshot) if known is None else known.replaced
            self._held[key] = _Held(snapshot, until, replaced, {} if known is None else known.hidden)
            self._held.move_to_end(key)
        if (
            hidden is not None
            and (first := self._held.get(_held_key(snapshots[0].store, snapshots[0].version))) is not None
        ):
            if len(first.hidden) >= _MAX_HIDDEN:
                first.hidden.clear()
            first.hidden[hidden.names, *map(_identity, snapshots)] = hidden
        while len(self._held) > self._number:
            self._held.popitem(last=False)
        self._wait()

    def at(self, store: Store, version: int) -> Snapshot:
        """Return the state of a store at a version. Raises Expired if it is neither held nor in the event log.

        A state from before the store was cleared is never returned: the member's name can belong to another cluster
        now.
        """
        held = self._held.get(_held_key(store, version))
        if held is not None:
            return held.snapshot
        return store.snapshot_at(version)

    def hidden(self, snapshots: Sequence[Snapshot], names: tuple[str, str]) -> Hidden | None:
        """Return the hidden objects held with exactly these states, for a namespace and name as in `Hidden.names`."""
        first = self._held.get(_held_key(snapshots[0].store, snapshots[0].version)) if snapshots else None
        return None if first is None else first.hidden.get((names, *map(_identity, snapshots)))

    @property
    def size(self) -> int:
        """An upper bound of the bytes of objects that only held states keep in memory."""
        return sum(self._sizes().values())

    def _sizes(self) -> dict[Store, int]:
        """Return the bound of `size` for each store: the bytes of all objects replaced since its oldest held state."""
        found: dict[Store, int] = {}
        for held in self._held.values():
            store = held.snapshot.store
            found[store] = max(found.get(store, 0), store.replaced - held.replaced)
        return found

    def _bound(self) -> None:
        while len(self._held) and sum((sizes := self._sizes()).values()) > self._size:
            store = max(sizes, key=sizes.__getitem__)
            of_store = [key for key, held in self._held.items() if held.snapshot.store is store]
            del self._held[min(of_store, key=lambda key: self._held[key].replaced)]

    def clear(self) -> None:
        """Drop all held states."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        if self._timer is None and self._held:
            first = next(iter(self._held.values())).until
            delay = min(max(first - self._clock.seconds(), 0.0), _EXPIRY_INTERVAL)
            self._timer = self._clock.callLater(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        while self._held and next(iter(self._held.values())).until <= now:
            self._held.popitem(last=False)
        self._bound()
        self._wait()


def _replaced(snapshot: Snapshot) -> int:
    """Return `_Held.replaced`. An older state was computed from the event log, which holds at least its objects."""
    store = snapshot.store
    present = snapshot.version >= store.snapshot().version
    return store.replaced if present else store.replaced - store.events_size


def _held_key(store: Store, version: int) -> tuple[int, int, int]:
    return id(store), store.generation, version  # an entry keeps its store, so the id is not used again


def _identity(snapshot: Snapshot) -> Hashable:
    """Return a state's identity without keeping the state in memory."""
    store = snapshot.store
    return store.member, store.namespace, store.generation, snapshot.version
