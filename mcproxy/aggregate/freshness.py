"""The freshness of answers from caches: waits until members' caches are fresh enough, or leaves members out.

Source: Kubernetes API concepts, "Resource versions"; KEP-2340 (consistent reads from cache). Waits are bounded: a
member that does not answer in time counts as unavailable for this request, and does not delay other members.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from mcproxy.aggregate.reflector.member_calls import MemberError, MemberSlow, MemberUnreachable
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.warnings import (
    LATE,
    NO_ANSWER,
    SLOW,
    Trouble,
    answered,
    left_out_text,
    never_synced_text,
    refused,
    unreachable,
)
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.kube.status import StatusError, qualified, retry_after, too_large_resource_version
from mcproxy.requests.coroutines import gather

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.request import LeftOut
    from mcproxy.aggregate.view.view import MemberView, View

log = Logger(__name__)
T = TypeVar("T")
Probe = Callable[["Store", float], Awaitable[int]]
"""`Reflectors.probe`: returns the member's present version, or fails after at most the given number of seconds."""
FRESHNESS_WAIT = 3.0
"""Maximum seconds that a request waits for a cache, as in a kube-apiserver (`blockTimeout`)."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """An aggregate's settings for the freshness of reads from caches; times are in seconds."""

    max_staleness: float = 0.0
    initial_sync_timeout: float = 10.0
    unavailable: UnavailableMembers = UnavailableMembers.STALE


@dataclass(slots=True)
class Readable:
    """The members whose objects an answer contains, in the aggregate's order, and warnings about the other members."""

    members: list[MemberView] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    """Members whose current state is unknown, whether or not their last known state is shown."""

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of waiting for one member.

    `trouble`: the reason why its cache may be old; `never`: its cache was never synced; `too_old`: its cache did not
    reach the requested version; `exact`: the request names a version for this member.
    """

    member: MemberView
    trouble: Trouble | None = None
    never: bool = False
    too_old: bool = False
    exact: bool = False

    @property
    def away(self) -> bool:
        return self.never or self.trouble is not None


class FreshnessWaiter:
    """Waits for the members' caches on behalf of all requests to one aggregate."""

    def __init__(self, clock: IReactorTime, probe: Probe, freshness: Freshness) -> None:
        self._clock = clock
        self._probe = probe
        self.freshness = freshness

    async def current(self, view: View, allowed: Sequence[str], namespace: str) -> Readable:
        """Wait until the caches have the members' present state (resourceVersion ""). Raises StatusError 503."""
        return await self._gather(view, allowed, namespace, self._wait_current) or Readable()

    async def cached(self, view: View, allowed: Sequence[str], namespace: str) -> Readable:
        """Wait until each cache has any complete state (resourceVersion "0"). Raises StatusError 503."""
        return await self._gather(view, allowed, namespace, self._wait_synced) or Readable()

    async def at_least(
        self,
        view: View,
        allowed: Sequence[str],
        namespace: str,
        wanted: Mapping[str, int],
        text: str,
        by_store: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
    ) -> Readable:
        """Wait until the caches have reached the `wanted` versions, by member. Raises StatusError: 504 if they do not
        reach them in time, 503 for unavailable members.

        Raises NotHeld (503) if a member that has not reached its version is unavailable: after a 504, clients would
        list without a version and go back in time. `text` is the resource version as sent by the client. `by_store` has
        versions by member and namespace, for stores that were ahead of the member's version.
        """

        async def wait(member: MemberView, namespace: str) -> _Outcome:
            name = member.name
            return await self._wait_version(member, namespace, wanted.get(name, 0), by_store.get(name, {}))

        readable = await self._gather(view, allowed, namespace, wait)
        if readable is None or _went_back(readable.members, namespace, wanted, by_store):
            raise too_large_resource_version(text, view.format.list_version(view.versions_of(allowed, namespace)))
        return readable

    async def _gather(
        self,
        view: View,
        allowed: Sequence[str],
        namespace: str,
        wait: Callable[[MemberView, str], Coroutine[Deferred[Any], Any, _Outcome]],
    ) -> Readable | None:
        """Wait for all members at once. Returns None if one of them did not reach the requested version."""
        members = [member for member in view.members if member.name in allowed and member.covers(namespace)]
        outcomes = await _all([wait(member, namespace) for member in members])
        return self._readable(view, allowed, [each if each.exact else _now(each) for each in outcomes])

    def _readable(self, view: View, allowed: Sequence[str], outcomes: Sequence[_Outcome]) -> Readable | None:
        """Return the members to read by the setting `unavailable`; None if a cache has not reached its version."""
        policy = self.freshness.unavailable
        found = Readable(away=[outcome.member.name for outcome in outcomes if outcome.away])
        if found.away and policy is UnavailableMembers.FAIL:
            raise retry_after(503, f"cluster {found.away[0]} is unavailable", 1, name=found.away[0])
        if too_old := [outcome for outcome in outcomes if outcome.too_old]:
            for outcome in too_old:
                if outcome.away:
                    raise NotHeld(outcome.member.name)
            return None
        for outcome in outcomes:
            name = outcome.member.name
            if not outcome.away:
                found.members.append(outcome.member)
                continue
            if outcome.never:
                found.warnings.append(_never_synced(outcome.member))
                continue
            stale = policy is UnavailableMembers.STALE
            assert outcome.trouble is not None
            found.warnings.append(outcome.trouble.text(name, stale=stale))
            if stale:
                found.members.append(outcome.member)
        for member in view.undiscovered:
            if member.name in allowed:
                if policy is UnavailableMembers.FAIL:
                    raise retry_after(503, f"cluster {member.name} is unavailable", 1, name=member.name)
                found.warnings.append(left_out_text(member.name, "it was never reached"))
        if outcomes and not found.members:
            # A controller would take an empty list as the deletion of every object.
            raise retry_after(503, "no cluster of this resource is available: " + "; ".join(found.warnings), 1)
        return found

    # -- one member -------------------------------------------------------------------------------------------

    async def _wait_synced(self, member: MemberView, namespace: str) -> _Outcome:
        """Wait for the first list, at most `initialSyncTimeout` after the store was first seen or was cleared."""
        now = self._clock.seconds()
        for store in member.stores:
            if store.synced:
                continue
            generation, started = store.first_list_awaited
            if generation != store.generation:  # wait again for a store that was emptied
                store.first_list_awaited = store.generation, (started := now)
            left = started + self.freshness.initial_sync_timeout - self._clock.seconds()
            if left <= 0 or not await store.when_synced(left):
                return _Outcome(member, never=True)
        return _Outcome(member, member.trouble)

    async def _wait_current(self, member: MemberView, namespace: str) -> _Outcome:
        outcome = await self._wait_synced(member, namespace)
        if outcome.never or outcome.trouble is not None:
            return outcome
        start, allowed = self._clock.seconds(), self.freshness.max_staleness
        stores = [store for store in member.stores_of(namespace) if allowed <= 0 or start - store.last_sign >= allowed]
        troubles = await _all([self._reach_present(member, store, start + FRESHNESS_WAIT) for store in stores])
        trouble = next((each for each in troubles if each is not None), None)
        return outcome if trouble is None else _Outcome(member, trouble)

    async def _reach_present(self, member: MemberView, store: Store, deadline: float) -> Trouble | None:
        """Wait until a store has its member's present state; return the reason if it has not."""
        try:
            version = await self._probe(store, max(deadline - self._clock.seconds(), 0.0))
        except CancelledError:
            raise  # the client has disconnected
        except Exception as error:
            log.debug("a member does not answer", event="member_not_answering", cluster=store.member, cause=str(error))
            return member.trouble or _trouble_of(error, member.member, store)
        if await store.when_current(version, max(deadline - self._clock.seconds(), 0.0)):
            return None
        return member.trouble or LATE

    async def _wait_version(
        self, member: MemberView, namespace: str, version: int, by_store: Mapping[str, int]
    ) -> _Outcome:
        outcome = await self._wait_synced(member, namespace)
        if not version:
            return outcome
        if outcome.trouble is not None and self.freshness.unavailable is UnavailableMembers.PARTIAL:
            return outcome  # the member is left out
        if outcome.never:
            return _Outcome(member, never=True, too_old=True)
        behind = [
            store.when_version(wanted, FRESHNESS_WAIT)
            for store in member.stores_of(namespace)
            if (wanted := by_store.get(store.namespace, version)) > store.version
        ]
        reached = all(await _all(behind))
        return _Outcome(member, outcome.trouble if reached else member.trouble, too_old=not reached, exact=True)


async def _all(waits: Sequence[Coroutine[Deferred[Any], Any, T]]) -> list[T]:
    """Await all at the same time (members, or one member's stores); each wait takes at most FRESHNESS_WAIT seconds."""
    return [await waits[0]] if len(waits) == 1 else await gather(waits)


def _now(outcome: _Outcome) -> _Outcome:
    """Return the outcome after all waits: a member that was put back during the wait counts as never synced."""
    return outcome if outcome.never or outcome.member.synced else _Outcome(outcome.member, never=True)


def _went_back(
    members: Sequence[MemberView], namespace: str, wanted: Mapping[str, int], by_store: Mapping[str, Mapping[str, int]]
) -> bool:
    """Return whether a member's cache no longer has the version that it had reached, because the member was restored
    from a backup or replaced by another cluster during the wait for other members.
    """
    return any(
        store.version < by_store.get(member.name, {}).get(store.namespace, wanted[member.name])
        for member in members
        if wanted.get(member.name)
        for store in member.stores_of(namespace)
    )


def _trouble_of(error: Exception, member: Member, store: Store) -> Trouble:
    """Return the trouble of a member whose probe failed with `error`."""
    if isinstance(error, MemberUnreachable) and member.unavailable_since is not None:
        return unreachable(member.unavailable_since)
    if isinstance(error, MemberSlow):
        return SLOW
    if not isinstance(error, MemberError) or not error.status:
        return NO_ANSWER
    return refused(store.resource.gvr) if error.status in (401, 403) else answered(error.status)


def _never_synced(member: MemberView) -> str:
    for store in member.stores:
        if store.refused and not store.synced:
            return left_out_text(member.name, refused(store.resource.gvr).words)
    return never_synced_text(member.name)


# -- requests that cannot be decided --------------------------------------------------------------------------
#
# Requests that cannot be decided while a member is unavailable ("away") get 503 with Retry-After, so clients wait and
# keep their state. Clients take a 404 as "deleted" and a 410 as "list again"; a list without a cluster's objects
# deletes these objects in an informer's store. So such an answer is sent only if it is certainly true. For its user,
# a member in the scope of a request is one of
#
#     allowed   up: its objects are known                   away: it may have objects that are not known here
#     refused   by its own last decision, or by the server's rules or policies: for this user it has no objects
#     undecided it cannot be asked about the user's rights: it may have the requested objects
#     absent    not known to have the resource, and cannot be asked now: it may have the resource
#
# "Its part": the requested version has a part for this member.
#
#     request                               allowed, away    refused             undecided, absent
#     get, write, subresource: not known    503              as without it       503
#     … known in another member             that object      that object         that object
#     list of one name that is not there    503              as without it       503
#     list, watch from "" or "0"            `unavailable`    left out, Warning   left out, Warning (Fail: 503)
#     NotOlderThan with its part            `unavailable`    left out, Warning   503
#     Exact, continue with its part         from the cache   410                 503
#     watch resumed at its part             continues        410                 503
#     running watch                         continues        410                 continues, or 503 if it is up
#
# If all members refuse: 403. No answer depends on objects of members that do not allow the request. Source: reference
# "list-watch", Members that are down.


NOT_REACHED = "it cannot be reached"
RETRY_AFTER = 1
"""The Retry-After of these answers, in seconds."""


class NotHeld(StatusError):
    """503: an unavailable member's cache had not reached the requested version."""

    def __init__(self, member: str) -> None:
        message = f"cluster {member} is unavailable, and its objects of that resource version are not known here"
        refusal = retry_after(503, message, RETRY_AFTER, name=member)
        super().__init__(503, message, details=refusal.details, headers=refusal.headers)


def not_known(what: str, member: str, why: str) -> StatusError:
    """Return the 503 for a request for an object (`what`, e.g. `pods "web"`) that an unavailable member may have."""
    return retry_after(503, f"it is not known whether cluster {member} has {what}: {why}", RETRY_AFTER)


def may_have(view: View, namespace: str, left_out: Iterable[LeftOut], away: Iterable[str]) -> list[tuple[str, str]]:
    """Return the members that may have objects in `namespace` that are not known here, each with the reason.

    `away` are the members that allow the request but whose present state is not known.
    """
    left = {each.member: each for each in left_out}
    found = [
        (member.name, left[member.name].why)
        for member in view.members
        if member.name in left and left[member.name].undecided and member.covers(namespace)
    ]
    found += [(name, NOT_REACHED) for name in away]
    found += [(name, NOT_REACHED) for name in view.unasked(namespace) if name not in left or left[name].undecided]
    return found


def check_absent(what: str, view: View, namespace: str, left_out: Iterable[LeftOut], away: Iterable[str]) -> None:
    """Raise StatusError (503) if a member may have an object that no other member has; arguments as of `may_have`."""
    for member, why in may_have(view, namespace, left_out, away):
        raise not_known(what, member, why)


def check_readable(view: View, members: Collection[str], namespace: str, name: str) -> None:
    """Raise StatusError (503) if one of the members has an object of that name that cannot be parsed."""
    for member in view.members:
        if member.name in members and member.may_have_unreadable(namespace, name):
            message = f"{subject(view, name)} of cluster {member.name} cannot be read here"
            raise retry_after(503, message, RETRY_AFTER, name=name)


def check_parts(view: View, parts: Mapping[str, int], namespace: str, left_out: Sequence[LeftOut]) -> None:
    """Raise StatusError (503) if a version has a part of a member that is left out only because it cannot be asked now.

    The client would take a list without this member's objects, also after a 410, as the deletion of these objects.
    """
    for member, why in may_have(view, namespace, left_out, ()):
        if parts.get(member):
            message = f"the resource version has a part of cluster {member}, whose objects cannot be shown now: {why}"
            raise retry_after(503, message, RETRY_AFTER)


def read_version(
    view: View, text: str, owner: str | None, name: str, namespace: str, left_out: Iterable[LeftOut]
) -> dict[str, int] | None:
    """Read a version as `VersionReader.read` does; `name` is that of the only requested object, "" for a list.

    `owner` is the member that has the object and allows the request. Raises StatusError: 503 if `text` is a plain
    number, and an unavailable member may be the owner of the object.
    """
    try:
        return view.reader.read(text, owner)
    except Expired:
        if name and owner is None:
            check_absent(subject(view, name), view, namespace, left_out, ())
        raise


def subject(view: View, name: str) -> str:
    """Return an object's name for messages: `pods "web"`."""
    gvr = view.resource.gvr
    return f'{qualified(gvr.group, gvr.resource)} "{name}"'
