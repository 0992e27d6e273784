"""The shutdown of a child, in steps that the supervisor starts; without it, the child takes the remaining ones."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from mcproxy.daemon.service import SingleProcessService


class Shutdown:
    """The progress of this process's shutdown, in the order of the methods."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._begun = False
        self._drains_until: float | None = None
        self._accepting = True
        self.ends = False
        """It only finishes what it has, and ends by itself then."""

    @property
    def begun(self) -> bool:
        return self._begun

    def begin(self, service: SingleProcessService) -> None:
        if not self._begun:
            self._begun = True
            service.begin_shutdown()

    async def drain(self, service: SingleProcessService, timeout: float) -> None:
        """Drain within `timeout` seconds; what is left of the time, if that has begun already."""
        if self._drains_until is None:
            self._drains_until = self._clock.seconds() + timeout
        await service.drain(max(0.0, self._drains_until - self._clock.seconds()))

    def stop_accepting(self, service: SingleProcessService) -> None:
        if self._accepting:
            self._accepting = False
            service.stop_accepting()

    async def complete(self, service: SingleProcessService, drain_timeout: float) -> None:
        """Do all that is left of it."""
        self.begin(service)
        if self._accepting:
            await self.drain(service, drain_timeout)
        self.stop_accepting(service)
        self.ends = True
        await service.finish()
