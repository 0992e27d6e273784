"""A watch of APIService objects: the backend's events with ours between them.

The backend's own watch, opened as the client, decides about everything: a refusal is passed on, and the watch lasts as
long as it. The client gets whole lines alone, so it can be ended cleanly at any time. Ours come at the beginning (as
ADDED; MODIFIED where the client resumes, for it may or may not know their present state) and whenever a condition
changes. A reload that changes the registrations ends the watch with 410: whether the backend has an object of a name
that was hidden is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.apiservices.condition import Condition, Registration
from mcproxy.apiservices.object_merge import Maker, Own, Unreadable, WatchMerge
from mcproxy.apiservices.registration_objects import encode
from mcproxy.kube.apiserver_errors import expired
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header
    from mcproxy.kube.list_options import ListOptions
    from mcproxy.proxy.request import Request

JSON = b"Content-Type: application/json\r\n"
_MAX_REFUSAL = 256 * 1024  # bytes of an answer that is no watch
_LASTS = 1800  # seconds, where there is no backend that ends it
_BOOKMARK = 60.0  # seconds between two bookmarks there


class APIServiceWatch:
    """One watch. It is the handler of the client's exchange, and the sink of the backend's response."""

    def __init__(
        self,
        request: Request,
        clock: IReactorTime,
        maker: Maker,
        options: ListOptions,
        *,
        names: Sequence[str],
        ours: Callable[[], Sequence[Own]],
        version: str,
    ) -> None:
        """`names` are those of all of ours, `ours` returns the selected ones as they are now.

        `version` is from where the client watches, or what the backend has now.
        """
        self.begun: Deferred[MemberResponse | None] = Deferred()
        """Fires with None when the watch has begun, else with what the backend has answered instead."""
        self._request = request
        self._exchange = request.exchange
        self._clock = clock
        self._maker = maker
        self._options = options
        self._ours = ours
        self._merge = WatchMerge(maker, names, version)
        self._backend: Exchange | None = None
        self._refused: tuple[int, bytes] | None = None
        self._body: list[bytes] = []
        self._body_size = 0
        self._told: dict[str, Own] = {}
        self._initial = True  # the initial events of the backend are not over
        self._over = False
        self._behind = False  # a condition has changed, and the client could not be told
        self._unsubscribe: list[Callable[[], None]] = []
        self._timers: list[IDelayedCall] = []
        self._lines: list[bytes] = []

    def follow(self, *subscriptions: Callable[[], None]) -> None:
        """Call these when the watch is over."""
        self._unsubscribe += subscriptions

    def opened(self, backend: Exchange) -> None:
        """The backend was asked on this exchange."""
        if self._over:
            backend.cancel()
        else:
            self._backend = backend

    def begin_alone(self, version: str) -> None:
        """Begin a watch of ours without a backend's; `version` is of now."""
        self._refused = None
        self._merge.version = version
        self._respond()
        self._add_ours()
        if self._options.initial_events:
            self._write([self._maker.bookmark(self._merge.version, initial_end=True, heading=False)])
        lasts = min(max(self._options.timeout, 0) or _LASTS, _LASTS)
        self._timers.append(self._clock.callLater(lasts, self.end_gracefully))
        if self._options.bookmarks:
            self._timers.append(self._clock.callLater(_BOOKMARK, self._bookmark))

    # -- ours -----------------------------------------------------------------------------------------------------

    def changed(self, registration: Registration, condition: Condition) -> None:
        """A condition has changed."""
        if self._over or self._initial or not self._exchange.responded:
            return
        if self.blocked:
            self._behind = True  # conditions may change for as long as the client reads nothing
        else:
            self._tell_changes()

    def configured(self, *, same: bool) -> None:
        """A configuration has come into force; `same`: with the same API services of the server."""
        if self._over or same:
            return
        status = expired("too old resource version: a reload has changed the API services of the server").status()
        if self._exchange.responded:
            self._write([encode({"type": "ERROR", "object": status})])
        self.end_gracefully()

    def _tell_changes(self) -> None:
        """Tell what is otherwise than the client knows it; without a backend versions are times."""
        lines = []
        for own in self._ours():
            name = own.service.object_name
            if self._told.get(name) != own:
                self._told[name] = own
                if self._backend is None:
                    self._merge.version = str(int(self._maker.wall() * 1000))
                lines.append(self._merge.ours("MODIFIED", own))
        self._write(lines)

    def _add_ours(self) -> None:
        self._write(self._initial_lines())

    def _initial_lines(self) -> list[bytes]:
        resumes = self._options.resource_version not in ("", "0") and not self._options.initial_events
        self._initial = False
        lines = []
        for own in self._ours():
            self._told[own.service.object_name] = own
            lines.append(self._merge.ours("MODIFIED" if resumes else "ADDED", own))
        return lines

    def _bookmark(self) -> None:
        self._merge.version = str(int(self._maker.wall() * 1000))
        self._write([self._maker.bookmark(self._merge.version, initial_end=False, heading=False)])
        self._timers.append(self._clock.callLater(_BOOKMARK, self._bookmark))

    # -- the client -----------------------------------------------------------------------------------------------

    def _respond(self) -> None:
        request, exchange = self._request, self._exchange
        exchange.respond(200, b"OK", request.own_fields(JSON), -1)
        exchange.flush()
        request.begin_session()
        if exchange.handler is None and not exchange.ended:
            exchange.attach(self)
        if not self.begun.called:
            self.begun.callback(None)

    def _write(self, lines: list[bytes]) -> None:
        if lines and not self._over and not self._exchange.ended:
            self._exchange.write(b"".join(lines))
            self._exchange.flush()

    def body_data(self, data: bytes) -> None:
        """A watch has no body."""

    def body_end(self, trailers: list[Header]) -> None:
        """Likewise."""

    def cancelled(self) -> None:
        self.stop()

    def pause_response(self) -> None:
        if self._backend is not None and self._backend.handler is not None:
            self._backend.handler.pause_response()

    def resume_response(self) -> None:
        if self._behind:
            self._behind = False
            self._tell_changes()
        if self._backend is not None and self._backend.handler is not None:
            self._backend.handler.resume_response()

    def end_gracefully(self) -> None:
        self.stop()
        if self._exchange.responded and not self._exchange.ended:
            self._exchange.end()

    def stop(self) -> None:
        """End everything but the client's response."""
        if self._over:
            return
        self._over = True
        for each in self._unsubscribe:
            each()
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.cancel()

    # -- the backend (subrequest.StreamSink) ----------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether the client does not take what is written."""
        return self._exchange.responded and not self._exchange.ended and self._exchange.write_blocked

    def head(self, status: int, fields: bytes) -> None:
        """The head of the backend's response is there."""
        if self._over:
            return
        if status != 200:
            self._refused = status, fields
            return
        self._respond()
        if self._options.initial_events:
            self._merge.initial = self._initial_lines
        else:
            self._add_ours()

    def data(self, data: bytes) -> None:
        """Bytes of the backend's response."""
        if self._over:
            return
        if self._refused is not None:
            self._body.append(data)
            self._body_size += len(data)
            if self._body_size > _MAX_REFUSAL:
                self.failed(StatusError(502, "the backend has refused the watch at great length", reason="BadGateway"))
            return
        try:
            self._write(self._merge.lines(data))
        except Unreadable:
            self._request.reason = "upstream_broken"
            self.stop()
            self._exchange.abort()

    def flush(self) -> None:
        """Lines are sent as they come."""

    def ended(self) -> None:
        """The backend's response is complete."""
        from mcproxy.aggregate.request import MemberResponse

        self._backend = None
        if self._over:
            return
        if self._refused is None:
            self.end_gracefully()
        elif not self.begun.called:
            status, block = self._refused
            fields = tuple(
                (name, value.strip()) for name, _, value in (line.partition(b":") for line in block.split(b"\r\n")[:-1])
            )
            self.begun.callback(MemberResponse("", status, fields, b"".join(self._body)))

    def failed(self, refusal: StatusError) -> None:
        """There is no response, or it was broken off: the client, which has whole events, resumes."""
        self._backend = None
        if self._over:
            return
        if self._exchange.responded:
            self._request.reason = "upstream_closed_watch"
            self.end_gracefully()
            return
        self.stop()
        if not self.begun.called:
            self.begun.errback(refusal)
