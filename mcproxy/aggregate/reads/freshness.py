"""How fresh an answer from cache must be, which members have to be waited for, and which are left out.

Source: Kubernetes API concepts, "Resource versions"; KEP-2340 (consistent reads from cache). Waits are bounded: a
member that does not answer in time counts as unavailable for this request, and holds no other member back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from twisted.internet.defer import CancelledError, Deferred, FirstError, gatherResults
from twisted.logger import Logger

from mcproxy.aggregate.warnings import left_out_text, never_synced_text, unavailable_text
from mcproxy.config.model.aggregates import Unavailable
from mcproxy.kube.errors import too_large_resource_version
from mcproxy.kube.status import retry_after

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.view.view import MemberView, View

log = Logger()
Probe = Callable[["Store", float], Awaitable[int]]
"""`Reflectors.probe`: the member's version now, or an exception after at most that many seconds."""
WAIT = 3.0
"""Seconds that a request waits for a cache, as a kube-apiserver does (`blockTimeout`)."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """The settings of an aggregate that decide what is fresh enough; times in seconds."""

    max_staleness: float = 0.0
    initial_sync_timeout: float = 10.0
    unavailable: Unavailable = Unavailable.STALE


@dataclass(slots=True)
class Readable:
    """The members whose objects an answer has, in the aggregate's order, and what to tell about the others."""

    members: list[MemberView] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What waiting for one member came to; `since`: unavailable since then; `too_old`: its cache did not reach the
    version that was asked for."""

    member: MemberView
    since: float | None = None
    never: bool = False
    too_old: bool = False


class FreshnessWaiter:
    """Waits for members' caches, for all requests to one aggregate."""

    def __init__(self, clock: IReactorTime, probe: Probe, freshness: Freshness) -> None:
        self._clock = clock
        self._probe = probe
        self.freshness = freshness
        self._first_seen: WeakKeyDictionary[Store, float] = WeakKeyDictionary()

    async def current(self, view: View, allowed: Sequence[str], namespace: str) -> Readable:
        """Wait until the caches are at least as new as now (resourceVersion ""). Raises StatusError 503."""
        return await self._gather(view, allowed, namespace, self._wait_current) or Readable()

    async def cached(self, view: View, allowed: Sequence[str], namespace: str) -> Readable:
        """Take what is cached (resourceVersion "0"), once it is there at all. Raises StatusError 503."""
        return await self._gather(view, allowed, namespace, self._wait_synced) or Readable()

    async def at_least(
        self, view: View, allowed: Sequence[str], namespace: str, wanted: dict[str, int], text: str
    ) -> Readable:
        """Wait until the caches have reached versions, by member. Raises StatusError 503, or 504 if they have not.

        `text` is the resource version as the client wrote it.
        """

        async def wait(member: MemberView, namespace: str) -> _Outcome:
            return await self._wait_version(member, namespace, wanted.get(member.name, 0))

        readable = await self._gather(view, allowed, namespace, wait)
        if readable is None:
            raise too_large_resource_version(text, view.format.whole(view.versions_of(allowed, namespace)))
        return readable

    async def _gather(
        self,
        view: View,
        allowed: Sequence[str],
        namespace: str,
        wait: Callable[[MemberView, str], Awaitable[_Outcome]],
    ) -> Readable | None:
        """Wait for all members at once. None: one of them did not reach the version that was asked for."""
        members = [member for member in view.members if member.name in allowed and member.covers(namespace)]
        if len(members) == 1:
            outcomes = [await wait(members[0], namespace)]
        else:
            waiting = [Deferred.fromCoroutine(_coroutine(wait(member, namespace))) for member in members]
            try:
                outcomes = await gatherResults(waiting, consumeErrors=True)
            except FirstError as first:  # the client has gone: CancelledError
                error = first.subFailure.value
                assert error is not None
                raise error from None
        return self._readable(view, allowed, outcomes)

    def _readable(self, view: View, allowed: Sequence[str], outcomes: Sequence[_Outcome]) -> Readable | None:
        """Apply `unavailable`."""
        policy = self.freshness.unavailable
        found = Readable()
        for outcome in outcomes:
            if outcome.too_old:
                return None
            name = outcome.member.name
            if outcome.since is None and not outcome.never:
                found.members.append(outcome.member)
                continue
            if policy is Unavailable.FAIL:
                raise retry_after(503, f"cluster {name} is unavailable", 1, name=name)
            if outcome.never:
                found.warnings.append(never_synced_text(name))
                continue
            stale = policy is Unavailable.STALE
            found.warnings.append(unavailable_text(name, outcome.since or 0.0, stale=stale))
            if stale:
                found.members.append(outcome.member)
        for member in view.undiscovered:
            if member.name in allowed:
                if policy is Unavailable.FAIL:
                    raise retry_after(503, f"cluster {member.name} is unavailable", 1, name=member.name)
                found.warnings.append(left_out_text(member.name, "it was never reached"))
        if outcomes and not found.members:
            # An empty list would tell a controller that every object is gone.
            raise retry_after(503, "no cluster of this resource is available: " + "; ".join(found.warnings), 1)
        return found

    # -- one member -------------------------------------------------------------------------------------------

    async def _wait_synced(self, member: MemberView, namespace: str) -> _Outcome:
        """Wait for the first list, at most `initialSyncTimeout` after the store was first seen."""
        now = self._clock.seconds()
        for store in member.stores:
            if store.synced:
                continue
            started = self._first_seen.setdefault(store, now)
            left = started + self.freshness.initial_sync_timeout - self._clock.seconds()
            if left <= 0 or not await store.when_synced(left):
                return _Outcome(member, never=True)
        return _Outcome(member, since=member.unavailable_since)

    async def _wait_current(self, member: MemberView, namespace: str) -> _Outcome:
        outcome = await self._wait_synced(member, namespace)
        if outcome.never or outcome.since is not None:
            return outcome
        start = self._clock.seconds()
        for store in member.stores_of(namespace):
            if self.freshness.max_staleness > 0 and start - store.last_sign < self.freshness.max_staleness:
                continue
            if not await self._reach_present(store, start + WAIT):
                since = store.unavailable_since
                return _Outcome(member, since=start if since is None else since)
        return outcome

    async def _reach_present(self, store: Store, deadline: float) -> bool:
        try:
            version = await self._probe(store, max(deadline - self._clock.seconds(), 0.0))
        except CancelledError:
            raise  # the client has gone
        except Exception as error:
            log.debug("a member does not answer", event="member_not_answering", cluster=store.member, cause=str(error))
            return False
        return version <= store.version or await store.when_version(version, deadline - self._clock.seconds())

    async def _wait_version(self, member: MemberView, namespace: str, version: int) -> _Outcome:
        outcome = await self._wait_synced(member, namespace)
        if outcome.never and version:
            return _Outcome(member, too_old=True)
        deadline = self._clock.seconds() + WAIT
        for store in member.stores_of(namespace):
            if version > store.version:
                left = deadline - self._clock.seconds()
                if left <= 0 or not await store.when_version(version, left):
                    return _Outcome(member, too_old=True)
        return outcome


async def _coroutine(waiting: Awaitable[_Outcome]) -> _Outcome:
    return await waiting
