"""A reflector keeps one store equal to one collection of a member: list, then watch, as client-go's `Reflector` does.

The initial state comes from a WatchList (KEP-3157), or from a paged list if the member has no WatchList
(`initial_list`). A watch then continues from the last seen version; bookmarks advance this version while nothing
changes. If a request needs a version before the watch shows it, a second watch proves it (`progress`). A watch that
ends, breaks or falls silent is resumed. If the member no longer has the version (410), it is listed again. If it is
another cluster or has gone back in time, it is listed again after all old objects are dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.cache.cached_object import EventType
from mcproxy.aggregate.cache.decoder import Bookmark, MalformedItem, MalformedResponse, WatchError
from mcproxy.aggregate.cache.relist import Relist
from mcproxy.aggregate.cache.sequence import key_of
from mcproxy.aggregate.cache.store import OutOfOrder, Store
from mcproxy.aggregate.reflector.collection import (
    COMPACTED,
    Collection,
    ColumnRelists,
    ColumnsChanged,
    EventIntake,
    LineSplitter,
    LineTooLong,
    RelistNeeded,
    StallTimer,
    WatchEnded,
    error_of,
    refused,
    watch_list_path,
    watch_path,
    watch_seconds,
)
from mcproxy.aggregate.reflector.initial_list import STALLED, MemberLimits, PagedList
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import Backoff, MemberError
from mcproxy.aggregate.reflector.progress import Presumption, Prover, SecondWatch
from mcproxy.aggregate.warnings import texts_of
from mcproxy.net.wall_time import wall_seconds
from mcproxy.upstream.control import Use
from mcproxy.upstream.control_stream import ControlError, ControlStream

log = Logger(__name__)

SILENCE = 180.0  # maximum seconds without data on a watch; a kube-apiserver sends a bookmark about once a minute
BEHIND = 1.0  # maximum seconds by which a watch can deliver an event later than a second watch
_GONE_BACK = "its resource versions have gone back: another cluster, or a restored backup"
_STEADY = 5.0  # a watch that ends after this number of seconds is resumed immediately


class _NoWatchList(Exception):
    """The member does not offer WatchList."""


class Reflector:
    """Keeps one store up to date. Nothing else writes to the store."""

    def __init__(
        self, member: Member, store: Store, limits: MemberLimits, clock: IReactorTime, random: Callable[[], float]
    ) -> None:
        """`random` returns a float in [0, 1)."""
        self.member = member
        self.store = store
        self.collection = Collection(member, store)
        self._gvr = store.resource.gvr
        self._limits = limits
        self._clock = clock
        self._random = random
        self._backoff = Backoff(random)
        self._running: Deferred[None] | None = None
        self._stopped = False
        self._has_place = False
        self._relist_needed = False
        self._column_relists = ColumnRelists()
        self._paged_list = PagedList(self.collection, clock, gone_back=self._gone_back, commit=self._commit)
        self._initial: Relist | None = None  # while the initial state arrives
        self._stream: ControlStream | None = None  # the followed stream, after the initial state
        self._intake = EventIntake(self.collection, clock, self._column_relists)  # applies the events of `_stream`
        self._heard_at = 0.0
        self._behind: IDelayedCall | None = None  # the check whether `_stream` has sent a second watch's events
        self.presumption = Presumption(store, clock)
        self._prover = Prover(clock, store.waiters, self._prove, member.name)
        self._at_once = True  # whether the next attempt starts without a wait, since the last watch was not short
        self._epoch = -1  # the member's epoch when it was last known to be the store's cluster
        self._source: object = None  # the member's source at that time
        self._uid = ""  # the cluster's UID at that time
        self._failures = 0  # consecutive failures

    def start(self, uid: str = "") -> None:
        """Begin to follow the collection; `uid` identifies the cluster of objects restored from disk, "" if none."""
        self._uid = uid
        self._relist_needed = self.store.columns is None and any(
            item.cells is not None for item in self.store.snapshot()
        )
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._ended)

    def stop(self) -> None:
        """Stop following the collection; the store keeps its objects."""
        self._stopped = True
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    @property
    def stream(self) -> ControlStream | None:
        """The stream of the followed watch; None while no watch is followed."""
        return self._stream

    def put_back(self) -> None:
        """Drop the store's objects and list again, since the member is at an older version than the store."""
        self.member.epoch += 1
        self._gone_back()
        self._end_stream(_GONE_BACK)

    async def _run(self) -> None:
        while not self._stopped:
            try:
                await self._attempt()
            except WatchEnded as error:
                self._relist_needed = self._relist_needed or isinstance(error, RelistNeeded)
                if self._at_once:
                    self._at_once = False  # start one attempt without a wait; the next one waits
                    continue
                failure = MemberError(error.cause)
            except MemberError as error:
                failure = error
            except CancelledError:
                raise
            except Exception:
                log.failure("a reflector failed unexpectedly", event="internal_error", **self.collection.log_fields)
                failure = MemberError("an error of the proxy; its log has the cause")
            finally:
                self._initial = None
                self.presumption.end()
            if not self._stopped:  # after `stop`, a cancelled request can raise any error
                await self._failed(failure)

    def _ended(self, failure: Failure) -> None:
        """The reflector was stopped; any other end is a bug."""
        if not isinstance(failure.value, CancelledError):
            log.failure("a reflector has ended", failure, event="internal_error", **self.collection.log_fields)

    # -- one attempt: up to the end of a watch -----------------------------------------------------------------

    async def _attempt(self) -> None:
        """List if necessary, then watch until the watch ends. Raises MemberError and WatchEnded."""
        await self._check_cluster()
        if self.store.synced and not self._relist_needed:
            await self._watch()
            return
        if self._limits.offers_watch_list(self._gvr.group):
            try:
                await self._watch_list()
            except _NoWatchList:
                self._limits.refuses_watch_list(self._gvr.group)
            else:
                await self._watch()
        await self._take_place()
        try:
            await self._paged_list.run()
        finally:
            self._leave_place()
        await self._watch()

    async def _check_cluster(self) -> None:
        """Check that the store's objects come from the member's present cluster and history; else forget them."""
        epoch, source = self.member.epoch, self.member.source
        uid = await self.member.identify()
        if self.store.synced and epoch != self._epoch:
            known = uid != "" and self._uid != ""
            if known and uid != self._uid:
                self._forget("it is another cluster than before")
            elif not known and source != self._source:  # after a reload, or for a store restored from a file
                self._relist_needed = True  # it is unknown whether it is the same cluster
            else:
                version = await self.collection.version()
                if version and version < self.store.version:
                    self._gone_back()
        self._uid = uid or self._uid
        self._epoch, self._source = epoch, source

    def _forget(self, cause: str) -> None:
        """Forget the objects, which belong to another cluster."""
        self._log_dropped(cause)
        self.store.clear()

    def _gone_back(self) -> None:
        self._log_dropped(_GONE_BACK)
        self.store.put_back()

    def _log_dropped(self, cause: str) -> None:
        self.collection.log_dropped(cause)
        self._limits.forget()

    # -- lists -------------------------------------------------------------------------------------------------

    async def _take_place(self) -> None:
        await self._limits.initial_lists.acquire()
        self._has_place = True

    def _leave_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._limits.initial_lists.release()

    def _commit(self, relist: Relist, version: int) -> None:
        self.store.available()  # before the requests that wait for the list continue
        try:
            relist.commit(version)
        except OutOfOrder as error:
            if version < self.store.version:
                self._gone_back()
            raise RelistNeeded(str(error)) from None
        self._relist_needed = False
        self._works()

    # -- watches -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Watch from the store's version. Raises MemberError and WatchEnded."""
        seconds = watch_seconds(self._random)
        path = watch_path(
            self._gvr, self.store.namespace, version=self.store.version, seconds=seconds, table=self.collection.table
        )
        stream = await self.collection.open(path, Use.LASTING)
        try:
            if stream.status == 406 and self.collection.table:
                self.collection.table = False
                raise WatchEnded("the cluster gives no Table")
            if stream.status == 410:
                raise RelistNeeded(COMPACTED)
            if stream.status != 200:
                raise await refused(stream, "watch", self._gvr)
            self._works()
            await self._follow(stream, seconds)
        finally:
            stream.close()

    async def _watch_list(self) -> None:
        """List and watch with one WatchList request; over HTTP/2 the request only lists (see `_follow`).

        Raises MemberError, WatchEnded and _NoWatchList.
        """
        await self._take_place()
        stream = None
        self._initial = self.store.replace()
        self._initial.columns = None  # the first event brings the columns, if the cluster sends Tables
        try:
            seconds = watch_seconds(self._random)
            path = watch_list_path(self._gvr, self.store.namespace, seconds=seconds, table=self.collection.table)
            stream = await self.collection.open(path, Use.BULK)
            if 400 <= stream.status < 500 and stream.status not in (401, 403, 404, 410, 429):
                raise _NoWatchList
            if stream.status != 200:
                raise await refused(stream, "watch", self._gvr)
            await self._follow(stream, seconds)
        finally:
            if self._initial is not None:
                self._initial.abort()
                self._initial = None
            if stream is not None:
                stream.close()
            self._leave_place()

    async def _follow(self, stream: ControlStream, seconds: int) -> None:
        """Apply the events of a watch until it ends, first those of the initial state.

        Raises WatchEnded, RelistNeeded, MemberError or _NoWatchList. Returns only if the initial state came over a
        separate connection for lists. The caller then opens the watch on a connection that no list delays.
        """
        self.store.warnings = texts_of(stream.headers)
        began = self._clock.seconds()
        self._heard_at = began
        if self._initial is None:
            self._begin_following(stream)
            self.store.followed()
        silence = f"the watch of {self._gvr} fell silent"
        timer = StallTimer(self._clock, stream, SILENCE if self._initial is None else STALLED, silence)
        splitter = LineSplitter()
        cause = f"the cluster ended a watch of {self._gvr}"
        try:
            while piece := await stream.read():
                self._heard_at = self._clock.seconds()
                self.presumption.heard()
                timer.heard()
                for line in splitter.feed(piece):
                    if self._initial is None:
                        self._event(line)
                    elif self._initial_event(line, self._initial):
                        self._initial = None
                        if stream.apart:
                            return
                        self._begin_following(stream)
                        self._leave_place()
                        timer.change(SILENCE, silence)
        except ControlError as error:
            if self._initial is not None and error.cause == silence:
                raise _NoWatchList from None  # the server ignored the parameters and sends no final bookmark
            cause = error.cause
        except LineTooLong:
            raise MemberError(f"an event of a watch of {self._gvr} is too long") from None
        except MalformedResponse as error:
            raise MemberError(f"the cluster sent a watch of {self._gvr} {error}") from None
        finally:
            self._end_following()
            timer.stop()
            lasted = self._clock.seconds() - began
            self._at_once = self._at_once or lasted >= _STEADY
        if lasted < seconds - _STEADY:
            self.member.epoch += 1  # the API server or the connection ended, so the cluster can be another one now
        raise WatchEnded(cause)

    def _initial_event(self, line: bytes, relist: Relist) -> bool:
        """Apply one event of the initial state; return whether the state is complete now."""
        event = self.store.decoder.decode_event(line, wall_seconds(self._clock))
        if isinstance(event, WatchError):
            raise error_of(event, self._gvr)
        if event.columns is not None:
            relist.columns = event.columns
        if isinstance(event, Bookmark):
            if not event.initial_events_end:
                return False
            self._commit(relist, event.version)
            return True
        if isinstance(event, MalformedItem):
            self.collection.log_malformed(event)
            if event.key and event.type is EventType.DELETED:
                relist.remove(event.key)
            elif event.key:
                relist.leave_out(event.key)
            return False
        if event.type is EventType.DELETED:
            relist.remove(key_of(event.object))
        else:
            relist.add(event.object)
            self.collection.check_size(len(relist))
        return False

    def _begin_following(self, stream: ControlStream) -> None:
        """Begin to follow `stream`, which sends the changes after the store's state."""
        self._stream = stream
        self._intake = EventIntake(self.collection, self._clock, self._column_relists)
        self.presumption.begin()
        self._prover.begin()

    def _end_following(self) -> None:
        self._stream = None
        if self._behind is not None:
            self._behind.cancel()
            self._behind = None
        self.presumption.end()
        self._prover.end()

    def _event(self, line: bytes) -> None:
        """Apply one event of the watch."""
        try:
            self._intake.take(line)
        except (OutOfOrder, ColumnsChanged) as error:
            raise RelistNeeded(str(error)) from None

    # -- proof ------------------------------------------------------------------------------------------------

    async def _prove(self) -> None:
        """Apply the events of a second watch up to its bookmark (`Prover`). Raises MemberError."""
        second = SecondWatch(self.collection, self._clock, self._column_relists, self._check_same_cluster)
        try:
            await second.run()
        except ColumnsChanged as error:
            self._relist_needed = True
            self._end_stream(str(error))
            raise MemberError(str(error)) from None
        self._look_behind(second.first_event)

    async def _check_same_cluster(self) -> None:
        """Raise MemberError unless the member is certainly the watched cluster, and as new as the store."""
        if self.member.epoch != self._epoch:
            uid = await self.member.identify()
            known = uid != "" and self._uid != ""
            if uid != self._uid if known else self.member.source != self._source:
                raise MemberError("nothing tells whether it is the same cluster as the one that is watched")
            version = await self.collection.version()
            if version < self.store.version:
                raise MemberError("its resource versions have gone back, or it is behind")

    def _look_behind(self, told: tuple[float, int] | None) -> None:
        """End the watch if, after `BEHIND` seconds, it has not sent an event that a second watch has sent. The
        reflector then opens a new watch from the store's version.

        `told` is the second watch's first event: its time and version.
        """
        if self._behind is not None:
            self._behind.cancel()
            self._behind = None
        if told is None or self._intake.position >= told[1]:
            return
        silent_since = max(told[0], self._heard_at)
        left = silent_since + BEHIND - self._clock.seconds()
        if left > 0:
            self._behind = self._clock.callLater(left, self._look_behind_later, told)
        else:
            self._end_stream(f"a watch of {self._gvr} fell behind another one")

    def _look_behind_later(self, told: tuple[float, int]) -> None:
        self._behind = None
        self._look_behind(told)

    def _end_stream(self, cause: str) -> None:
        if self._stream is not None:
            self._stream.close(cause)

    # -- success and failure -----------------------------------------------------------------------------------

    def _works(self) -> None:
        self._backoff.worked()
        self._failures = 0
        self.collection.log_followed()
        self.store.available()

    async def _failed(self, error: MemberError) -> None:
        """Record a failure, and wait before the next attempt."""
        self._at_once = False
        self._failures += 1
        if error.status == 404:
            await self.member.discovery.refresh()
            discovery = self.member.discovery
            if discovery.fresh and self._gvr not in discovery.resources:
                if self.store.synced:
                    self.store.clear()
                error = MemberError(f"the cluster does not serve {self._gvr}", status=404)
        self.store.unavailable(error.cause, refused=error.status in (401, 403))
        self.collection.log_failure(error, self._failures)
        await self.member.sleep(max(self._backoff.failed(), error.retry_after))
