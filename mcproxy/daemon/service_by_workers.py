"""Runs the proxy in this process or in several processes, according to `daemon.workers`, which a reload can change.

Such a change works like an upgrade (`daemon.upgrade`), but this process stays the daemon. The new service starts on
duplicates of the listening sockets, both services accept for a moment, then the old service ends its requests. So no
connection is refused, and the process id, the control socket and the terminal do not change.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError, gatherResults
from twisted.logger import Logger

from mcproxy.config.model import Config
from mcproxy.daemon.dependencies import DaemonService, LogFiles
from mcproxy.daemon.errors import log_error
from mcproxy.daemon.process_setup import worker_count
from mcproxy.kube.healthz import Check
from mcproxy.net.listening_sockets import HandedOver, duplicates
from mcproxy.observe.metrics.metrics import Metrics

log = Logger(__name__)

_ENDS_WITHIN = 20.0
"""Seconds after the drain within which an old service must end."""


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """A service, in one process or in several, and its resources."""

    service: DaemonService
    log_files: LogFiles
    close: Callable[[], None]
    """Frees the service's resources; called when the service has ended."""


MakeParts = Callable[[bool, HandedOver], ServiceParts]
"""``(several, handed_over) -> parts``: makes the service of one process or of several."""


@dataclass(eq=False, slots=True)
class _DrainingService:
    """A replaced service that ends its requests."""

    parts: ServiceParts
    several: bool
    waiting: list[Deferred[None]] = field(default_factory=list)


class ServiceByWorkers:
    """The service in force, and replaced ones that end their requests: `dependencies.DaemonService` and `LogFiles`."""

    def __init__(self, reactor: Any, make: MakeParts, config: Config, handed_over: HandedOver) -> None:
        """`config` must be the configuration passed to `start`; `handed_over` are the first service's sockets."""
        self._reactor = reactor
        self._make = make
        self._several = worker_count(config.daemon) > 1
        self._parts = make(self._several, handed_over)
        self._ending: list[_DrainingService] = []
        self._former_logs: list[LogFiles] = []
        self._cut = Counter[str]()

    @property
    def runs_plugins(self) -> bool:
        """Whether this process runs exec plugins itself.

        This is so without workers, and while a replaced service without workers ends its requests."""
        return not (self._several and all(each.several for each in self._ending))

    # -- a reload ---------------------------------------------------------------------------------------------------

    async def start(self, config: Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        await self._service.start(config, ready)

    async def apply(self, config: Config) -> None:
        if (worker_count(config.daemon) > 1) == self._several:
            await self._service.apply(config)
        else:
            await self._replace(config)

    async def _replace(self, config: Config) -> None:
        """Replace the service in force by a new service with `config`. If it raises, nothing has changed."""
        before, several = self._parts, not self._several
        await before.service.save()
        handed_over = HandedOver(_duplicates(before.service.listening))
        try:
            new = self._make(several, handed_over)
        except BaseException:
            handed_over.close_rest()
            raise
        try:
            await new.service.start(config)
        except BaseException:
            await self._undo(new, handed_over)
            raise
        handed_over.close_rest()
        ending = _DrainingService(before, self._several)
        self._ending.append(ending)
        self._parts, self._several = new, several
        log.info(
            "the number of workers has changed; open requests end in their processes",
            event="workers_changed",
            workers=worker_count(config.daemon),
            open=before.service.running,
        )
        addresses = frozenset(listener.address for listener in config.listeners)
        ended = Deferred.fromCoroutine(self._end(ending, handed_over, config.daemon.drain_timeout, addresses))
        ended.addErrback(lambda failure: log.failure("ending failed", event="internal_error", failure=failure))

    async def _undo(self, new: ServiceParts, handed_over: HandedOver) -> None:
        """End a service that has failed to start. The service in force continues unchanged."""
        new.service.abort()
        await new.service.wait_aborted()
        new.close()
        handed_over.close_rest()
        try:
            self._service.restore_sockets()
        except Exception as error:
            log_error(
                log, "the settings of a listening socket could not be restored", error, event="socket_not_restored"
            )

    async def _end(
        self, ending: _DrainingService, handed_over: HandedOver, timeout: float, addresses: Collection[str]
    ) -> None:
        """Let a replaced service end its open requests. The service in force takes over its counts."""
        parts = ending.parts
        try:
            await parts.service.retire(timeout, addresses)
        finally:
            self._ending.remove(ending)
            self._take_counts(parts.service)
            self._cut.update(parts.service.cut)
            if not ending.several:  # if there were several processes, each has closed its own log files
                self._former_logs.append(parts.log_files)
            parts.close()
            handed_over.complete()
            for waiting in ending.waiting:
                if not waiting.called:
                    waiting.callback(None)

    async def _wait_for_ending(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until replaced services have ended."""
        waiting: list[Deferred[None]] = []
        for each in self._ending:
            each.waiting.append(Deferred())
            waiting.append(each.waiting[-1])
        if waiting:
            try:
                await gatherResults(waiting).addTimeout(timeout, self._reactor)
            except TimeoutError:
                return

    # -- delegated to the service in force --------------------------------------------------------------------------

    @property
    def _service(self) -> DaemonService:
        return self._parts.service

    @property
    def running(self) -> int:
        return sum(each.running for each in self._all())

    async def count_running(self) -> int:
        return sum([await each.count_running() for each in self._all()])

    async def collect_figures(self) -> dict[str, Any]:
        return await self._service.collect_figures()

    @property
    def metrics(self) -> Metrics:
        for each in self._ending:
            self._take_counts(each.parts.service)
        return self._service.metrics

    async def collect_metrics(self) -> Metrics:
        for each in tuple(self._ending):
            await each.parts.service.collect_metrics()
        await self._service.collect_metrics()
        return self.metrics

    async def collect_requests(self) -> dict[str, Any]:
        return await self._service.collect_requests()

    async def collect_checks(self) -> Sequence[Check]:
        return await self._service.collect_checks()

    @property
    def cut(self) -> Mapping[str, int]:
        return sum((Counter(each.cut) for each in self._all()), self._cut)

    # -- the end, and a new program ---------------------------------------------------------------------------------

    def begin_shutdown(self) -> None:
        self._service.begin_shutdown()

    async def drain(self, timeout: float) -> None:
        until = self._reactor.seconds() + timeout
        await self._service.drain(timeout)
        await self._wait_for_ending(max(0.0, until - self._reactor.seconds()))

    async def close_listeners(self) -> None:
        await self._service.close_listeners()

    async def finish(self) -> None:
        await self._service.finish()
        for each in tuple(self._ending):
            each.parts.service.abort()
        for each in tuple(self._ending):
            await each.parts.service.wait_aborted()

    def abort(self) -> None:
        for each in self._all():
            each.abort()

    async def wait_aborted(self) -> None:
        for each in self._all():
            await each.wait_aborted()

    async def save(self) -> None:
        await self._service.save()

    @property
    def listening(self) -> list[tuple[str, int]]:
        return self._service.listening

    def restore_sockets(self) -> None:
        self._service.restore_sockets()

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        until = self._reactor.seconds() + timeout + _ENDS_WITHIN
        await self._service.retire(timeout, handed_over)
        await self._wait_for_ending(max(0.0, until - self._reactor.seconds()))

    # -- log files --------------------------------------------------------------------------------------------------

    def reopen(self) -> Deferred[None]:
        reopened = [self._parts.log_files.reopen(), *(each.parts.log_files.reopen() for each in self._ending)]
        return gatherResults(reopened).addCallback(lambda _: None)

    def close(self) -> None:
        for log_files in (self._parts.log_files, *(each.parts.log_files for each in self._ending), *self._former_logs):
            log_files.close()

    def _all(self) -> Sequence[DaemonService]:
        return (self._service, *(each.parts.service for each in self._ending))

    def _take_counts(self, service: DaemonService) -> None:
        """Add the counts of another service to those of the service in force."""
        while changes := service.metrics.take():
            self._service.metrics.add(changes)


def _duplicates(listening: Sequence[tuple[str, int]]) -> dict[str, list[socket.socket]]:
    found: dict[str, list[socket.socket]] = {}
    copies = duplicates(descriptor for _, descriptor in listening)
    for (address, _), copy in zip(listening, copies, strict=True):
        sock = socket.socket(fileno=copy)
        sock.setblocking(False)
        found.setdefault(address, []).append(sock)
    return found
