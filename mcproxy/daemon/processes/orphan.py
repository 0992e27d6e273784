"""A child whose supervisor has died: it continues to serve, and ends once another daemon has taken over.

The death of a supervisor ends no connection. The orphans poll the control socket for another daemon: while it starts
they pass it their listening sockets (`control.orphaned_sockets`), and when it serves they end.

A child shuts down in steps that the supervisor starts; without it, the child takes the remaining ones (`Shutdown`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.daemon.control.daemon_control_socket import status_of
from mcproxy.daemon.control.orphaned_sockets import POLL, offer
from mcproxy.daemon.service import SingleProcessService

log = Logger(__name__)

_REPORT = 60.0
"""Seconds between two log lines."""


class Orphan:
    """The behaviour of a child without its supervisor."""

    def __init__(
        self,
        reactor: Any,
        service: SingleProcessService,
        shutdown: Shutdown,
        end: Callable[..., None],
        unneeded: Callable[[], Deferred[None]] | None = None,
    ) -> None:
        """`end` ends the process; with `at_once=True`, with everything that it carries.

        `unneeded` returns what fires once the other processes need this one no more: the workers end before the keeper.
        """
        assert service.runtime is not None
        self._shutdown = shutdown
        self._reactor = reactor
        self._service = service
        self._end = end
        self._unneeded = unneeded
        self._daemon = service.runtime.config.daemon
        self._stopping = False
        self._handed_over_to: Any = None
        self._handed_over: Collection[str] = ()
        self._reporting = LoopingCall(self._report)
        self._reporting.clock = reactor
        if shutdown.begun:
            log.error(
                "the supervisor died while it was stopping; this process continues to stop", event="supervisor_died"
            )
            self.stop()
        elif self._daemon.control_socket is None:
            log.error(
                "the supervisor died; this process drains and ends",
                event="supervisor_died",
                cause="without a control socket no other daemon can be found",
                todo="start mcproxy again",
            )
            self.stop()
        else:
            self._reporting.start(_REPORT)
            self._run(self._wait_for_successor())

    def stop(self) -> None:
        """Drain and end as in a stop; the second time, end at once."""
        if self._stopping:
            self._end(at_once=True)
            return
        self._stopping = True
        self._run(self._stop())

    async def _stop(self) -> None:
        if self._unneeded is not None:
            await self._unneeded()
        await self._shutdown.complete(self._service, self._daemon.drain_timeout)
        self._ended()

    async def _wait_for_successor(self) -> None:
        assert self._daemon.control_socket is not None
        while True:
            status = await status_of(self._reactor, self._daemon.control_socket)
            if self._stopping:
                return
            if status is not None and status.get("state") == "serving":
                break
            if status is not None and status.get("wantsSockets") is True:
                await self._hand_over(status.get("pid"))
            await deferLater(self._reactor, POLL)
        self._stopping = True
        log.info("another daemon serves; this process drains and ends", event="orphan_draining", pid=status.get("pid"))
        if self._unneeded is not None:
            await self._unneeded()
        taken = self._handed_over if self._handed_over_to == status.get("pid") else ()
        await self._service.retire(self._daemon.drain_timeout, handed_over=taken)
        self._ended()

    async def _hand_over(self, pid: Any) -> None:
        """Send the listening sockets to the daemon `pid`, which is starting; once."""
        assert self._daemon.control_socket is not None
        listening = [(address, fd) for address, fd in self._service.listening if not address.startswith("systemd:")]
        if not listening or self._handed_over_to == pid:
            return
        try:
            if await offer(self._reactor, self._daemon.control_socket, listening):
                self._handed_over_to, self._handed_over = pid, [address for address, _ in listening]
        except (OSError, ValueError) as error:  # it has ended, or it stalls
            log.warn(
                "the new daemon did not take over the sockets of this process",
                event="orphan_sockets_not_taken",
                cause=str(error),
            )

    def _ended(self) -> None:
        cut = self._service.cut
        log.info(
            "process has stopped",
            event="process_stopped",
            cut=sum(cut.values()),
            **{f"cut{kind.title()}": cut[kind] for kind in cut},
        )
        if self._reporting.running:
            self._reporting.stop()
        self._end()

    def _report(self) -> None:
        log.error(
            "the supervisor died; this process continues to serve",
            event="supervisor_died",
            open=self._service.running,
            todo="start mcproxy again: it takes over",
        )

    def _run(self, coroutine: Any) -> None:
        def failed(failure: Failure) -> None:
            log.failure("ending without a supervisor failed", event="internal_error", failure=failure)
            self._end(at_once=True)

        Deferred.fromCoroutine(coroutine).addErrback(failed)


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
