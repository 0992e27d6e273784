"""Reloads run one at a time: a request during a reload is served by the next one, which starts after it.

One reload serves all requests that came meanwhile, since it reads the files after the requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from mcproxy.config.dump.changes import Change


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reload. Without `errors` the new configuration is in force, else the old one still is."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    invalid: bool = False
    """The errors are those of the files, as `mcproxy check` prints them, not those of applying the configuration."""
    changes: tuple[Change, ...] = ()
    """What the new configuration changes of the one before."""
    at: float = 0.0
    """When it had ended: seconds since 1970."""

    @property
    def ok(self) -> bool:
        return not self.errors


class Reloader:
    """Runs a coroutine function, one run at a time, with at most one more queued."""

    def __init__(self, reload: Callable[[], Awaitable[ReloadResult]]) -> None:
        self._reload = reload
        self._running = False
        self._waiting: list[Deferred[ReloadResult]] = []

    @property
    def running(self) -> bool:
        return self._running

    def request(self) -> Deferred[ReloadResult]:
        """Return a Deferred that fires with the outcome of the first reload that starts from now on."""
        outcome: Deferred[ReloadResult] = Deferred()
        self._waiting.append(outcome)
        if not self._running:
            self._start()
        return outcome

    def _start(self) -> None:
        served, self._waiting = self._waiting, []
        self._running = True

        async def run() -> ReloadResult:
            return await self._reload()

        def finished(result: ReloadResult | Failure) -> None:
            self._running = False
            for waiting in served:
                waiting.callback(result)  # a Failure here becomes the waiting one's failure
            if self._waiting and not self._running:
                self._start()

        Deferred.fromCoroutine(run()).addBoth(finished)
