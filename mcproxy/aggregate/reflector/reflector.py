"""A reflector keeps one store equal to one collection of a member: list, then watch, as client-go's `Reflector` does.

The initial state comes by a WatchList (KEP-3157), or page by page where the member has none. A watch then goes on from
the last version seen; bookmarks move that on while nothing changes. A watch that ends, breaks or falls silent is
resumed. A member that has forgotten the version (410) is listed anew, and so is one that is another cluster than before
or has gone back in time: of such a one no old object stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.cache.decoder import Bookmark, ListPage, MalformedItem, MalformedResponse, WatchError
from mcproxy.aggregate.cache.object import EventType
from mcproxy.aggregate.cache.replacement import Replacement
from mcproxy.aggregate.cache.store import OutOfOrder, Store
from mcproxy.aggregate.reflector import requests
from mcproxy.aggregate.reflector.backoff import Backoff
from mcproxy.aggregate.reflector.errors import MemberError, MemberUnreachable
from mcproxy.aggregate.reflector.limits import MemberLimits
from mcproxy.aggregate.reflector.lines import LineSplitter, LineTooLong
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.probe import version_of_list
from mcproxy.aggregate.reflector.stall import StallTimer
from mcproxy.aggregate.warnings import texts_of
from mcproxy.net.wall_time import wall_seconds
from mcproxy.upstream.control_stream import BodyTooLarge, ControlError, ControlStream
from mcproxy.upstream.endpoint import Endpoint

log = Logger()

QUIET = 0.1  # seconds: see `Reflector.probed`
SILENCE = 180.0  # seconds without a byte of a watch; a kube-apiserver sends a bookmark about once a minute
STALLED = 30.0  # seconds without a byte of a list
MAX_PAGE = 64 * 1024 * 1024  # bytes; a longer page is asked for again with fewer objects
MAX_OBJECTS = 2_000_000  # of one store
_SLICE = 100  # objects that are decoded in one turn of the reactor
_STEADY = 5.0  # seconds after which a watch that ends is resumed at once
_MAX_RESTARTS = 2  # of a paged list whose continue token has expired, before a failure counts
_LOGGED_AFTER = 3  # failures in a row of a kind that may pass


class _Ended(Exception):
    """A watch has ended; it is resumed."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class _Relist(_Ended):
    """A watch has ended, or a list failed, and the store cannot go on from its version."""


class _NoWatchList(Exception):
    """The member does not offer WatchList."""


class Reflector:
    """The reflector of one store; it alone writes to it."""

    def __init__(
        self, member: Member, store: Store, limits: MemberLimits, clock: IReactorTime, random: Callable[[], float]
    ) -> None:
        """`random` returns a float in [0, 1)."""
        self.member = member
        self.store = store
        self._gvr = store.resource.gvr
        self._limits = limits
        self._clock = clock
        self._random = random
        self._backoff = Backoff(random)
        self._running: Deferred[None] | None = None
        self._stopped = False
        self._has_place = False
        self._relist = False
        self._table = True
        self._initial: Replacement | None = None  # while the initial state arrives
        self._position = 0  # what the member has told by list and watch; a probe may have moved the store's further
        self._stream: ControlStream | None = None  # that is followed, behind the initial state
        self._heard_at = 0.0
        self._probed: list[tuple[float, int]] = []  # answers of probes: when, and the member's version then
        self._settling: IDelayedCall | None = None
        self._at_once = True  # the next attempt need not wait: the last watch was not a short one
        self._epoch = -1  # of the member, when the store was last known to be of the same cluster
        self._source: object = None  # the member's, likewise
        self._uid = ""  # the cluster's, likewise
        self._failures = 0  # in a row
        self._logged = ""
        self._logged_item = False

    def start(self, uid: str = "") -> None:
        """Begin; `uid` is that of the cluster which the store was restored for, if it was."""
        self._uid = uid
        self._position = self.store.version
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._ended)

    def stop(self) -> None:
        """End; the store stays as it is."""
        self._stopped = True
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint whose watch it follows; None while it follows none."""
        return None if self._stream is None else self._stream.endpoint

    def probed(self, version: int) -> None:
        """Take the answer of a probe: the member was at `version` a moment ago.

        A kube-apiserver gives a list etcd's revision, which rises with changes of any resource, while a watch is told
        of those of one, and of the revision by a bookmark once a minute. So a watch on which nothing has arrived for a
        tenth of a second after the answer is taken to have seen everything up to it. Should an event come later after
        all, the store refuses it and the collection is listed anew; a watch is never resumed from such a version.
        """
        if self._stream is None:
            return
        if version <= self.store.version:
            self.store.progress(version)
            return
        self._probed.append((self._clock.seconds(), version))
        if self._settling is None:
            self._settling = self._clock.callLater(QUIET, self._settle)

    def _settle(self) -> None:
        self._settling = None
        if self._stream is None:
            self._probed.clear()
            return
        now = self._clock.seconds()
        wait = self._heard_at + QUIET - now
        self._probed = [probed for probed in self._probed if probed[1] > self.store.version]
        if wait <= 0:
            seen = [version for at, version in self._probed if at + QUIET <= now]
            self._probed = self._probed[len(seen) :]
            if seen:
                self.store.progress(max(seen))
            wait = self._probed[0][0] + QUIET - now if self._probed else 0.0
        if self._probed and self._settling is None:
            self._settling = self._clock.callLater(max(wait, 0.001), self._settle)

    async def _run(self) -> None:
        while not self._stopped:
            try:
                await self._attempt()
            except _Ended as error:
                self._relist = self._relist or isinstance(error, _Relist)
                if self._at_once:
                    self._at_once = False  # a second one in a row waits
                    continue
                failure = MemberError(error.cause)
            except MemberError as error:
                failure = error
            except CancelledError:
                raise
            except Exception:
                log.failure("a reflector broke", event="internal_error", **self._about)
                failure = MemberError("an error of the proxy; its log has the cause")
            finally:
                self._initial = None
            if not self._stopped:  # a request that is cancelled may fail in any way
                await self._failed(failure)

    def _ended(self, failure: Failure) -> None:
        """The reflector was stopped; any other end is a bug."""
        if not isinstance(failure.value, CancelledError):
            log.failure(
                "a reflector has ended",
                failure,
                event="internal_error",
                **self._about,
            )

    @property
    def _about(self) -> dict[str, Any]:
        """The fields of a log line that tell what is followed."""
        return {"cluster": self.member.name, "resource": str(self._gvr), "namespace": self.store.namespace}

    # -- one attempt: up to the end of a watch -----------------------------------------------------------------

    async def _attempt(self) -> None:
        """List if that must be, and watch until the watch ends. Raises MemberError and _Ended."""
        await self._check_cluster()
        if self.store.synced and not self._relist:
            await self._watch()
            return
        if self._limits.offers_watch_list(self._gvr.group):
            try:
                await self._watch_list()
            except _NoWatchList:
                self._limits.refuses_watch_list(self._gvr.group)
        await self._take_place()
        try:
            await self._list()
        finally:
            self._leave_place()
        await self._watch()

    async def _check_cluster(self) -> None:
        """See that the store and the member are still of one cluster, at one time line; else forget what is stored."""
        epoch, source = self.member.epoch, self.member.source
        uid = await self.member.identify()
        if self.store.synced and epoch != self._epoch:
            known = uid != "" and self._uid != ""
            if known and uid != self._uid:
                self._forget("it is another cluster than before")
            elif not known and source != self._source:  # reloaded, or restored from a file
                self._relist = True  # nothing tells whether it is another cluster
            else:
                version = await self._member_version()
                if version and version < self.store.version:
                    self._forget("its resource versions have gone back: another cluster, or a restored backup")
        self._uid = uid or self._uid
        self._epoch, self._source = epoch, source

    async def _member_version(self) -> int:
        """Return the version of the collection now, 0 if the answer has none."""
        path = requests.probe_path(self._gvr, self.store.namespace)
        response = await self.member.get(path, headers=requests.METADATA, max_body=requests.MAX_PROBE)
        if response.status != 200:
            raise requests.refusal(response.status, response.body, None, "list", self._gvr)
        return version_of_list(response.body)

    def _forget(self, cause: str) -> None:
        log.warn("what was cached of a resource is dropped", event="cache_dropped", **self._about, cause=cause)
        self._limits.forget()
        self.store.clear()

    # -- lists -------------------------------------------------------------------------------------------------

    async def _take_place(self) -> None:
        await self._limits.initial_lists.acquire()
        self._has_place = True

    def _leave_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._limits.initial_lists.release()

    async def _list(self) -> None:
        """Replace the store by a list, page by page. Raises MemberError."""
        for _ in range(_MAX_RESTARTS + 1):
            if await self._list_once():
                return
        raise MemberError(f"lists of {self._gvr} take so long that their continue token expires", status=410)

    async def _list_once(self) -> bool:
        """The same; return False if a continue token has expired, so that the list has to begin anew."""
        store = self.store
        replacement = store.replace()
        limit, token, version = requests.PAGE, "", 0
        try:
            while True:
                try:
                    page = await self._page(limit, token)
                except BodyTooLarge:
                    if limit == 1:
                        raise MemberError(f"an object of {self._gvr} has more than {MAX_PAGE} bytes") from None
                    limit = max(1, limit // 8)
                    continue
                except MemberError as error:
                    if error.status == 410 and token:
                        return False
                    raise
                if not version:
                    version = page.version
                    if version < store.version:
                        self._forget("its resource versions have gone back: another cluster, or a restored backup")
                        replacement = store.replace()
                elif page.version != version:
                    raise MemberError(f"the pages of a list of {self._gvr} have different versions")
                await self._add(replacement, page)
                if (token and page.continue_token == token) or (page.continue_token and not len(page)):
                    raise MemberError(f"a list of {self._gvr} does not go on")
                token = page.continue_token
                if not token:
                    break
            self._commit(replacement, version)
        finally:
            replacement.abort()
        return True

    async def _page(self, limit: int, token: str) -> ListPage:
        """Ask for one page. Raises BodyTooLarge and MemberError."""
        path = requests.list_path(self._gvr, self.store.namespace, limit=limit, token=token, table=self._table)
        stream = await self.member.open(path, headers=requests.TABLE if self._table else requests.PLAIN)
        timer = StallTimer(self._clock, stream, STALLED, f"a list of {self._gvr} stalled")
        pieces = []
        size = 0
        try:
            if stream.status == 406 and self._table:
                self._table = False
                return await self._page(limit, token)
            if stream.status != 200:
                raise await requests.refused(stream, "list", self._gvr)
            self.store.warnings = texts_of(stream.headers)
            while piece := await stream.read():
                timer.heard()
                size += len(piece)
                if size > MAX_PAGE:
                    raise BodyTooLarge
                pieces.append(piece)
            body = b"".join(pieces)
            pieces.clear()
            return self.store.decoder.decode_page(body, wall_seconds(self._clock))
        except ControlError as error:
            self.member.epoch += 1
            raise MemberError(error.cause) from None
        except MalformedResponse as error:
            raise MemberError(f"the cluster answered a list of {self._gvr} with {error}") from None
        finally:
            timer.stop()
            stream.close()

    async def _add(self, replacement: Replacement, page: ListPage) -> None:
        """Decode the objects of a page, a slice in each turn of the reactor."""
        if page.columns is not None:
            replacement.columns = page.columns
        for number, item in enumerate(page, 1):
            if isinstance(item, MalformedItem):
                self._note_malformed(item)
            else:
                replacement.add(item)
            if number % _SLICE == 0:
                await deferLater(self._clock, 0)
        self._check_size(len(replacement))

    def _commit(self, replacement: Replacement, version: int) -> None:
        self.store.available()  # before those who wait for the list go on
        try:
            replacement.commit(version)
        except OutOfOrder as error:
            if version < self.store.version:
                self._forget("its resource versions have gone back: another cluster, or a restored backup")
            raise _Relist(str(error)) from None
        self._relist = False
        self._position = version
        self._works()

    # -- watches -----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Watch from the store's version. Raises MemberError and _Ended."""
        seconds = self._watch_seconds()
        path = requests.watch_path(
            self._gvr, self.store.namespace, version=self._position, seconds=seconds, table=self._table
        )
        stream = await self._open(path)
        try:
            if stream.status == 406 and self._table:
                self._table = False
                raise _Ended("the cluster gives no Table")
            if stream.status == 410:
                raise _Relist("the cluster has forgotten the version that the watch was to go on from (410)")
            if stream.status != 200:
                raise await requests.refused(stream, "watch", self._gvr)
            self._works()
            await self._follow(stream, seconds)
        finally:
            stream.close()

    async def _watch_list(self) -> None:
        """List and watch by one request. Raises MemberError, _Ended and _NoWatchList."""
        await self._take_place()
        stream = None
        self._initial = self.store.replace()
        try:
            seconds = self._watch_seconds()
            path = requests.watch_list_path(self._gvr, self.store.namespace, seconds=seconds, table=self._table)
            stream = await self._open(path)
            if 400 <= stream.status < 500 and stream.status not in (401, 403, 404, 410, 429):
                raise _NoWatchList
            if stream.status != 200:
                raise await requests.refused(stream, "watch", self._gvr)
            await self._follow(stream, seconds)
        finally:
            if self._initial is not None:
                self._initial.abort()
                self._initial = None
            if stream is not None:
                stream.close()
            self._leave_place()

    async def _open(self, path: str) -> ControlStream:
        return await self.member.open(path, headers=requests.TABLE if self._table else requests.PLAIN)

    def _watch_seconds(self) -> int:
        return int(requests.MIN_WATCH + self._random() * (requests.MAX_WATCH - requests.MIN_WATCH))

    async def _follow(self, stream: ControlStream, seconds: int) -> None:
        """Take the events of a watch until it ends, first those that make the initial state.

        Always raises: _Ended, _Relist, MemberError or _NoWatchList.
        """
        self.store.warnings = texts_of(stream.headers)
        began = self._clock.seconds()
        self._heard_at = began
        if self._initial is None:
            self._stream = stream
        silence = f"the watch of {self._gvr} fell silent"
        timer = StallTimer(self._clock, stream, SILENCE if self._initial is None else STALLED, silence)
        splitter = LineSplitter()
        cause = f"the cluster ended a watch of {self._gvr}"
        try:
            while piece := await stream.read():
                self._heard_at = self._clock.seconds()
                timer.heard()
                for line in splitter.feed(piece):
                    if self._initial is None:
                        self._event(line)
                    elif self._initial_event(line, self._initial):
                        self._initial = None
                        self._stream = stream
                        self._leave_place()
                        timer.change(SILENCE, silence)
        except ControlError as error:
            if self._initial is not None and error.cause == silence:
                raise _NoWatchList from None  # the parameters were ignored: there is no bookmark to wait for
            cause = error.cause
        except LineTooLong:
            raise MemberError(f"an event of a watch of {self._gvr} is too long") from None
        except MalformedResponse as error:
            raise MemberError(f"the cluster sent a watch of {self._gvr} {error}") from None
        finally:
            self._stream = None
            timer.stop()
            lasted = self._clock.seconds() - began
            self._at_once = self._at_once or lasted >= _STEADY
        if lasted < seconds - _STEADY:
            self.member.epoch += 1  # the API server ended, or the way to it; what is there now may be another one
        raise _Ended(cause)

    def _initial_event(self, line: bytes, replacement: Replacement) -> bool:
        """Take one event of the initial state; return whether it is complete now."""
        event = self.store.decoder.decode_event(line, wall_seconds(self._clock))
        if isinstance(event, Bookmark):
            if not event.initial_events_end:
                return False
            self._commit(replacement, event.version)
            return True
        if isinstance(event, WatchError):
            raise self._error(event)
        if isinstance(event, MalformedItem):
            self._note_malformed(event)
            return False
        if event.columns is not None:
            replacement.columns = event.columns
        if event.type is EventType.DELETED:
            replacement.remove(event.object)
        else:
            replacement.add(event.object)
            self._check_size(len(replacement))
        return False

    def _event(self, line: bytes) -> None:
        """Take one event of the watch."""
        store = self.store
        event = store.decoder.decode_event(line, wall_seconds(self._clock))
        if isinstance(event, Bookmark):
            self._position = max(self._position, event.version)
            store.progress(event.version)
        elif isinstance(event, WatchError):
            raise self._error(event)
        elif isinstance(event, MalformedItem):
            self._note_malformed(event)
        else:
            try:
                store.apply(event.type, event.object)
            except OutOfOrder as error:
                raise _Relist(str(error)) from None
            self._position = max(self._position, event.object.version)
            if event.columns is not None and store.columns is not None and event.columns != store.columns:
                raise _Relist("the columns of the Table have changed")
            self._check_size(len(store))

    def _check_size(self, objects: int) -> None:
        if objects > MAX_OBJECTS:
            raise MemberError(f"the cluster has more than {MAX_OBJECTS} objects of {self._gvr}")

    def _error(self, event: WatchError) -> Exception:
        if event.code == 410:
            return _Relist("the cluster has forgotten the version that the watch was to go on from (410)")
        text = f"a watch of {self._gvr} ended with {event.code} {requests.shown(event.reason or event.message)}"
        return MemberError(text, status=event.code, retry_after=float(event.retry_after))

    # -- success and failure -----------------------------------------------------------------------------------

    def _works(self) -> None:
        self._backoff.worked()
        self._failures = 0
        if self._logged:
            log.info("a resource of a cluster is followed again", event="reflector_ready", **self._about)
            self._logged = ""
        self.store.available()

    async def _failed(self, error: MemberError) -> None:
        """Note a failure, and wait before the next attempt."""
        self._at_once = False
        self._failures += 1
        if error.status == 404:
            await self.member.discovery.refresh()
            discovery = self.member.discovery
            if discovery.fresh and self._gvr not in discovery.resources:
                if self.store.synced:
                    self.store.clear()
                error = MemberError(f"the cluster does not serve {self._gvr}", status=404)
        self.store.unavailable(error.cause)
        self._log(error)
        await self.member.sleep(max(self._backoff.failed(), error.retry_after))

    def _log(self, error: MemberError) -> None:
        """Write one line for each kind of failure; that the member cannot be reached is in the log already."""
        lasting = error.status in (401, 403)
        if isinstance(error, MemberUnreachable) or (not lasting and self._failures < _LOGGED_AFTER):
            return
        kind = str(error.status) if error.status else error.cause
        if kind == self._logged:
            return
        self._logged = kind
        if error.status == 401:
            todo = f"give cluster {self.member.name} valid credentials"
        elif error.status == 403:
            todo = f"grant the proxy what `mcproxy rbac --cluster {self.member.name}` prints"
        elif error.status == 404:
            todo = "none if the definition was deleted; else see that the API service runs"
        else:
            todo = "see the log of the cluster's API server; it is tried again"
        log.warn(
            "a resource of a cluster is not followed",
            event="reflector_out",
            **self._about,
            cause=error.cause,
            todo=todo,
        )

    def _note_malformed(self, item: MalformedItem) -> None:
        if not self._logged_item:
            self._logged_item = True
            log.warn(
                "an object is left out of the cache; others of its resource are not logged",
                event="object_left_out",
                **self._about,
                cause=requests.shown(item.message),
                todo="see what the cluster's API server sends",
            )
