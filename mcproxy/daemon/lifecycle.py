"""The state machine of the daemon. Signals, systemd and the control socket act through it.

    STARTING -> SERVING -> STOPPING -> STOPPED        reloads happen while SERVING

It drives the proxy (`DaemonService`: `daemon.service`, or all processes) and defines the order of operations. Serving
starts when all parts are ready. A reload takes effect only when all of it is known to work. A shutdown cuts a request
only after its timeout.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy import BUILD, __version__
from mcproxy.config.config_changes import layouts_of
from mcproxy.config.model import Config
from mcproxy.daemon.certificate_watch import CertificateWatch
from mcproxy.daemon.control.commands import commands_of
from mcproxy.daemon.control.daemon_control_socket import DaemonControlSocket
from mcproxy.daemon.dependencies import DaemonService, Dependencies
from mcproxy.daemon.errors import DaemonError, is_of_configuration, log_error, place_of
from mcproxy.daemon.reload import Reloader, ReloadResult, entry_counts, error_text
from mcproxy.daemon.replacement import Replacement
from mcproxy.daemon.status.status_document import DaemonStatus, of_reload
from mcproxy.kube.healthz import Check
from mcproxy.observe.metrics.counts import MetricCounts

if TYPE_CHECKING:
    from mcproxy.config.config_changes import ConfigChange
    from mcproxy.config.loaded import Loaded
    from mcproxy.daemon.upgrade import Successor, Takeover

log = Logger(__name__)

_FINISH_SECONDS = 25.0
"""Limit of the time that a shutdown takes after its drain (seconds)."""
_ANSWERED_WITHIN = 0.1
"""Seconds to send the answer to `mcproxy upgrade` before open requests are ended."""


class State(enum.StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Daemon:
    """The daemon. Callers use `start` and `stop`; `exit_status` is valid after it has stopped."""

    def __init__(self, service: DaemonService, dependencies: Dependencies) -> None:
        self.state = State.STARTING
        self.exit_status = 0
        self._service = service
        self._dependencies = dependencies
        self._reactor = dependencies.reactor
        self._config = Config()
        self._control = DaemonControlSocket(self._reactor, lambda: commands_of(self))
        self._applying = DeferredLock()  # held while a reload is applied, and permanently once a stop has begun
        self._reload = Reloader(self, dependencies)
        self._certificates = CertificateWatch(self, dependencies, lambda: self._reload.running)
        self._started_at = self._reactor.seconds()
        self._status = DaemonStatus(self._reactor, service, lambda: self.status, lambda: self._config)
        self._stops_by = 0.0  # deadline of a shutdown that has begun
        self._replacement = Replacement(
            self,
            service,
            self._applying,
            reactor=self._reactor,
            notifier=dependencies.notifier,
            systemd_sockets=dependencies.systemd_sockets,
        )
        self._retiring = False  # another daemon replaced this one, and no stop was requested since
        self._watchdog = LoopingCall(dependencies.notifier.watchdog)
        self._watchdog.clock = self._reactor

    async def start(self, loaded: Loaded) -> None:
        """Start serving. An error is logged and stops the daemon, with status 78 for an invalid file, else 1."""
        takeover = self._dependencies.takeover
        try:
            if takeover is None:
                await self._control.claim(loaded.config)
                if self.state is not State.STARTING:  # stopped while waiting
                    self._control.free()
                    return
                await self._service.start(loaded.config)
            else:
                await self._service.start(loaded.config, lambda: self._take_control(takeover, loaded.config))
        except Exception as error:
            if self.state is not State.STARTING:  # a stop meanwhile has ended the start
                return
            place = place_of(error, loaded)
            log_error(log, "mcproxy does not start", error, place, event="daemon_start_failed")
            invalid = is_of_configuration(error)
            if takeover is not None:
                takeover.failed([error_text(error, place)], invalid=invalid)
            self._finish(os.EX_CONFIG if invalid else 1)
            return
        if self.state is not State.STARTING:  # stopped meanwhile, by `stop`
            return
        self._config = loaded.config
        self.state = State.SERVING
        self._status.start()
        self._certificates.start()
        if takeover is not None:
            try:
                await takeover.serving()
            except DaemonError as error:
                self.give_way(error.cause)
            if self.state is not State.SERVING:
                return
        self.notify_ready()
        if self._dependencies.notifier.watchdog_interval is not None:
            self._watchdog.start(self._dependencies.notifier.watchdog_interval)
        self._reload.log_warnings(tuple(str(warning) for warning in loaded.warnings))
        log.info(
            "mcproxy is ready",
            event="daemon_ready",
            version=__version__,
            file=self._dependencies.path,
            **entry_counts(loaded.config),
        )

    async def _take_control(self, takeover: Takeover, config: Config) -> None:
        """Once all parts are ready, have the other daemon free the control socket, and open it."""
        await takeover.prepared([listener.address for listener in config.listeners if listener.bind is not None])
        if self.state is State.STARTING:
            await self._control.claim(config)

    def give_way(self, why: str) -> None:
        """End at once, because the old daemon has aborted the upgrade and continues."""
        if self.state is State.STOPPED:
            return
        log.error("the previous daemon continues; this one ends", event="takeover_cancelled", cause=why)
        self._service.abort()
        self._finish(1)

    def start_failed(self, failure: Failure) -> None:
        """Stop after an unexpected exception in `start`."""
        log.failure("starting failed", event="internal_error", failure=failure)
        self._service.abort()
        self._finish(1)

    def hangup(self) -> None:
        """SIGHUP: reload and log the outcome. Ignored while the daemon does not serve."""
        if self.state is State.SERVING:
            self._reload.request().addErrback(
                lambda failure: log.failure("reload failed", event="internal_error", failure=failure)
            )

    def reopen_logs(self) -> None:
        """SIGUSR1: reopen log files."""
        reopened = self._dependencies.log_files.reopen()
        reopened.addCallback(lambda _: log.info("log files are reopened", event="log_files_reopened"))

    def stop(self) -> None:
        """SIGTERM, SIGINT: shut down gracefully. A second signal ends the daemon at once."""
        if self._retiring:
            self._retiring = False
            log.info(
                "replaced by a new daemon: mcproxy finishes its open requests; a second signal ends it at once",
                event="upgrade_draining",
            )
        elif self.state in (State.STARTING, State.STOPPING):
            if self.state is State.STOPPING:
                log.warn("mcproxy stops at once", event="shutdown_forced", open=self._service.running)
            self._service.abort()
            Deferred.fromCoroutine(self._service.wait_aborted()).addBoth(lambda _: self._finish(0))
        elif self.state is State.SERVING:
            self.state = State.STOPPING
            self._replacement.abort("mcproxy is stopping")
            Deferred.fromCoroutine(self._stop()).addErrback(self._stop_failed)

    async def _stop(self) -> None:
        """The three steps of a shutdown (docs/architecture.md, "Daemon lifecycle")."""
        daemon = self._config.daemon
        longest = daemon.shutdown_delay + daemon.drain_timeout + _FINISH_SECONDS
        self._dependencies.notifier.stopping("waiting for tunnels and followed logs", longest)
        self._stops_by = self._reactor.seconds() + longest
        log.info(
            "mcproxy is stopping",
            event="shutdown_started",
            open=await self._service.count_running(),
            shutdownDelay=daemon.shutdown_delay,
            drainTimeout=daemon.drain_timeout,
        )
        await self._applying.acquire()
        successor = self._replacement.successor
        if successor is not None:  # the stop was requested while the daemon was being replaced
            with contextlib.suppress(ProcessLookupError):
                os.kill(successor.pid, signal.SIGTERM)
            return
        self._service.begin_shutdown()
        await deferLater(self._reactor, daemon.shutdown_delay)
        await self._service.drain(daemon.drain_timeout)
        await self._service.close_listeners()
        self.free_control_socket()
        log.info("listeners are closed", event="listeners_closed", open=await self._service.count_running())
        await self._service.finish()
        self._finish(0)

    def _stop_failed(self, failure: Failure) -> None:
        log.failure("stopping failed", event="internal_error", failure=failure)
        self._service.abort()
        self._finish(1)

    def _finish(self, status: int) -> None:
        if self.state is State.STOPPED:
            return
        self.state = State.STOPPED
        self.exit_status = status
        self.stop_watchdog()
        self._status.stop()
        self._certificates.stop()
        self.free_control_socket()
        self._dependencies.log_files.close()
        self._dependencies.observer.write_summaries(now=True)  # before the line "mcproxy has stopped"
        if not status:
            cut = self._service.cut
            counts = {f"cut{kind.title()}": cut[kind] for kind in cut}
            successor = self._replacement.successor
            if successor is None:
                log.info("mcproxy has stopped", event="daemon_stopped", cut=sum(cut.values()), **counts)
            else:  # both daemons write to the same log
                replaced = "mcproxy has stopped; the daemon that replaced it serves"
                log.info(
                    replaced,
                    event="daemon_stopped",
                    pid=os.getpid(),
                    replacedBy=successor.pid,
                    cut=sum(cut.values()),
                    **counts,
                )
        self._reactor.callLater(0, self._reactor.stop)  # not at once: first the control socket removes its file

    # -- replacing the program (`daemon.replacement`) ------------------------

    def replace_program(self) -> None:
        """SIGUSR2: start the new program, which takes over; the outcome is logged."""

        def failed(failure: Failure) -> None:
            if not isinstance(failure.value, DaemonError):  # a DaemonError is logged already
                log.failure("replacing the program failed", event="internal_error", failure=failure)

        Deferred.fromCoroutine(self.upgrade()).addErrback(failed)

    async def upgrade(self) -> Successor:
        """Start the new program, and end this daemon when the new one serves; return the new daemon.

        On an error nothing has changed; the error is logged and raised as DaemonError.
        """
        successor = await self._replacement.run()
        self.state = State.STOPPING
        self._retiring = True
        self._applying.release()
        Deferred.fromCoroutine(self._retire(successor)).addErrback(self._stop_failed)
        return successor

    def free_control_socket(self) -> Deferred[None]:
        """Close the control socket. The Deferred fires when another daemon can open it."""
        return self._control.free()

    def open_control_socket(self) -> None:
        """Open the control socket again, unless it is open. Raises DaemonError."""
        self._control.reopen(self._config)

    def stop_watchdog(self) -> None:
        if self._watchdog.running:
            self._watchdog.stop()

    async def _retire(self, successor: Successor) -> None:
        """End open requests like requests of removed listeners. The successor has the control socket."""
        timeout = self._config.daemon.drain_timeout
        self._stops_by = self._reactor.seconds() + timeout + _FINISH_SECONDS
        log.info(
            "replaced by a new daemon: mcproxy finishes its open requests",
            event="upgrade_draining",
            pid=successor.pid,
            version=successor.version,
            open=await self._service.count_running(),
            drainTimeout=timeout,
        )
        await deferLater(self._reactor, _ANSWERED_WITHIN)
        await self._service.retire(timeout, successor.addresses)
        self._finish(0)

    # -- for reloads (`daemon.dependencies.RunningDaemon`) ------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config

    @property
    def counts(self) -> MetricCounts:
        return self._service.metrics.counts

    async def apply(self, config: Config) -> None:
        """Apply `config`, or change nothing. A new control socket is opened first, and closed if a later step fails."""
        async with self._applying:
            successor = self._replacement.successor
            if successor is not None:
                raise DaemonError(
                    f"the program was replaced meanwhile, by process {successor.pid}",
                    todo="reload again if the file was changed since",
                )
            if self.state is not State.SERVING:
                raise DaemonError("mcproxy is stopping")
            with self._control.moved(self._config, config):
                await self._service.apply(config)
            self._config = config
            self._dependencies.observer.configure(config.logging)

    def notify_ready(self, status: str = "") -> None:
        """Notify systemd that the daemon is ready, if it serves; `status` describes a problem."""
        if self.state is State.SERVING:
            counts = ", ".join(f"{number} {name}" for name, number in entry_counts(self._config).items())
            self._dependencies.notifier.ready(status or f"serving: {counts}")

    # -- for the commands of the control socket (`daemon.control.commands.CommandTarget`) ------------------------

    @property
    def path(self) -> str:
        return self._dependencies.path

    @property
    def serving(self) -> bool:
        return self.state is State.SERVING

    @property
    def status(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "build": BUILD,
            "pid": os.getpid(),
            "state": str(self.state),
            "file": self._dependencies.path,
            "uptimeSeconds": round(self._reactor.seconds() - self._started_at, 1),
            "open": self._service.running,
            "stopsWithin": max(0.0, self._stops_by - self._reactor.seconds()) if self._stops_by else None,
            "lastReload": of_reload(self._reload.last),
            "certificateFiles": self._certificates.unusable,
        }

    async def collect_status(self) -> dict[str, Any]:
        """Return the status document (`daemon.status`)."""
        return await self._status.collect()

    # -- for Admin listeners (`daemon.status.admin_source.AdminTarget`) ------------------------

    async def collect_metrics(self, openmetrics: bool) -> list[bytes]:
        """Return the text of the metrics, in pieces."""
        return await self._status.metrics_text(openmetrics)

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight, of all processes."""
        return await self._service.collect_requests()

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks of /readyz for the whole daemon.

        One check shows a failed reload, but does not fail readiness."""
        return [self._reload.check(), *await self._service.collect_checks()]

    def reload(self) -> Deferred[ReloadResult]:
        return self._reload.request()

    async def compare(self, path: str) -> tuple[Loaded, tuple[ConfigChange, ...]]:
        loaded = await self._dependencies.load(path)
        return loaded, await self._dependencies.compare(self._config, loaded.config)

    @property
    def layouts(self) -> Mapping[str, Sequence[str]]:
        return layouts_of(self._config)

    async def effective_configuration(self, form: str) -> str:
        return await self._dependencies.dump(self._config, form)
