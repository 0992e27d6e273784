"""One page of a list: its objects, and where the next page begins."""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from mcproxy.aggregate.cache.sequence import CHUNK, key_of
from mcproxy.aggregate.reads.response_body import TURN_SECONDS, next_turn
from mcproxy.aggregate.view.conflicts import DuplicateNames
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.selection import Selection
    from mcproxy.aggregate.view.conflicts import Conflicts
    from mcproxy.aggregate.view.view import MemberView

BATCH = 512
"""Maximum number of objects that are matched at a time."""
BATCH_COST = 16_384
"""Maximum `Selection.cost` of one batch: about two milliseconds."""
Batch = tuple["StoreState", "Sequence[CachedObject]"]
"""Objects of one store, in key order."""


@dataclass(frozen=True, slots=True)
class PageStart:
    """The object after which a page begins; `member` is the index of its member in the layout."""

    member: int
    namespace: str
    name: str


@dataclass(slots=True)
class SelectedPage:
    """The objects of one page, by state; `last` is the page's last object, if more objects follow."""

    items: list[Batch]
    last: tuple[StoreState, CachedObject] | None = None


class Lister:
    """Selects the objects of one list, in the order of members, namespaces and names, in short turns of the reactor."""

    def __init__(
        self,
        clock: IReactorTime,
        states: Sequence[StoreState],
        namespace: str,
        selection: Selection,
        start: PageStart | None = None,
        hidden: Hidden | None = None,
    ) -> None:
        """`namespace` is that of the request, "" for all or none; `hidden` are the objects to leave out."""
        self._clock = clock
        self._states = [state for state in states if start is None or state.member.index >= start.member]
        self._selection = selection
        self._start = start
        self._hidden = hidden
        self._batch = max(1, min(BATCH, BATCH_COST // selection.cost))
        self._namespace = namespace or selection.namespace or ""
        if selection.impossible or (namespace and selection.namespace not in (None, namespace)):
            self._states = []

    def batches(self) -> Iterator[Batch]:
        """Yield the selected objects in batches that each take little time to make; a batch can be empty."""
        hidden = self._hidden
        return self._selected() if hidden is None else self._shown(hidden)

    def _shown(self, hidden: Hidden) -> Iterator[Batch]:
        for state, objects in self._selected():
            yield state, hidden.shown(state, objects)

    def _selected(self) -> Iterator[Batch]:
        selection = self._selection
        for state in self._states:
            if selection.by_label and self._batch >= CHUNK and self._is_whole(state):
                objects = state.snapshot.objects
                for index, chunk in enumerate(objects.chunks):
                    yield state, selection.filter_chunk(chunk, objects.label_runs(index))
                continue
            for batch in self._slices(state):
                yield state, selection.filter(batch) if selection else batch

    def _is_whole(self, state: StoreState) -> bool:
        """Whether all objects of a state are matched."""
        continued = self._start is not None and self._start.member == state.member.index
        return not (continued or self._namespace or self._selection.name)

    def _slices(self, state: StoreState) -> Iterator[Sequence[CachedObject]]:
        start, name, namespace = self._start, self._selection.name, self._namespace
        snapshot = state.snapshot
        if start is not None and start.member == state.member.index:
            objects = snapshot.after(start.namespace, start.name, namespace)
        elif name is not None and (namespace or not state.store.resource.namespaced):
            found = snapshot.get(namespace, name)
            objects = iter((found,) if found is not None else ())
        elif namespace:
            objects = snapshot.range(namespace)
        else:
            for chunk in snapshot.objects.chunks:
                if len(chunk) <= self._batch:
                    yield chunk
                else:
                    for place in range(0, len(chunk), self._batch):
                        yield chunk[place : place + self._batch]
            return
        while batch := list(islice(objects, self._batch)):
            yield batch

    def count(self) -> int:
        """Return the number of objects in the list, whether selected or not."""
        start, total = self._start, 0
        for state in self._states:
            if start is not None and start.member == state.member.index:
                total += state.snapshot.count_after(start.namespace, start.name, self._namespace)
                total -= self._hidden_in(state, f"{start.namespace}/{start.name}")
            else:
                total += state.snapshot.count(self._namespace) - self._hidden_in(state)
        return total

    def _hidden_in(self, state: StoreState, after: str = "") -> int:
        return self._hidden.count(state, self._namespace, after) if self._hidden is not None else 0

    async def page(self, limit: int) -> SelectedPage:
        """Return the first `limit` objects."""
        page = SelectedPage([])
        room = limit
        began = self._clock.seconds()
        for state, found in self.batches():
            if len(found) > room:
                if room:
                    page.items.append((state, found[:room]))
                state, objects = page.items[-1]
                page.last = state, objects[-1]
                return page
            if found:
                page.items.append((state, found))
                room -= len(found)
            if self._clock.seconds() - began > TURN_SECONDS:
                await next_turn(self._clock)
                began = self._clock.seconds()
        return page


# -- hidden objects -------------------------------------------------------------------------------------------
#
# The states from which a list is made, and the objects in them that the list hides.
#
# If several members have an object of the same name, a rule of `conflicts` can show only one; the others are hidden.
# They are found in the states of the list, so all its pages agree, even if objects change. They are found among all
# objects, whether selected or not, so that a name refers to the same object with any selectors.


_BEHIND_SLASH = "0"  # the character after the slash


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of one store, and its member."""

    member: MemberView
    snapshot: Snapshot

    @property
    def store(self) -> Store:
        return self.snapshot.store


class Hidden:
    """The keys of hidden objects in each of the states."""

    __slots__ = ("_keys", "names")

    def __init__(
        self,
        states: Sequence[StoreState],
        conflicts: Conflicts,
        duplicates: DuplicateNames,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        """`states` are the states of `duplicates`, in member order; `names` has namespace and name of the list, each ""
        for all."""
        self.names = names
        found: dict[tuple[str, str], list[str]] = {}
        for key, places in duplicates.places.items():
            chosen = conflicts.shown(key.partition("/")[0])
            if chosen is None:
                continue
            shown = next((place for place in places if states[place].member.name == chosen), places[0])
            for place in places:
                if place != shown:
                    found.setdefault(_store_of(states[place]), []).append(key)
        self._keys = {state: sorted(keys) for state, keys in found.items()}

    def shown(self, state: StoreState, objects: Sequence[CachedObject]) -> Sequence[CachedObject]:
        """Return the objects that are not hidden; `objects` are of one state, in key order."""
        keys = self._keys.get(_store_of(state))
        if not keys or not objects:
            return objects
        start, end = bisect_left(keys, key_of(objects[0])), bisect_right(keys, key_of(objects[-1]))
        if start == end:
            return objects
        hidden = frozenset(keys[start:end])
        return [obj for obj in objects if key_of(obj) not in hidden]

    def count(self, state: StoreState, namespace: str, after: str = "") -> int:
        """Return the number of hidden keys of a state, in a namespace ("": all) and after the key `after`."""
        keys = self._keys.get(_store_of(state), ())
        start = max(bisect_right(keys, after), bisect_left(keys, f"{namespace}/") if namespace else 0)
        end = bisect_left(keys, namespace + _BEHIND_SLASH) if namespace else len(keys)
        return max(0, end - start)


def _store_of(state: StoreState) -> tuple[str, str]:
    return state.member.name, state.store.namespace


async def hidden_of(
    clock: IReactorTime, conflicts: Conflicts, states: Sequence[StoreState], namespace: str, name: str
) -> Hidden | None:
    """Return the hidden objects of these states; None if no rule hides objects.

    `namespace` is that of the list, "" for all or none; `name` is that of the only object, "" if there can be several.
    The search takes linear time, in short turns of the reactor.
    """
    if not conflicts.shows_one_in(namespace) or len({state.member.name for state in states}) < 2:
        return None
    namespaced = states[0].store.resource.namespaced
    duplicates = DuplicateNames(
        [state.snapshot for state in states], namespace, name if namespace or not namespaced else ""
    )
    began = clock.seconds()
    while duplicates.step():
        if clock.seconds() - began > TURN_SECONDS:
            await next_turn(clock)
            began = clock.seconds()
    return Hidden(states, conflicts, duplicates, (namespace, name))


# -- continue tokens ------------------------------------------------------------------------------------------
#
# Continue tokens of an aggregate's lists. Pure.
#
# A token is compact JSON in base64url without padding. It has the list's resource version (every member's version), the
# member and the key of the last page's last object, and digests of the list's subject, of the members in their order
# and of the members' objects at these versions. A token is no secret and grants nothing: a client gets only objects
# that its own list would have after this object. Source, also of the messages: apiserver `storage/continue.go`.


TOKEN_VERSION = "mcproxy.io/v1"
INCONSISTENT = "-1"
"""`rv` of a token that continues with the present state, as in Kubernetes."""
MAX_TOKEN_LENGTH = 128 * 1024
_INVALID_TOKEN = "invalid continue token: continue key is not valid"
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9_-]")


class ContinueToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A list continues after the object `key` (namespace/name) of `cluster`; `listed` is a `listed_digest`."""

    version: str = msgspec.field(name="v")
    resource_version: str = msgspec.field(name="rv")
    cluster: str
    key: str = msgspec.field(name="continue")
    listed: str = msgspec.field(name="of")
    stores: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Versions by member and namespace, where a member's stores (one for each namespace in scope) differ."""
    order: str = ""
    """The `layout_digest` of the members in the order of the pages; "" in tokens of earlier program versions."""
    state: str = ""
    """The `state_digest` of the states from which the pages come; "" in tokens of earlier program versions."""

    @property
    def last(self) -> tuple[str, str]:
        """Namespace and name of the previous page's last object."""
        namespace, _, name = self.key.partition("/")
        return namespace, name

    def encode(self) -> str:
        """Return the token in the form that clients send."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()

    def inconsistent(self) -> ContinueToken:
        """Return a token that continues after the same object, but with the present state."""
        return msgspec.structs.replace(self, resource_version=INCONSISTENT, stores={}, state="")

    def at_start_of(self, cluster: str) -> ContinueToken:
        """Return a token that continues with the first object of a member."""
        return msgspec.structs.replace(self, cluster=cluster, key="/")


class _TokenVersion(msgspec.Struct):
    v: str = ""


def decode_token(text: str) -> ContinueToken:
    """Read a token. Raises StatusError 400."""
    if found := _NOT_BASE64.search(text):
        raise StatusError(400, f"{_INVALID_TOKEN}: illegal base64 data at input byte {found.start()}")
    if len(text) > MAX_TOKEN_LENGTH:
        raise StatusError(400, f"{_INVALID_TOKEN}: it is too long")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise StatusError(400, f"{_INVALID_TOKEN}: illegal base64 data at input byte {len(text)}") from None
    try:
        version = msgspec.json.decode(data, type=_TokenVersion).v
        if version != TOKEN_VERSION:
            raise StatusError(400, f"{_INVALID_TOKEN}: server does not recognize this encoded version {version[:64]}")
        token = msgspec.json.decode(data, type=ContinueToken)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise StatusError(400, f"{_INVALID_TOKEN}: it does not hold what a token holds") from None
    if "/" not in token.key:
        raise StatusError(400, f"{_INVALID_TOKEN}: it names no object")
    return token


def layout_digest(names: Iterable[str]) -> str:
    """Return a short digest of members in their order."""
    return sha256(",".join(names).encode()).hexdigest()[:8]


def state_digest(stores: Iterable[tuple[str, str, int]]) -> str:
    """Return a short digest of states of stores: member, namespace, `ObjectSequence.fingerprint` of each.

    A version alone does not identify a state: a member that was restored from a backup has the same versions again with
    other objects. Every replica computes the same digest for the same objects.
    """
    lines = "\n".join(f"{member}\0{namespace}\0{fingerprint}" for member, namespace, fingerprint in stores)
    return sha256(lines.encode()).hexdigest()[:16]


def listed_digest(*parts: str) -> str:
    """Return a short digest of a list's subject: resource, namespace and selectors."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
