"""Caches one discovery or OpenAPI document of each cluster, and reads it again when it is out of date."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import MemberError, MemberUnreachable
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.log_once import LogOnce

log = Logger(__name__)

T = TypeVar("T")

_RETRY = 2.0  # seconds until a failed read is repeated


class LastRead(Generic[T]):
    """Reads a cluster's document when it is needed and out of date; if the read fails, the last document stays.

    `read` gets the cluster and its last document (or None), and returns the document. It can raise MemberError and
    DiscoveryError. All callers share one read of a cluster at a time.
    """

    def __init__(
        self,
        what: str,
        clock: IReactorTime,
        read: Callable[[Any, T | None], Coroutine[Deferred[Any], Any, T]],
        *,
        lifetime: float,
        patience: float,
    ) -> None:
        """`what` names the document in the log.

        `lifetime`: seconds until a document is out of date; `patience`: seconds that `refresh` waits for a cluster.
        """
        self._what = what
        self._clock = clock
        self._read = read
        self._lifetime = lifetime
        self._patience = patience
        self._known: dict[str, T] = {}
        self._read_at: dict[str, float] = {}
        self._reading: dict[str, Deferred[None]] = {}
        self._begun_at: dict[str, float] = {}
        self._once = LogOnce(inf)

    def known(self, name: str) -> T | None:
        """Return the last document of a cluster, None if it was never read."""
        return self._known.get(name)

    def expire(self, names: Sequence[str] | None = None) -> None:
        """Mark the documents of these clusters, or of all, as out of date."""
        for name in tuple(self._read_at) if names is None else names:
            self._read_at.pop(name, None)

    def forget(self, kept: Sequence[str]) -> None:
        """Forget the documents of all clusters except those in `kept`."""
        for table in (self._known, self._read_at, self._begun_at):
            for name in table.keys() - set(kept):
                del table[name]
        self._once.keep(set(kept))

    async def refresh(
        self, sources: Sequence[Member], *, wait_for_old: bool = True, wait_for_late: bool = True
    ) -> None:
        """Read the out-of-date documents of reachable clusters, and wait for them.

        `wait_for_old` False: wait only for documents that were never read. `wait_for_late` False: do not wait for a
        cluster whose running read has already taken `patience` seconds.
        """
        now = self._clock.seconds()
        waiting = []
        for source in sources:
            read_at = self._read_at.get(source.name)
            if source.unavailable_since is not None or (read_at is not None and now - read_at < self._lifetime):
                continue
            reading = self._reading.get(source.name)
            if reading is None:
                reading = self._begin(source)
            elif not wait_for_late and now - self._begun_at.get(source.name, now) >= self._patience:
                continue
            if wait_for_old or source.name not in self._known:
                waiting.append(_waiter(reading))
        if waiting:
            whole = DeferredList(waiting, consumeErrors=True)
            timer = self._clock.callLater(self._patience, _cancel, waiting)
            try:
                await whole
            finally:
                if timer.active():
                    timer.cancel()

    def _begin(self, source: Member) -> Deferred[None]:
        self._begun_at[source.name] = self._clock.seconds()
        reading = self._reading[source.name] = Deferred.fromCoroutine(self._read_one(source))

        def done(result: Any) -> None:
            if self._reading.get(source.name) is reading:
                del self._reading[source.name]

        reading.addBoth(done)
        return reading

    async def _read_one(self, source: Member) -> None:
        try:
            document = await self._read(source, self._known.get(source.name))
        except (MemberError, DiscoveryError, CancelledError) as error:
            self._read_at[source.name] = self._clock.seconds() - self._lifetime + min(_RETRY, self._lifetime)
            self._log(source.name, error)
            return
        self._known[source.name] = document
        self._read_at[source.name] = self._clock.seconds()
        self._once.ends(source.name)

    def _log(self, name: str, error: Exception) -> None:
        """Log each new cause once. Another module logs that a cluster is unreachable."""
        cause = error.cause if isinstance(error, MemberError) else str(error)
        if isinstance(error, (CancelledError, MemberUnreachable)) or not self._once.allows(name, state=cause):
            return
        log.warn(
            "a document of a member cannot be read",
            event="member_document_unreadable",
            document=self._what,
            cluster=name,
            cause=cause,
        )


def _waiter(reading: Deferred[None]) -> Deferred[None]:
    """Return a Deferred that fires with `reading`; its cancellation does not cancel `reading`."""
    waiter: Deferred[None] = Deferred()

    def done(result: Any) -> None:
        if not waiter.called:
            waiter.callback(None)

    reading.addBoth(done)
    return waiter


def _cancel(waiting: Sequence[Deferred[None]]) -> None:
    for waiter in waiting:
        waiter.cancel()
