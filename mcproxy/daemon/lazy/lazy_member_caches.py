"""The caches of clusters in the daemon: made, and their modules imported, when a configuration first needs some.

They are in one process: the only one, or the keeper. A worker never makes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from mcproxy.aggregate.member_caches import MemberCaches
    from mcproxy.upstream.upstream_context import UpstreamContext


class LazyMemberCaches:
    """The caches, which have no cost without a reader. Aggregates and services share them."""

    def __init__(self, reactor: Any, shared: UpstreamContext) -> None:
        self._reactor = reactor
        self._shared = shared
        self._caches: MemberCaches | None = None

    def get(self) -> MemberCaches:
        """Return the caches; they are made at the first call."""
        if self._caches is None:
            from mcproxy.aggregate.member_caches import MemberCaches

            self._caches = MemberCaches(self._shared, self.in_thread, time.time)
        return self._caches

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """Call a function with arguments in a thread."""
        from twisted.internet.threads import deferToThreadPool

        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *arguments)

    async def save(self) -> None:
        """Save all state (at a shutdown)."""
        if self._caches is not None:
            await self._caches.save()

    def stop(self) -> None:
        """End everything at once; to be called when the readers have ended."""
        if self._caches is not None:
            self._caches.stop()
