"""Opens watches: from a request to a response that has begun.

What can be known before the response begins is answered as an HTTP status: invalid options, no right, a resource
version that cannot be resumed. What is found later is an ERROR event, after which the response ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.authorization import check_decided
from mcproxy.aggregate.representation.objects import PARTIAL, TABLE, Representation, representation
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.selection import KnownField, Selection, parse_selection
from mcproxy.aggregate.warnings import block, left_out_text, unavailable_text, warnings
from mcproxy.aggregate.watch.cursor import Cursor
from mcproxy.aggregate.watch.fan_out import FanOut
from mcproxy.aggregate.watch.rendering import ObjectRendering, PartialRendering, Rendering
from mcproxy.aggregate.watch.selection import WatchSelection
from mcproxy.aggregate.watch.table_rendering import TableRendering
from mcproxy.aggregate.watch.terms import Undecided, WatchTerms
from mcproxy.aggregate.watch.turns import Turns
from mcproxy.aggregate.watch.watcher import Watcher
from mcproxy.config.model.aggregates import Unavailable
from mcproxy.http.deadlines import Deadlines
from mcproxy.kube import list_options, media_types
from mcproxy.kube.list_options import ListOptions
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.net.wall_time import wall_clock

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.view.view import MemberView, View
    from mcproxy.kube.requestinfo import RequestInfo

log = Logger()

MIN_TIMEOUT, MAX_TIMEOUT = 1800.0, 3600.0
"""Seconds that a watch without timeoutSeconds lasts: something between them (kube-apiserver's min-request-timeout)."""
PROBE_TIMEOUT = 3.0
_CONTENT_TYPE = b"Content-Type: application/json\r\n"

Probe = Callable[["Store", float], Awaitable[int]]
"""`Reflectors.probe`: the member's version now; raises where it does not answer within so many seconds."""


class Freshness(Protocol):
    """Waits for caches (`reads.freshness.FreshnessWaiter`); raises StatusError 503, 504."""

    def current(self, view: View, allowed: Sequence[str], namespace: str) -> Awaitable[object]: ...

    def at_least(
        self, view: View, allowed: Sequence[str], namespace: str, wanted: dict[str, int], text: str
    ) -> Awaitable[object]: ...


class ReadAuthorizer(Protocol):
    """Who may read (`authorization.MemberReads`)."""

    @property
    def recheck_after(self) -> float: ...

    def allowed(
        self, request: AggregatedRequest, members: Sequence[str], verb: str, info: RequestInfo
    ) -> Awaitable[tuple[tuple[str, ...], tuple[tuple[str, str], ...]]]: ...


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """What of an aggregate's configuration concerns watches; `initial_sync_timeout` in seconds."""

    unavailable: Unavailable = Unavailable.STALE
    initial_sync_timeout: float = 10.0


class Watches:
    """All watches on the views of one aggregate."""

    def __init__(
        self,
        clock: IReactorTime,
        random: Callable[[], float],
        settings: WatchSettings,
        freshness: Freshness,
        probe: Probe,
        turns: Turns | None = None,
    ) -> None:
        """`settings` and `freshness` may be replaced at a reload. `turns` is one for all aggregates of a process."""
        self.settings = settings
        self.freshness = freshness
        self._clock = clock
        self._random = random
        self._probe = probe
        self._turns = Turns(clock) if turns is None else turns
        self._deadlines = Deadlines(clock)
        self._fan_outs: dict[View, FanOut] = {}

    def __len__(self) -> int:
        """How many watches are open."""
        return sum(len(fan_out.watchers) for fan_out in self._fan_outs.values())

    @property
    def queued_bytes(self) -> int:
        """Bytes of the changes that are kept for watches which have not got them, or may resume."""
        return sum(fan_out.queue.size for fan_out in self._fan_outs.values())

    def stop(self) -> None:
        """End all watches, each between two events."""
        for fan_out in list(self._fan_outs.values()):
            for watcher in list(fan_out.watchers):
                watcher.finish_up()
        self._deadlines.stop()

    async def serve(
        self, request: AggregatedRequest, view: View, reads: ReadAuthorizer, known_field: KnownField | None = None
    ) -> None:
        """Answer a watch. Returns when all of it is under way; raises StatusError before the response has begun."""
        info = request.info
        options = list_options.parse(parse_query(request.target.partition(b"?")[2]), watch=True)
        custom = view.custom
        wanted = representation(_negotiated(request, custom=custom), _include_object(request))
        selection = parse_selection(
            options.label_selector, options.field_selector, view.resource.gvr, custom=custom, known_field=known_field
        )
        allowed, left_out = await reads.allowed(request, [member.name for member in view.members], "watch", info)
        if view.closed:  # while the members were asked: nothing would ever come, and nothing end the watch
            raise retry_after(503, f"what serves {view.resource.gvr} has just changed", 1)
        check_decided(left_out, self.settings.unavailable)
        namespace = info.namespace if view.resource.namespaced else ""
        chosen = watch_selection(selection, options, namespace, info.name)
        parts = self._parts(view, options, chosen, allowed)
        down = self._down(view, allowed, chosen.namespace)

        fan_out = self._fan_outs.get(view)
        if fan_out is None:
            fan_out = self._fan_outs[view] = FanOut(view, self._turns, self._clock, self._empty)
        initial = options.initial_events is True
        postponed = frozenset[str]()
        if self.settings.unavailable is Unavailable.PARTIAL:
            postponed = frozenset(member.name for member in down if member.name not in (parts or ()))
        try:
            members = frozenset(allowed) - postponed
            cursor = Cursor(fan_out, members, chosen, self._rendering(fan_out, wanted), None if initial else parts)
            source = None if initial else cursor.start()
        except BaseException:
            if not fan_out.watchers:
                fan_out.stop()
            raise
        shown = [member for member in view.members if member.name in allowed]
        texts = [text for member in shown for text in member.warnings(chosen.namespace)]
        texts += [left_out_text(member, why) for member, why in left_out]
        stale = self.settings.unavailable is Unavailable.STALE
        texts += [unavailable_text(member.name, member.unavailable_since or 0.0, stale=stale) for member in down]
        exchange = request.exchange
        exchange.respond(200, b"OK", request.own_fields(_CONTENT_TYPE + block(warnings(texts))), -1)
        exchange.flush()
        terms = self._terms(options, lambda: self._recheck(request, view, reads), reads.recheck_after)
        watcher = Watcher(exchange, fan_out, cursor, terms, self._clock, postponed, self._deadlines.remove)
        self._deadlines.add(watcher)
        if exchange.ended:
            watcher.cancelled()
            return
        exchange.attach(watcher)
        request.served_by(*allowed, cached=True)
        request.long_running()
        if initial:
            await self._wait_for_caches(watcher, view, options, allowed, chosen.namespace, parts)
        watcher.start(source)
        if parts and not initial:
            await self._check_future(watcher, view, parts, chosen.namespace)

    def _empty(self, fan_out: FanOut) -> None:
        if self._fan_outs.get(fan_out.view) is fan_out:
            del self._fan_outs[fan_out.view]

    def _rendering(self, fan_out: FanOut, wanted: Representation) -> Rendering:
        """Return the rendering of a representation, one for all watches of the view that ask for the same."""
        found = fan_out.renderings.get(wanted)
        if found is None:
            resource = fan_out.view.resource
            if wanted.kind == TABLE:
                found = TableRendering(
                    wanted,
                    resource,
                    lambda: [store for member in fan_out.state.members for store in member.stores],
                    wall_clock(self._clock),
                )
            elif wanted.kind == PARTIAL:
                found = PartialRendering(wanted.version)
            else:
                found = ObjectRendering(resource.kind, resource.gvr.api_version)
            fan_out.renderings[wanted] = found
        return found

    def _terms(
        self, options: ListOptions, recheck: Callable[[], Awaitable[frozenset[str]]], interval: float
    ) -> WatchTerms:
        spread = self._random()
        timeout = float(options.timeout) if options.timeout > 0 else MIN_TIMEOUT + (MAX_TIMEOUT - MIN_TIMEOUT) * spread
        return WatchTerms(
            timeout=timeout,
            bookmarks=options.bookmarks,
            initial_end=options.initial_events is True,
            initial_sync_timeout=self.settings.initial_sync_timeout,
            recheck=recheck,
            recheck_interval=interval,
            spread=spread,
        )

    # -- where it begins --------------------------------------------------------------------------------------

    def _parts(
        self, view: View, options: ListOptions, chosen: WatchSelection, allowed: Sequence[str]
    ) -> dict[str, int] | None:
        """Return the version of each member that the watch begins behind; None: with what is cached."""
        parts = view.reader.read(options.resource_version, _owner(view, chosen, allowed))
        if parts is None and options.initial_events is False:
            # Explicitly without initial events: from now on.
            versions = view.versions_of(allowed, chosen.namespace)
            parts = {name: version for name, version in zip(view.layout.names, versions, strict=True) if version}
        return parts

    def _down(self, view: View, allowed: Sequence[str], namespace: str) -> list[MemberView]:
        """Return the members of the watch that are down. Raises StatusError (503) if that must not be."""
        down = [
            member
            for member in view.members
            if member.name in allowed and member.covers(namespace) and member.unavailable_since is not None
        ]
        if down and self.settings.unavailable is Unavailable.FAIL:
            name = down[0].name
            raise retry_after(503, f"cluster {name} is unavailable", 1, name=name)
        return down

    async def _wait_for_caches(
        self,
        watcher: Watcher,
        view: View,
        options: ListOptions,
        allowed: Sequence[str],
        namespace: str,
        parts: dict[str, int] | None,
    ) -> None:
        """A streaming list: wait until the caches are as fresh as was asked for. Errors end the watch."""
        try:
            if not options.resource_version:
                await self.freshness.current(view, allowed, namespace)
            elif parts:
                up = {member.name for member in view.members if member.unavailable_since is None}
                wanted = {name: version for name, version in parts.items() if name in up}
                await self.freshness.at_least(view, allowed, namespace, wanted, options.resource_version)
        except StatusError as error:
            watcher.fail(error)

    async def _check_future(self, watcher: Watcher, view: View, parts: dict[str, int], namespace: str) -> None:
        """End a watch from a version that a member has not reached: another cluster stands behind its name now.

        A version that only this replica has not reached is waited for, as a kube-apiserver does.
        """
        ahead = [
            (store, parts[member.name])
            for member in view.members
            if member.name in parts and member.unavailable_since is None
            for store in member.stores_of(namespace)
            if store.synced and store.version < parts[member.name]
        ]
        if not ahead:
            return
        probes = [Deferred.fromCoroutine(self._probed(store)) for store, _ in ahead]
        results = await DeferredList(probes, consumeErrors=True)
        for (store, part), (_, version) in zip(ahead, results, strict=True):
            if isinstance(version, int) and version < part:
                watcher.fail(Expired(f"cluster {store.member} is at version {version}, before {part}"))
            elif isinstance(version, Failure):
                log.debug(
                    "a member does not answer",
                    event="member_not_answering",
                    cluster=store.member,
                    cause=str(version.value),
                )

    async def _probed(self, store: Store) -> int:
        return await self._probe(store, PROBE_TIMEOUT)

    async def _recheck(self, request: AggregatedRequest, view: View, reads: ReadAuthorizer) -> frozenset[str]:
        names = [member.name for member in view.members]
        if not _decided(request).issuperset(names):
            await request.decide_again()  # a reload has added a member
            if not _decided(request).issuperset(names):
                raise Undecided
        allowed, _ = await reads.allowed(request, names, "watch", request.info)
        return frozenset(allowed)


def _decided(request: AggregatedRequest) -> frozenset[str]:
    """Return the members of which it is decided whether the request may touch them."""
    return frozenset((*request.members, *(name for name, _ in request.left_out)))


def watch_selection(selection: Selection, options: ListOptions, namespace: str, name: str) -> WatchSelection:
    """Return what a watch selects; `namespace` and `name` are those of its path."""
    wanted = selection.namespace or ""
    matches = selection.matches if selection else None
    if namespace and wanted and namespace != wanted:
        matches = _nothing
    return WatchSelection(
        key=(namespace, name, options.label_selector, options.field_selector),
        namespace=namespace,
        name=name or selection.name or "",
        matches=matches,
        cost=selection.cost,
    )


def _nothing(obj: object) -> bool:
    return False


def _owner(view: View, chosen: WatchSelection, allowed: Sequence[str]) -> str | None:
    """Return the member that has the only object that is watched; None if there may be several, or there is none."""
    if not chosen.name:
        return None
    for member in view.members:
        if member.name not in allowed:
            continue
        for store in member.stores_of(chosen.namespace):
            if store.get(chosen.namespace, chosen.name) is not None:
                return member.name
    return None


def _negotiated(request: AggregatedRequest, *, custom: bool) -> media_types.Accepted:
    try:
        return media_types.negotiate((request.head.header(b"accept") or b"").decode("latin-1"), custom=custom)
    except StatusError as error:
        if error.code != 406:
            raise
        raise media_types.only_accepted((f"{media_types.JSON};stream=watch",)) from None


def _include_object(request: AggregatedRequest) -> str:
    return parse_query(request.target.partition(b"?")[2]).get("includeObject", "")
