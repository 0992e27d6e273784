"""Finds out up to which version a store is complete, earlier than the bookmarks of its own watch do.

A watch shows its progress by events, and by a bookmark once a minute. Two mechanisms are faster. A probe (a list of one
object) and a silence after its answer suggest a version (`Presumption`). A second, short watch of the same collection
proves a version (`Prover`, `SecondWatch`): a kube-apiserver sends one more bookmark 2 s before a watch's deadline, at
its present revision (none with a timeoutSeconds of 2 or less). So a watch of 3 s from the store's version sends within
about 2 s every event that the store lacks, and then a bookmark with the proven version.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.cache.decoder import MalformedResponse
from mcproxy.aggregate.cache.store import OutOfOrder, Store
from mcproxy.aggregate.cache.version_waiters import VersionWaiters
from mcproxy.aggregate.reflector.collection import (
    Collection,
    ColumnRelists,
    EventIntake,
    LineSplitter,
    LineTooLong,
    RelistNeeded,
    refused,
    watch_path,
)
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.upstream.control import Use
from mcproxy.upstream.control_stream import ControlError, ControlStream

QUIET = 0.1  # seconds of silence on the watch


class Presumption:
    """Presumes that a store is as new as its member was at a probe.

    A list has etcd's revision, which rises with changes of any resource. A watch gets only the changes of one resource,
    and this revision in a bookmark once a minute. So if no data arrives on the watch for 0.1 s after a probe's answer,
    the store is presumed to have seen everything up to the answer's version. This is likely but not certain, since a
    connection can stall. So a presumed version is used only for reads of the present state (`Store.presume`). A silence
    counts only after all data that arrived by its end was read, since the process may have stalled. It does not
    count while a known change has not arrived (`Store.is_awaiting`).
    """

    def __init__(self, store: Store, clock: IReactorTime) -> None:
        self.ask: Callable[[], None] = lambda: None
        """Begins a probe, whose answer is passed to `probed`."""
        self._store = store
        self._clock = clock
        self._following = False
        self._heard_at = 0.0
        self._probed: list[tuple[float, int]] = []  # answers of probes: time of arrival, and the member's version
        self._call: IDelayedCall | None = None

    def begin(self) -> None:
        """The reflector follows a watch from the store's version from now on."""
        self._following = True
        self.heard()
        if self._store.waiters.waits_for_present:
            self.ask()

    def heard(self) -> None:
        """Data has arrived on the watch."""
        self._heard_at = self._clock.seconds()

    def end(self) -> None:
        """The watch has ended, or could not begin."""
        self._following = False
        self._probed.clear()
        self._store.presume_nothing()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def probed(self, version: int) -> None:
        """Handle the answer of a probe that was sent on the connection of the followed watch: the member was at
        `version`.
        """
        if not self._following:
            return
        if version <= self._store.presumed_version:
            self._store.presume(version)
            return
        self._probed.append((self._clock.seconds(), version))
        if self._call is None:
            self._call = self._clock.callLater(QUIET, self._look)

    def _look(self, *, read: bool = False) -> None:
        """Presume a version if the silence was long enough. `read`: the reactor has read all connections since then."""
        self._call = None
        now, store = self._clock.seconds(), self._store
        wait = self._heard_at + QUIET - now
        self._probed = [probed for probed in self._probed if probed[1] > store.presumed_version]
        if self._probed and wait <= 0:
            if not read:
                self._call = self._clock.callLater(0, self._look, read=True)
                return
            seen = [version for at, version in self._probed if at + QUIET <= now and not store.is_awaiting(version)]
            if seen:
                store.presume(max(seen))
                self._probed = [probed for probed in self._probed if probed[1] > store.presumed_version]
            wait = self._probed[0][0] + QUIET - now if self._probed else 0.0
            if wait <= 0:
                wait = QUIET  # a known change has not arrived yet
        if self._probed and self._following and self._call is None:
            self._call = self._clock.callLater(max(wait, 0.001), self._look)


log = Logger(__name__)

AFTER = 0.2  # seconds in which the store's own watch can prove the version first
SECONDS = 3  # timeoutSeconds of the second watch
LIMIT = 6.0  # maximum seconds of a second watch in total
AGAIN = 0.5  # seconds between a failed proof and the next one

Proof = Callable[[], Coroutine[Deferred[Any], Any, None]]
"""Applies everything up to the member's present version to the store. Raises MemberError."""


class Prover:
    """Proves versions of one store for all waiters, one proof at a time.

    A waiter that existed when a successful proof began needs no second proof. If it still waits, it waits for a version
    that the member has not reached, and no proof can show such a version.
    """

    def __init__(self, clock: IReactorTime, waiters: VersionWaiters, proof: Proof, member: str) -> None:
        self._clock = clock
        self._waiters = waiters
        self._proof = proof
        self._member = member
        self._call: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self._served = 0  # number of the newest waiter for which a proof was made

    def begin(self) -> None:
        """The reflector follows the store's own watch from now on, so the member's identity is known."""
        self._waiters.notify = self._look
        self._look()

    def end(self) -> None:
        """The store's own watch has ended, so events of a second watch no longer continue the store's state."""
        self._waiters.notify = None
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    def _look(self, delay: float = AFTER) -> None:
        idle = self._call is None and self._running is None
        if idle and self._waiters.newest > self._served:
            self._call = self._clock.callLater(delay, self._prove)

    def _prove(self) -> None:
        self._call = None
        newest = self._waiters.newest
        if newest <= self._served:
            return
        running = Deferred.fromCoroutine(self._proof())
        running.addTimeout(LIMIT, self._clock)
        self._running = running
        running.addCallbacks(self._proven, self._failed, callbackArgs=(running, newest), errbackArgs=(running,))

    def _proven(self, _: None, running: Deferred[None], newest: int) -> None:
        self._served = max(self._served, newest)
        self._over(running, AFTER)

    def _failed(self, failure: Failure, running: Deferred[None]) -> None:
        error = failure.value
        if isinstance(error, MemberError):
            log.debug("a member does not answer", event="member_not_answering", cluster=self._member, cause=error.cause)
        elif not isinstance(error, CancelledError | TimeoutError):
            log.failure("checking a resource version failed unexpectedly", failure, event="internal_error")
        self._over(running, AGAIN)

    def _over(self, running: Deferred[None], delay: float) -> None:
        if self._running is running:  # otherwise `end` was called, and another proof may have begun
            self._running = None
            self._look(delay)


class SecondWatch:
    """A short watch that starts at a store's version and ends with the member's bookmark.

    `first_event`: the time and the version of the watch's first event; None before it.
    """

    def __init__(
        self,
        collection: Collection,
        clock: IReactorTime,
        relists: ColumnRelists,
        check_same_cluster: Callable[[], Coroutine[Deferred[Any], Any, None]],
    ) -> None:
        """`check_same_cluster` raises MemberError unless the member is the cluster whose objects the store has."""
        self.first_event: tuple[float, int] | None = None
        self._collection = collection
        self._clock = clock
        self._relists = relists
        self._check_same_cluster = check_same_cluster

    async def run(self) -> None:
        """Apply the watch's events to the store up to the bookmark. Raises MemberError and ColumnsChanged."""
        collection = self._collection
        stream = await self._open()
        intake = EventIntake(collection, self._clock, self._relists)
        splitter = LineSplitter()
        try:
            while piece := await stream.read():
                for line in splitter.feed(piece):
                    if intake.take(line):
                        return
                    self.first_event = self.first_event or (self._clock.seconds(), intake.position)
        except ControlError as error:
            collection.member.epoch += 1  # the connection broke, so the member can be another cluster now
            raise MemberError(error.cause) from None
        except (LineTooLong, MalformedResponse) as error:
            gvr = collection.gvr
            raise MemberError(f"the cluster sent a second watch of {gvr} what is no event: {error}") from None
        except (OutOfOrder, RelistNeeded) as error:
            raise MemberError(f"a second watch of {collection.gvr}: {error}") from None
        finally:
            stream.close()
        raise MemberError(f"the cluster ended a second watch of {collection.gvr} without a bookmark")

    async def _open(self) -> ControlStream:
        collection, member = self._collection, self._collection.member
        epoch = member.epoch
        await self._check_same_cluster()
        path = watch_path(
            collection.gvr,
            collection.store.namespace,
            version=collection.store.version,
            seconds=SECONDS,
            table=collection.table,
        )
        # `Use.SHORT`: another connection than that of the followed watch, which may have stalled
        stream = await collection.open(path, Use.SHORT)
        try:
            if stream.status != 200:
                raise await refused(stream, "watch", collection.gvr)
            if epoch != member.epoch:
                raise MemberError("a connection to it broke meanwhile")
        except BaseException:
            stream.close()
            raise
        return stream
