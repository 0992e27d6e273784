"""Lists a collection page by page, and limits the concurrent initial lists of one member."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.aggregate.cache.decoder import (
    DEEPER,
    KEPT_LEVELS,
    DeeplyNested,
    ListPage,
    MalformedItem,
    MalformedResponse,
)
from mcproxy.aggregate.cache.relist import Relist
from mcproxy.aggregate.reflector.collection import PAGE, Collection, StallTimer, list_path, refused, without_cells
from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.aggregate.warnings import texts_of
from mcproxy.kube.nesting import shallow
from mcproxy.net.wall_time import wall_seconds
from mcproxy.upstream.control import Use
from mcproxy.upstream.control_stream import BodyTooLarge, ControlError

STALLED = 30.0  # seconds without a byte of a list
MAX_PAGE = 64 * 1024 * 1024  # bytes; a longer page is requested again with fewer objects
_SLICE = 100  # objects that are decoded in one turn of the reactor
_MAX_RESTARTS = 2  # restarts of a paged list with an expired continue token, before it counts as a failure


class MemberLimits:
    """Limits of one member.

    `initial_lists`: a FIFO semaphore for initial lists and relists, so that a member that returns does not get all
    requests at once.
    """

    def __init__(self, max_initial_lists: int) -> None:
        self.initial_lists = DeferredSemaphore(max_initial_lists)
        self._without_watch_list: set[str] = set()

    def offers_watch_list(self, group: str) -> bool:
        """Return whether to try a WatchList for a group. API servers of different groups can differ in this."""
        return group not in self._without_watch_list

    def refuses_watch_list(self, group: str) -> None:
        """Record that this group's API server does not support WatchList."""
        self._without_watch_list.add(group)

    def forget(self) -> None:
        """Forget which groups lack WatchList, since the member may be another cluster or have another version now."""
        self._without_watch_list.clear()


class PagedList:
    """Replaces the objects of a store by a list in pages."""

    def __init__(
        self,
        collection: Collection,
        clock: IReactorTime,
        *,
        gone_back: Callable[[], None],
        commit: Callable[[Relist, int], None],
    ) -> None:
        """`gone_back` is called if the list is older than the store, `commit` with the whole list and its version."""
        self._collection = collection
        self._gvr = collection.gvr
        self._store = collection.store
        self._clock = clock
        self._gone_back = gone_back
        self._commit = commit

    async def run(self) -> None:
        """Replace the objects. Raises MemberError."""
        for _ in range(_MAX_RESTARTS + 1):
            if await self._run_once():
                return
        raise MemberError(f"lists of {self._gvr} take so long that their continue token expires", status=410)

    async def _run_once(self) -> bool:
        """List all pages once; return False if a continue token has expired, so that the list has to begin again."""
        store = self._store
        relist = store.replace()
        limit, token, version = PAGE, "", 0
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
                        self._gone_back()
                        relist = store.replace()
                elif page.version != version:
                    raise MemberError(f"the pages of a list of {self._gvr} have different versions")
                await self._add(relist, page)
                if (token and page.continue_token == token) or (page.continue_token and not len(page)):
                    raise MemberError(f"a list of {self._gvr} does not go on")
                token = page.continue_token
                if not token:
                    break
            self._commit(relist, version)
        finally:
            relist.abort()
        return True

    async def _page(self, limit: int, token: str) -> ListPage:
        """Request one page. Raises BodyTooLarge and MemberError."""
        path = list_path(self._gvr, self._store.namespace, limit=limit, token=token, table=self._collection.table)
        stream = await self._collection.open(path, Use.BULK)
        timer = StallTimer(self._clock, stream, STALLED, f"a list of {self._gvr} stalled")
        pieces = []
        size = 0
        try:
            if stream.status == 406 and self._collection.table:
                self._collection.table = False
                return await self._page(limit, token)
            if stream.status != 200:
                raise await refused(stream, "list", self._gvr)
            self._store.warnings = texts_of(stream.headers)
            while piece := await stream.read():
                timer.heard()
                size += len(piece)
                if size > MAX_PAGE:
                    raise BodyTooLarge
                pieces.append(piece)
            body = b"".join(pieces)
            pieces.clear()
            try:
                return self._store.decoder.decode_page(body, wall_seconds(self._clock))
            except DeeplyNested:
                body = await self._shallow(body)
            return self._store.decoder.decode_page(body, wall_seconds(self._clock), cut=True)
        except ControlError as error:
            self._collection.member.epoch += 1
            raise MemberError(error.cause) from None
        except MalformedResponse as error:
            raise MemberError(f"the cluster answered a list of {self._gvr} with {error}") from None
        finally:
            timer.stop()
            stream.close()

    async def _shallow(self, body: bytes) -> bytes:
        """Return a page with too deeply nested values replaced; this takes several turns of the reactor."""
        steps = shallow(body, KEPT_LEVELS, DEEPER)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: bytes = end.value
                return found
            await deferLater(self._clock, 0)

    async def _add(self, relist: Relist, page: ListPage) -> None:
        """Decode the objects of a page, a slice in each turn of the reactor."""
        if not len(relist):
            relist.columns = page.columns
        fits = relist.columns == page.columns
        for number, item in enumerate(page, 1):
            if isinstance(item, MalformedItem):
                self._collection.log_malformed(item)
                if item.key:
                    relist.leave_out(item.key)
            else:
                relist.add(item if fits else without_cells(item))
            if number % _SLICE == 0:
                await deferLater(self._clock, 0)
        self._collection.check_size(len(relist))
