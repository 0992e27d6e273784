"""A watch of APIService objects: the backend's events, and between them events for the server's own objects ("ours").

Our objects are sent at the beginning (as ADDED, or as MODIFIED if the client resumes and may know their state) and
whenever a condition changes. A reload that changes the registrations ends the watch with 410, since it is unknown
whether the backend has an object of a name that was hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.apiservices.availability import Condition, Registration
from mcproxy.apiservices.object_merge import Maker, Own, WatchMerge, encode
from mcproxy.kube.status import expired
from mcproxy.proxy.merged_watch import BackendWatch

if TYPE_CHECKING:
    from mcproxy.kube.list_options import ListOptions
    from mcproxy.proxy.request import Request

_LASTS = 1800  # seconds of a watch without a backend that could end it
_BOOKMARK = 60.0  # seconds between two bookmarks without a backend


class APIServiceWatch(BackendWatch):
    """The watch of one client."""

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
        """`names` are the names of all our objects; `ours` returns the present state of the selected objects.

        `version` is the version from which the client watches, or the backend's present version.
        """
        super().__init__(request)
        self._clock = clock
        self._maker = maker
        self._options = options
        self._ours = ours
        self._merge = WatchMerge(maker, names, version)
        self._told: dict[str, Own] = {}
        self._initial = True  # the backend's initial events are not complete
        self._behind = False  # a condition has changed, and the client reads nothing

    def begin_alone(self, version: str) -> None:
        """Begin a watch of our objects without a backend watch; `version` is the present version."""
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
        """Handle a change of a condition."""
        if self._over or self._initial or not self._exchange.responded:
            return
        if self.blocked:
            self._behind = True  # do not queue events while the client reads nothing
        else:
            self._tell_changes()

    def configured(self, *, same: bool) -> None:
        """Handle a new configuration in force; `same`: the server has the same API services."""
        if self._over or same:
            return
        status = expired("too old resource version: a reload has changed the API services of the server").status()
        if self._exchange.responded:
            self._write([encode({"type": "ERROR", "object": status})])
        self.end_gracefully()

    def _tell_changes(self) -> None:
        """Send the objects that have changed since the client got them; without a backend, versions are times."""
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

    def resume_response(self) -> None:
        if self._behind:
            self._behind = False
            self._tell_changes()
        super().resume_response()

    def _accepted(self) -> None:
        if self._options.initial_events:
            self._merge.initial = self._initial_lines
        else:
            self._add_ours()

    def _lines(self, data: bytes) -> list[bytes]:
        return self._merge.lines(data)
