"""Opens watches on an aggregate: options, rights of the user, start version and response head.

An error before the response begins is sent as an HTTP status: invalid options, a missing right, or a resource version
from which a watch cannot resume. A later error is sent as an ERROR event, after which the response ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.authorization import check_decided
from mcproxy.aggregate.cache.event_log import MemoryBudget
from mcproxy.aggregate.encoding.encoder import Encoder, encoder_for
from mcproxy.aggregate.encoding.objects import Representation, requested_representation
from mcproxy.aggregate.freshness import (
    FreshnessWaiter,
    NotHeld,
    Probe,
    check_absent,
    check_parts,
    check_readable,
    read_version,
    subject,
)
from mcproxy.aggregate.selection import KnownField, Selection, parse_selection
from mcproxy.aggregate.warnings import block, left_out_text, warnings
from mcproxy.aggregate.watch.catch_up import CatchUp
from mcproxy.aggregate.watch.changes import WatchSelection
from mcproxy.aggregate.watch.fan_out import FanOut
from mcproxy.aggregate.watch.position import WatchPosition
from mcproxy.aggregate.watch.scheduler import WatchScheduler
from mcproxy.aggregate.watch.watch_state import Rights, Undecided, WatchOptions
from mcproxy.aggregate.watch.watcher import Watcher
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.http.deadlines import Deadlines
from mcproxy.kube import list_options, media_types
from mcproxy.kube.list_options import ListOptions
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.net.wall_time import wall_clock

if TYPE_CHECKING:
    from mcproxy.aggregate.authorization import ViewAuthorizer
    from mcproxy.aggregate.request import AggregatedRequest, LeftOut
    from mcproxy.aggregate.view.view import MemberView, View

log = Logger(__name__)

MIN_TIMEOUT, MAX_TIMEOUT = 1800.0, 3600.0
"""Minimum and maximum seconds of a watch without timeoutSeconds (kube-apiserver's min-request-timeout)."""
_CONTENT_TYPE = b"Content-Type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """The configuration of an aggregate's watches; `initial_sync_timeout` in seconds."""

    unavailable: UnavailableMembers = UnavailableMembers.STALE
    initial_sync_timeout: float = 10.0


class WatchHandler:
    """All watches on the views of one aggregate."""

    def __init__(
        self,
        clock: IReactorTime,
        random: Callable[[], float],
        settings: WatchSettings,
        freshness: FreshnessWaiter,
        probe: Probe,
        scheduler: WatchScheduler | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """A reload can replace `settings` and `freshness`. All aggregates of a process share `scheduler` and `budget`
        (for the queued changes).
        """
        self.settings = settings
        self.freshness = freshness
        self._clock = clock
        self._random = random
        self._probe = probe
        self._scheduler = WatchScheduler(clock) if scheduler is None else scheduler
        self._budget = budget
        self._deadlines = Deadlines(clock)
        self._fan_outs: dict[View, FanOut] = {}

    def __len__(self) -> int:
        """The number of open watches."""
        return sum(len(fan_out.watchers) for fan_out in self._fan_outs.values())

    @property
    def queued_bytes(self) -> int:
        """Bytes of the queued changes, for watches that have not received them or may resume."""
        return sum(fan_out.queue.size for fan_out in self._fan_outs.values())

    def stop(self) -> None:
        """End all watches, each between two events."""
        for fan_out in list(self._fan_outs.values()):
            for watcher in list(fan_out.watchers):
                watcher.end_gracefully()
        self._deadlines.stop()

    async def serve(
        self, request: AggregatedRequest, view: View, reads: ViewAuthorizer, known_field: KnownField | None = None
    ) -> None:
        """Answer a watch; return when its response has begun. Raises StatusError before that."""
        info = request.info
        options = list_options.parse(parse_query(request.target.partition(b"?")[2]), watch=True)
        custom = view.custom
        wanted = requested_representation(_negotiated(request, custom=custom), _include_object(request))
        selection = parse_selection(
            options.label_selector, options.field_selector, view.resource.gvr, custom=custom, known_field=known_field
        )
        allowed, left_out = await reads.allowed(request, [member.name for member in view.members], "watch", info)
        if view.closed:  # closed during the authorization: the watch would get no events and never end
            raise retry_after(503, f"what serves {view.resource.gvr} has just changed", 1)
        check_decided(left_out, self.settings.unavailable)
        namespace = info.namespace if view.resource.namespaced else ""
        chosen = watch_selection(selection, options, namespace, info.name)
        parts = self._parts(view, options, chosen, allowed, left_out)
        down = self._down(view, allowed, chosen.namespace)
        initial = options.initial_events is True
        if parts and not initial and view.conflicts.shows_one_in(chosen.namespace):
            await self._reach(request, view, parts, chosen.namespace, options.resource_version)
        if initial:
            _check_initial(view, chosen, parts or {}, down, allowed, left_out)

        fan_out = self._fan_outs.get(view)
        if fan_out is None:
            fan_out = self._fan_outs[view] = FanOut(
                view, self._scheduler, self._clock, self._probe, self._empty, self._budget
            )
        left_out_while_down = frozenset[str]()
        if self.settings.unavailable is UnavailableMembers.PARTIAL:
            left_out_while_down = frozenset(member.name for member in down if member.name not in (parts or ()))
        try:
            members = frozenset(allowed) - left_out_while_down
            resumed = {} if initial or parts is None else parts
            position = WatchPosition(fan_out.queue, fan_out.watched_stores, members, chosen.namespace, resumed)
            catch_up = CatchUp(fan_out.queue, position, chosen, self._encoder(fan_out, wanted))
            lines = None if initial else catch_up.begin()
        except BaseException:
            if not fan_out.watchers:
                fan_out.stop()
            raise
        shown = [member for member in view.members if member.name in allowed]
        texts = [text for member in shown for text in member.warnings(chosen.namespace)]
        if not chosen.name:
            texts += [text for member in shown if (text := member.unreadable(chosen.namespace)) is not None]
        texts += [left_out_text(each.member, each.why) for each in left_out]
        stale = self.settings.unavailable is UnavailableMembers.STALE
        texts += [trouble.text(member.name, stale=stale) for member in down if (trouble := member.trouble) is not None]
        exchange = request.exchange
        exchange.respond(200, b"OK", request.own_fields(_CONTENT_TYPE + block(warnings(texts))), -1)
        exchange.flush()
        watch_options = self._watch_options(options, lambda: self._recheck(request, view, reads), reads.recheck_after)
        watcher = Watcher(
            exchange, fan_out, catch_up, watch_options, self._clock, left_out_while_down, self._deadlines.remove
        )
        self._deadlines.add(watcher)
        if exchange.ended:
            watcher.cancelled()
            return
        exchange.attach(watcher)
        request.served_by(*allowed, cached=True)
        request.long_running()
        if initial:
            await self._wait_for_caches(watcher, view, options, allowed, chosen.namespace, parts)
        watcher.start(lines)
        if parts and not initial and not watcher.ended:
            fan_out.unreached.add(watcher)

    def _empty(self, fan_out: FanOut) -> None:
        if self._fan_outs.get(fan_out.view) is fan_out:
            del self._fan_outs[fan_out.view]

    def _encoder(self, fan_out: FanOut, wanted: Representation) -> Encoder:
        """Return the encoder of a representation, the same for all watches of the view that request it."""
        found = fan_out.encoders.get(wanted)
        if found is None:
            view = fan_out.view
            found = encoder_for(wanted, view.resource, wall_clock(self._clock), custom=view.custom)
            fan_out.encoders[wanted] = found
        return found

    def _watch_options(
        self, options: ListOptions, recheck: Callable[[], Awaitable[Rights]], interval: float
    ) -> WatchOptions:
        spread = self._random()
        timeout = float(options.timeout) if options.timeout > 0 else MIN_TIMEOUT + (MAX_TIMEOUT - MIN_TIMEOUT) * spread
        return WatchOptions(
            timeout=timeout,
            bookmarks=options.bookmarks,
            initial_end=options.initial_events is True,
            initial_sync_timeout=self.settings.initial_sync_timeout,
            recheck=recheck,
            recheck_interval=interval,
            spread=spread,
        )

    # -- start version ----------------------------------------------------------------------------------------

    def _parts(
        self,
        view: View,
        options: ListOptions,
        chosen: WatchSelection,
        allowed: Sequence[str],
        left_out: Sequence[LeftOut],
    ) -> dict[str, int] | None:
        """Return each member's version after which the watch begins; None: it begins with the cached state."""
        owner, text = _owner(view, chosen, allowed), options.resource_version
        parts = read_version(view, text, owner, chosen.name, chosen.namespace, left_out)
        if parts is not None:
            check_parts(view, parts, chosen.namespace, left_out)
        if parts is None and options.initial_events is False:
            # Explicitly without initial events: begin with the next change.
            versions = view.versions_of(allowed, chosen.namespace)
            parts = {name: version for name, version in zip(view.layout.names, versions, strict=True) if version}
        return parts

    async def _reach(
        self, request: AggregatedRequest, view: View, parts: dict[str, int], namespace: str, text: str
    ) -> None:
        """Wait until the caches have reached the resumed version; before that, it is unknown which object of a name the
        client has. Raises StatusError 503, 504.
        """
        waiting = Deferred.fromCoroutine(_awaited(self.freshness.at_least(view, tuple(parts), namespace, parts, text)))
        await request.while_connected(waiting)
        if view.closed:
            raise retry_after(503, f"what serves {view.resource.gvr} has just changed", 1)

    def _down(self, view: View, allowed: Sequence[str], namespace: str) -> list[MemberView]:
        """Return the unavailable members of the watch. Raises StatusError (503) if no member may be unavailable."""
        down = [
            member
            for member in view.members
            if member.name in allowed and member.covers(namespace) and member.unavailable_since is not None
        ]
        if down and self.settings.unavailable is UnavailableMembers.FAIL:
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
        """For a streaming list, wait until the caches are as fresh as requested. Errors end the watch."""
        try:
            if not options.resource_version:
                await self.freshness.current(view, allowed, namespace)
            elif parts:
                await self.freshness.at_least(view, allowed, namespace, parts, options.resource_version)
        except StatusError as error:
            watcher.fail(error)

    async def _recheck(self, request: AggregatedRequest, view: View, reads: ViewAuthorizer) -> Rights:
        names = [member.name for member in view.members]
        if not _decided(request).issuperset(names):
            await request.decide_again()  # a reload has added a member about which nothing was decided
            if not _decided(request).issuperset(names):
                raise Undecided
        allowed, left_out = await reads.again(request, names, request.info)
        return Rights(frozenset(allowed), frozenset(each.member for each in left_out if each.undecided))


async def _awaited(waiting: Awaitable[object]) -> object:
    return await waiting


def _decided(request: AggregatedRequest) -> frozenset[str]:
    """Return the members that were decided for the request: allowed or refused."""
    return frozenset((*request.members, *(each.member for each in request.left_out)))


def watch_selection(selection: Selection, options: ListOptions, namespace: str, name: str) -> WatchSelection:
    """Return the selection of a watch; `namespace` and `name` are those of its path."""
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


def _check_initial(
    view: View,
    chosen: WatchSelection,
    parts: Mapping[str, int],
    down: Sequence[MemberView],
    allowed: Sequence[str],
    left_out: Sequence[LeftOut],
) -> None:
    """Raise StatusError (503) if the end of the initial events would be wrong because a member's state is unknown.

    A streaming list is a list: it must not be older than its version, and for a single name it is equivalent to a get.
    """
    for member in down:
        if parts.get(member.name, 0) > member.version(chosen.namespace):
            raise NotHeld(member.name)
    away = [member.name for member in down]
    if chosen.name and not _known(view, chosen, allowed):
        check_absent(subject(view, chosen.name), view, chosen.namespace, left_out, away)
        check_readable(view, allowed, chosen.namespace, chosen.name)


def _known(view: View, chosen: WatchSelection, allowed: Sequence[str]) -> bool:
    """Whether the caches have the object of a single-name watch."""
    if _owner(view, chosen, allowed) is not None:
        return True
    return any(
        obj.name == chosen.name
        for member in view.members
        if member.name in allowed
        for store in member.stores_of(chosen.namespace)
        for obj in store.snapshot().range(chosen.namespace)
    )


def _nothing(obj: object) -> bool:
    return False


def _owner(view: View, chosen: WatchSelection, allowed: Sequence[str]) -> str | None:
    """Return the member that has the only watched object; None if several objects can match, or none exists."""
    return view.owner(allowed, chosen.namespace, chosen.name) if chosen.name else None


def _negotiated(request: AggregatedRequest, *, custom: bool) -> media_types.NegotiatedMediaType:
    try:
        return media_types.negotiate((request.head.header(b"accept") or b"").decode("latin-1"), custom=custom)
    except StatusError as error:
        if error.code != 406:
            raise
        raise media_types.only_accepted((f"{media_types.JSON};stream=watch",)) from None


def _include_object(request: AggregatedRequest) -> str:
    return parse_query(request.target.partition(b"?")[2]).get("includeObject", "")
