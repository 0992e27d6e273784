"""The state machine of the daemon. Signals, systemd and the control socket act through it.

    STARTING -> SERVING -> STOPPING -> STOPPED        reloads happen while SERVING

It drives the `Service`, which is the proxy itself (`daemon.service`, or all the processes that are it), and defines the
order of operations: nothing serves before everything can, a reload changes nothing before all of it is known to work,
and a shutdown ends no request before it is done or its timeout has expired.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.task import LoopingCall, deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy import __version__
from mcproxy.config.model import Config
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon.commands import commands_of
from mcproxy.daemon.control import ControlSocket, ControlSocketInUse
from mcproxy.daemon.errors import DaemonError, describe, is_of_configuration, log_error
from mcproxy.daemon.figures.document import Counted, StatusDocument, of_reload, only_process
from mcproxy.daemon.figures.history import History
from mcproxy.daemon.logging import LineObserver
from mcproxy.daemon.orphaned_sockets import OrphanedSockets
from mcproxy.daemon.places import place_of
from mcproxy.daemon.predecessor import wait_for_predecessor
from mcproxy.daemon.reload import Reloader, ReloadResult
from mcproxy.daemon.replacement import Replacement
from mcproxy.daemon.service_interface import LogFiles, Service
from mcproxy.daemon.systemd import Notifier
from mcproxy.daemon.worker_count import WorkersChangedError, check_reload, worker_count
from mcproxy.kube.healthz import Check
from mcproxy.net.bind import BindError, SystemdSockets
from mcproxy.net.listening_sockets import HandedOver
from mcproxy.net.wall_time import wall_clock
from mcproxy.observe.metrics.families import DURATION_BOUNDS, RELOADS

if TYPE_CHECKING:
    from mcproxy.config.dump.changes import Change
    from mcproxy.config.loaded import Loaded
    from mcproxy.daemon.handover import Takeover
    from mcproxy.daemon.upgrade import Successor

log = Logger()

_FINISH_SECONDS = 25.0
"""More than a shutdown takes after its drain."""
_ANSWERED_WITHIN = 0.1
"""Seconds for the answer to `mcproxy upgrade` to be sent, before what is open ends."""


class State(enum.StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of a daemon: each can be replaced in a test."""

    reactor: Any
    path: str
    """The configuration file, absolute."""
    load: Callable[[str], Awaitable[Loaded]]
    """Reads and checks a file and all that it names, without blocking the reactor. Raises ConfigErrors."""
    compare: Callable[[Config, Config], Awaitable[tuple[Change, ...]]]
    """Returns what the second configuration changes of the first, without blocking the reactor."""
    dump: Callable[[Config, str], Awaitable[str]]
    """Returns a configuration as text, masked, in a form of `config.dump.FORMS`, without blocking the reactor."""
    notifier: Notifier
    observer: LineObserver
    log_files: LogFiles
    systemd_sockets: SystemdSockets = field(default_factory=lambda: SystemdSockets({}))
    handed_over: HandedOver = field(default_factory=HandedOver)
    """The listening sockets of others, which the service uses instead of opening some."""
    takeover: Takeover | None = None
    """From the daemon that this one replaces; None: it was started on its own."""


class Daemon:
    """One daemon. Callers use `start` and `stop`; `exit_status` is valid once it has stopped."""

    def __init__(self, service: Service, dependencies: Dependencies) -> None:
        self.state = State.STARTING
        self.exit_status = 0
        self._service = service
        self._dependencies = dependencies
        self._reactor = dependencies.reactor
        self._config = Config()
        self._control: ControlSocket | None = None
        self._applying = DeferredLock()  # held while a reload is applied, and for good once a stop has begun
        self._reloader = Reloader(self._reload)
        self._last: ReloadResult | None = None
        self._started_at = self._reactor.seconds()
        self._wall = wall_clock(self._reactor)
        self._document = StatusDocument(self._wall)
        self._history = History(self._reactor, lambda: service.metrics.totals(), DURATION_BOUNDS)
        self._stops_by = 0.0  # when a shutdown that was begun is over at the latest
        self.orphaned = OrphanedSockets(self._reactor, dependencies.handed_over)
        self._replacement = Replacement(self, service, dependencies, self._applying)
        self._retiring = False  # for what has replaced this daemon, and was not asked to stop since
        self._watchdog = LoopingCall(dependencies.notifier.watchdog)
        self._watchdog.clock = self._reactor

    async def start(self, loaded: Loaded) -> None:
        """Start serving. On an error log it and stop: with status 78 if the file is wrong, else 1."""
        takeover = self._dependencies.takeover
        try:
            if takeover is None:
                self._control = await self._claim_control(loaded.config)
                if self.state is not State.STARTING:  # stopped while it waited
                    self.free_control_socket()
                    return
                await self._start_service(loaded.config)
            else:
                await self._service.start(loaded.config, lambda: self._take_control(takeover, loaded.config))
        except Exception as error:
            if self.state is not State.STARTING:  # stopped meanwhile, which ended what was starting
                return
            place = place_of(error, loaded)
            log_error(log, "mcproxy does not start", error, place, event="daemon_start_failed")
            invalid = is_of_configuration(error)
            if takeover is not None:
                takeover.failed([_error_text(error, place)], invalid=invalid)
            self._finish(os.EX_CONFIG if invalid else 1)
            return
        if self.state is not State.STARTING:  # stopped meanwhile, by `stop`
            return
        self._config = loaded.config
        self.state = State.SERVING
        self._history.start()
        if takeover is not None:
            try:
                await takeover.serving()
            except DaemonError as error:
                self.give_way(error.cause)
            if self.state is not State.SERVING:
                return
        self._notify_ready()
        if self._dependencies.notifier.watchdog_interval is not None:
            self._watchdog.start(self._dependencies.notifier.watchdog_interval)
        for warning in loaded.warnings:
            log.warn("configuration warning", event="config_warning", cause=str(warning))
        log.info(
            "mcproxy serves",
            event="daemon_ready",
            version=__version__,
            file=self._dependencies.path,
            **_counts(loaded.config),
        )

    async def _start_service(self, config: Config) -> None:
        """Start the service, with the sockets of processes whose supervisor has died if they have its addresses."""
        try:
            await self._service.start(config)
        except BindError as error:
            if self._control is None or not await self.orphaned.collect(error) or self.state is not State.STARTING:
                raise
            await self._service.start(config)
            self._dependencies.handed_over.close_rest()

    async def _take_control(self, takeover: Takeover, config: Config) -> None:
        """Everything can serve: have the other daemon free the control socket, and open it."""
        await takeover.prepared([str(listener.bind) for listener in config.listeners])
        if self.state is State.STARTING:
            self._control = await self._claim_control(config)

    def give_way(self, why: str) -> None:
        """The daemon that was to be replaced has given up the upgrade and goes on: end at once."""
        if self.state is State.STOPPED:
            return
        log.error("the daemon that was to be replaced goes on, this one ends", event="takeover_cancelled", cause=why)
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
            self._reloader.request().addErrback(
                lambda failure: log.failure("reload failed", event="internal_error", failure=failure)
            )

    def reopen_logs(self) -> None:
        """SIGUSR1: reopen log files."""
        self._dependencies.log_files.reopen()
        log.info("log files are reopened", event="log_files_reopened")

    def stop(self) -> None:
        """SIGTERM, SIGINT: shut down gracefully; the second time, end at once."""
        if self._retiring:
            self._retiring = False
            log.info(
                "mcproxy ends what it has, for the one that has replaced it; a second signal ends it at once",
                event="upgrade_draining",
            )
        elif self.state in (State.STARTING, State.STOPPING):
            if self.state is State.STOPPING:
                log.warn("mcproxy ends at once", event="shutdown_forced", open=self._service.running)
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
            "mcproxy stops",
            event="shutdown_started",
            open=await self._service.count_running(),
            shutdownDelay=daemon.shutdown_delay,
            drainTimeout=daemon.drain_timeout,
        )
        await self._applying.acquire()
        successor = self._replacement.successor
        if successor is not None:  # the stop came in the very moment in which this daemon was replaced
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
        self._history.stop()
        self.free_control_socket()
        self._dependencies.log_files.close()
        self._dependencies.observer.write_summaries(now=True)  # before the last line
        if not status:
            cut = self._service.cut
            counts = {f"cut{kind.title()}": cut[kind] for kind in cut}
            successor = self._replacement.successor
            if successor is None:
                log.info("mcproxy has stopped", event="daemon_stopped", cut=sum(cut.values()), **counts)
            else:  # both write to the same log
                replaced = "mcproxy has stopped, the one that has replaced it serves"
                log.info(
                    replaced,
                    event="daemon_stopped",
                    pid=os.getpid(),
                    replacedBy=successor.pid,
                    cut=sum(cut.values()),
                    **counts,
                )
        self._reactor.callLater(0, self._reactor.stop)  # the next iteration: the control socket removes its file before

    # -- replacing the program (`daemon.replacement`) ---------------------------------------------------------------

    def replace_program(self) -> None:
        """SIGUSR2: start the program anew, which takes over; the outcome is logged."""

        def failed(failure: Failure) -> None:
            if not isinstance(failure.value, DaemonError):  # else it is logged
                log.failure("replacing the program failed", event="internal_error", failure=failure)

        Deferred.fromCoroutine(self.upgrade()).addErrback(failed)

    async def upgrade(self) -> Successor:
        """Start the program anew and end when it serves; return what has replaced this daemon.

        Raises DaemonError, with nothing changed; it is logged.
        """
        successor = await self._replacement.run()
        self.state = State.STOPPING
        self._retiring = True
        self._applying.release()
        Deferred.fromCoroutine(self._retire(successor)).addErrback(self._stop_failed)
        return successor

    def free_control_socket(self) -> Deferred[None]:
        """Close the control socket. The Deferred fires when another daemon can open it."""
        control, self._control = self._control, None
        return succeed(None) if control is None else control.close()

    def open_control_socket(self) -> None:
        """Open the control socket again, unless it is open. Raises DaemonError."""
        if self._control is None:
            self._control = self._open_control(self._config)

    def stop_watchdog(self) -> None:
        if self._watchdog.running:
            self._watchdog.stop()

    async def _retire(self, successor: Successor) -> None:
        """End what is open, as for what a reload removes; the control socket is the successor's."""
        timeout = self._config.daemon.drain_timeout
        self._stops_by = self._reactor.seconds() + timeout + _FINISH_SECONDS
        log.info(
            "the program is replaced, this one ends what it has",
            event="upgrade_draining",
            pid=successor.pid,
            version=successor.version,
            open=await self._service.count_running(),
            drainTimeout=timeout,
        )
        await deferLater(self._reactor, _ANSWERED_WITHIN)
        await self._service.retire(timeout, successor.addresses)
        self._finish(0)

    async def _reload(self) -> ReloadResult:
        begun = self._reactor.seconds()
        self._dependencies.notifier.reloading()
        errors: tuple[str, ...] = ()
        warnings: tuple[str, ...] = ()
        changes: tuple[Change, ...] = ()
        invalid = False
        loaded: Loaded | None = None
        try:
            loaded = await self._dependencies.load(self._dependencies.path)
            warnings = tuple(str(warning) for warning in loaded.warnings)
            changes = await self._dependencies.compare(self._config, loaded.config)
            await self._apply(loaded.config)
        except ConfigErrors as error:
            invalid = True
            errors = tuple(str(problem) for problem in error.problems)
            for problem in errors:
                log.error("configuration error", event="config_error", cause=problem)
        except Exception as error:
            invalid = is_of_configuration(error)
            place = place_of(error, loaded) if loaded is not None else ""
            log_error(log, "the new configuration cannot be applied", error, place, event="config_not_applied")
            errors = (_error_text(error, place),)
        self._last = ReloadResult(errors, warnings, self._reactor.seconds() - begun, invalid, changes, self._wall())
        self._report_reload(self._last)
        return self._last

    async def _apply(self, config: Config) -> None:
        """Apply `config`, or change nothing: a new control socket is opened first, and closed if the rest fails."""
        async with self._applying:
            successor = self._replacement.successor
            if successor is not None:
                raise DaemonError(
                    f"the program was replaced meanwhile, by process {successor.pid}",
                    todo="reload again if the file was changed since",
                )
            if self.state is not State.SERVING:
                raise DaemonError("mcproxy is stopping")
            check_reload(self._config.daemon, config.daemon)
            moved = config.daemon.control_socket != self._config.daemon.control_socket
            control = self._open_control(config) if moved else self._control
            try:
                await self._service.apply(config)
            except BaseException:
                if moved and control is not None:
                    control.close()
                raise
            if moved and self._control is not None:
                self._control.close()
            self._control = control
            self._config = config
            self._dependencies.observer.configure(config.logging)

    def _report_reload(self, reload: ReloadResult) -> None:
        self._service.metrics.counts.increase(RELOADS, ("accepted" if reload.ok else "refused",))
        for warning in reload.warnings:
            log.warn("configuration warning", event="config_warning", cause=warning)
        if reload.ok:
            log.info(
                "configuration reloaded",
                event="config_reloaded",
                file=self._dependencies.path,
                seconds=reload.seconds,
                **_counts(self._config),
                **_entries_by_kind(reload.changes),
            )
            status = ""
        else:
            log.error(
                "reload refused, the old configuration stays",
                event="config_reload_failed",
                file=self._dependencies.path,
                errors=len(reload.errors),
                todo="mend what the lines before this one say, then reload again",
            )
            status = f"reload failed: {reload.errors[0]}"
        if self.state is State.SERVING:
            self._notify_ready(status)

    def _notify_ready(self, status: str = "") -> None:
        counts = ", ".join(f"{number} {name}" for name, number in _counts(self._config).items())
        self._dependencies.notifier.ready(status or f"serving: {counts}")

    async def _claim_control(self, config: Config) -> ControlSocket | None:
        """Open the control socket, once a daemon that has it and is shutting down is gone. Raises DaemonError."""
        try:
            return self._open_control(config)
        except ControlSocketInUse:
            assert config.daemon.control_socket is not None
            await wait_for_predecessor(self._reactor, config.daemon.control_socket)
        return self._open_control(config)

    def _open_control(self, config: Config) -> ControlSocket | None:
        path = config.daemon.control_socket
        if path is None:
            return None
        return ControlSocket(self._reactor, path, commands_of(self))

    # -- for the commands of the control socket (`daemon.commands.CommandTarget`) ------------------------------------

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
            "pid": os.getpid(),
            "state": str(self.state),
            "file": self._dependencies.path,
            "uptimeSeconds": round(self._reactor.seconds() - self._started_at, 1),
            "open": self._service.running,
            "stopsWithin": max(0.0, self._stops_by - self._reactor.seconds()) if self._stops_by else None,
            "lastReload": of_reload(self._last),
            **({"wantsSockets": True} if self.orphaned.wanted else {}),
        }

    async def collect_status(self) -> dict[str, Any]:
        """Return the status document (`daemon.figures`)."""
        counting = Deferred.fromCoroutine(self._service.collect_metrics())  # both ask all processes, at the same time
        figures = await self._service.collect_figures()
        metrics = await counting
        state, config = self.status, self._config  # read now: the figures bring the counts up to date
        if "processes" not in figures:
            used = figures.pop("process", {})
            figures["processes"] = [only_process(used, state["uptimeSeconds"], state["open"])]
        return {
            **state,
            **self._document.of_configuration(config),
            **self._document.complete(config, figures, Counted.of(metrics)),
            "totals": {**metrics.totals(), "durationBounds": DURATION_BOUNDS},
            "history": self._history.figures(),
        }

    # -- for Admin listeners (`daemon.admin.AdminTarget`) -------------------------------------------------------------

    async def collect_metrics(self, openmetrics: bool) -> list[bytes]:
        """Return the text of the metrics, in pieces."""
        from mcproxy.observe.metrics.exposition import metrics_text

        metrics = await self._service.collect_metrics()
        return await metrics_text(self._reactor, metrics, await self.collect_status(), openmetrics=openmetrics)

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight, of all processes."""
        return await self._service.collect_requests()

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks of /readyz that only the whole daemon knows. A reload that failed is only shown."""
        refused = self._last is not None and not self._last.ok
        cause = "the last reload was refused, the configuration before it is in force" if refused else ""
        return [Check("reload", cause, needed=False), *await self._service.collect_checks()]

    def reload(self) -> Deferred[ReloadResult]:
        return self._reloader.request()

    async def compare(self, path: str) -> tuple[Loaded, tuple[Change, ...]]:
        loaded = await self._dependencies.load(path)
        return loaded, await self._dependencies.compare(self._config, loaded.config)

    async def effective_configuration(self, form: str) -> str:
        return await self._dependencies.dump(self._config, form)

    def refusal(self, loaded: Loaded) -> str:
        try:
            check_reload(self._config.daemon, loaded.config.daemon)
        except WorkersChangedError as error:
            return f"{place_of(error, loaded)}{error.cause}; {error.todo}"
        return ""


def _error_text(error: Exception, place: str) -> str:
    """Return what a command prints of an error."""
    cause, todo = describe(error) or (f"{type(error).__name__}: {error}", "report this bug, with the log")
    return place + cause + (f"; {todo}" if todo else "")


def _entries_by_kind(changes: Sequence[Change]) -> dict[str, str]:
    """Return the changed entries by kind, each entry once, for a log line."""
    entries: dict[str, dict[str, None]] = {"added": {}, "removed": {}, "changed": {}}
    for change in changes:
        kind = "changed" if change.key else change.kind  # a key that was added is a change of its entry
        entries[kind][change.entry] = None
    return {kind: ", ".join(found) for kind, found in entries.items() if found} or {"changed": "nothing"}


def _counts(config: Config) -> dict[str, int]:
    counts = {"listeners": len(config.listeners), "servers": len(config.servers), "clusters": len(config.clusters)}
    workers = worker_count(config.daemon)
    return counts if workers == 1 else {**counts, "workers": workers}
