"""Reading members' discovery again, for requests for a resource that one of them may just have got.

A member's documents are read once a second at most, whatever is asked for (`reflector.MemberDiscovery`), and all who
wait share a read: names that no cluster has cost no more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime

if TYPE_CHECKING:
    from mcproxy.aggregate.reflector.member import Member

WAIT = 3.0
"""Seconds that a request waits for the members' documents."""
_WAIT_KNOWN = 1.0  # seconds, where the last known documents do as well
_AGE = 1.0  # seconds


async def rediscover(members: Sequence[Member], clock: IReactorTime) -> list[str]:
    """Read what members have, as of now; return the names of those of which it is not known."""
    results = await _all([member.discovery.refresh() for member in members], WAIT, clock)
    return [
        member.name
        for member, read in zip(members, results, strict=True)
        if not read or not member.discovery.fresh or member.unavailable_since is not None
    ]


async def renew(members: Sequence[Member], clock: IReactorTime) -> None:
    """Have documents that are no older than about a second, of the members that can be asked."""
    asked = [member for member in members if member.discovery.fresh and member.unavailable_since is None]
    await _all([member.discovery.renew(_AGE) for member in asked], _WAIT_KNOWN, clock)


async def _all(reads: Sequence[Deferred[None]], wait: float, clock: IReactorTime) -> list[bool]:
    """Wait for all, or for so many seconds; return which are done. Raises CancelledError if the client goes away."""
    if not reads:
        return []
    for read in reads:
        read.addTimeout(wait, clock)
    together = DeferredList(reads, consumeErrors=True)
    done: Deferred[list[bool]] = Deferred()  # not the list itself: that has a result even when it is cancelled

    def all_done(results: list[tuple[bool, None]]) -> None:
        if not done.called:
            done.callback([each for each, _ in results])

    together.addCallback(all_done)
    try:
        return await done
    finally:
        together.cancel()
