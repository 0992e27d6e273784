"""The state that a list shows: as fresh, as old or as exact as its options ask for.

Source: Kubernetes API concepts, "Resource versions"; apiserver `storage/cacher` and `storage/etcd3` (GetList).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from mcproxy.aggregate.reads.continue_token import INCONSISTENT, ContinueToken
from mcproxy.aggregate.reads.freshness import FreshnessWaiter, Readable
from mcproxy.aggregate.reads.snapshot import HeldSnapshots, Part
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.kube.errors import expired, too_large_resource_version
from mcproxy.kube.list_options import ListOptions
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
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
    """What a list is made from: the states of stores in the order of its items, and its resource version."""

    parts: tuple[Part, ...]
    resource_version: str
    warnings: tuple[str, ...]

    def store_versions(self) -> dict[str, dict[str, int]]:
        """Return the versions by member and namespace, of the members whose stores' versions differ."""
        found: dict[str, dict[str, int]] = {}
        for part in self.parts:
            found.setdefault(part.member.name, {})[part.store.namespace] = part.snapshot.version
        return {member: versions for member, versions in found.items() if len(set(versions.values())) > 1}


class ListStates:
    """Finds the states of lists, and holds those that further pages come from."""

    def __init__(self, waiter: FreshnessWaiter, held: HeldSnapshots) -> None:
        self._waiter = waiter
        self._held = held

    def hold(self, state: ListState) -> None:
        """Hold a state for the next page."""
        self._held.hold([part.snapshot for part in state.parts])

    async def fresh(
        self, view: View, allowed: Sequence[str], namespace: str, resource_version: str, name: str = ""
    ) -> Readable:
        """Wait as a resourceVersion parameter without a match asks for."""
        if resource_version == "0":
            return await self._waiter.cached(view, allowed, namespace)
        if not resource_version:
            return await self._waiter.current(view, allowed, namespace)
        versions = self._read_version(view, allowed, resource_version, namespace, name)
        return await self._waiter.at_least(view, allowed, namespace, versions, resource_version)

    def _read_version(self, view: View, allowed: Sequence[str], text: str, namespace: str, name: str) -> dict[str, int]:
        """Read a version; whether members that are not `allowed` have the object must not change the answer."""
        owner = None
        if name:
            holders = [
                member.name
                for member in view.members
                if member.name in allowed
                and any(store.get(namespace, name) is not None for store in member.stores_of(namespace))
            ]
            owner = holders[0] if holders else None
        return view.reader.read(text, owner) or {}

    async def find(
        self,
        view: View,
        allowed: Sequence[str],
        namespace: str,
        options: ListOptions,
        name: str,
        token: ContinueToken | None,
    ) -> ListState:
        """Return the state that a list is to show. Raises StatusError 400, 410, 503, 504.

        `name` is that of the only object that is listed, "" if there may be several.
        """
        text = options.resource_version
        if token is not None and token.resource_version != INCONSISTENT:
            return await self._state_of_token(view, allowed, namespace, token)
        if token is not None:
            _known_member(view, token)
            text = ""
        versions = None if text in ("", "0") else self._read_version(view, allowed, text, namespace, name)
        if versions is not None and (options.match == "Exact" or (options.limit and not options.match)):
            # A limit without a match means Exact, as in Kubernetes (and in its recorded answers).
            return await self._exact(view, allowed, namespace, versions, text)
        if versions is not None:
            readable = await self._waiter.at_least(view, allowed, namespace, versions, text)
        else:
            readable = await self.fresh(view, allowed, namespace, text)
        parts = [Part(member, store.snapshot()) for member in readable.members for store in _ordered(member, namespace)]
        return _state_of(view, parts, readable.warnings)

    async def _exact(
        self, view: View, allowed: Sequence[str], namespace: str, versions: dict[str, int], text: str
    ) -> ListState:
        """Return the state at exactly these versions. Raises StatusError 410, 504."""
        readable = await self._waiter.at_least(view, allowed, namespace, versions, text)
        try:
            return self._state_at(view, readable, namespace, versions)
        except Expired:
            raise expired(_LIST_TOO_OLD) from None

    async def _state_of_token(
        self, view: View, allowed: Sequence[str], namespace: str, token: ContinueToken
    ) -> ListState:
        """Return the state that a list's earlier pages came from. Raises StatusError 410."""
        try:
            versions = view.reader.read(token.resource_version)
        except StatusError as error:
            if error.code == 410:
                raise expired(_CONTINUE_TOO_OLD) from None  # other members: there is no place to go on from
            raise StatusError(400, f"invalid continue token: {error.message}") from None
        _known_member(view, token)
        readable = await self._waiter.cached(view, allowed, namespace)
        try:
            return self._state_at(view, readable, namespace, versions or {}, token.stores)
        except Expired:
            raise expired(_CONTINUE_TOO_OLD, continue_token=token.inconsistent().encode()) from None

    def _state_at(
        self,
        view: View,
        readable: Readable,
        namespace: str,
        versions: dict[str, int],
        by_store: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> ListState:
        """Return the states of the members that `versions` has. Raises Expired, or StatusError 504 for the future.

        `by_store` has versions by member and namespace, of stores that were ahead of their member's version.
        """
        parts = []
        for member in readable.members:
            version = versions.get(member.name, 0)
            if not version:
                continue
            for store in _ordered(member, namespace):
                wanted_version = by_store.get(member.name, {}).get(store.namespace, version)
                snapshot = self._held.at(store, wanted_version)
                if snapshot.version < wanted_version:
                    wanted = view.format.object(member.index, wanted_version)
                    raise too_large_resource_version(wanted, view.format.object(member.index, snapshot.version))
                parts.append(Part(member, snapshot))
        named = {part.member.name for part in parts}
        whole = [versions.get(name, 0) if name in named else 0 for name in view.layout.names]
        return ListState(tuple(parts), view.format.whole(tuple(whole)), tuple(readable.warnings))


def _state_of(view: View, parts: Sequence[Part], texts: Sequence[str]) -> ListState:
    """Return the present state; a member's version is the least of its stores', 0 for one that is left out."""
    versions = [0] * len(view.layout)
    for part in parts:
        known = versions[part.member.index]
        versions[part.member.index] = min(known, part.snapshot.version) if known else part.snapshot.version
    return ListState(tuple(parts), view.format.whole(tuple(versions)), tuple(texts))


def _ordered(member: MemberView, namespace: str) -> list[Store]:
    """Return the stores in the order of their objects' keys."""
    return sorted(member.stores_of(namespace), key=lambda store: f"{store.namespace}/")


def _known_member(view: View, token: ContinueToken) -> None:
    """Raise 410 for a token whose list ended in a member that the aggregate no longer has."""
    if token.cluster not in view.layout:
        raise expired(_CONTINUE_TOO_OLD)
