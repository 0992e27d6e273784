"""A reload: reads the configuration file, lets the daemon apply it, and logs the result.

Reloads run one at a time. All requests during a reload share one further reload, which starts after it. So the files
are always read after the request.

`runtime` decides which objects are built anew and which are taken over, such as the certificates of each listener.
`certificate_watch` handles certificate files that are replaced without a reload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config.config_changes import layout_warnings, layouts_of
from mcproxy.config.model import Config
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon.dependencies import Dependencies, RunningDaemon
from mcproxy.daemon.errors import describe, is_of_configuration, log_error, place_of
from mcproxy.daemon.process_setup import worker_count
from mcproxy.kube.healthz import Check
from mcproxy.net.wall_time import wall_clock
from mcproxy.observe.metrics.families import RELOADS

if TYPE_CHECKING:
    from mcproxy.config.config_changes import ConfigChange
    from mcproxy.config.loaded import Loaded

log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The result of a reload. Without `errors` the new configuration is in force, else still the old one."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    invalid: bool = False
    """Whether the errors are in the files, as `mcproxy check` prints them. Otherwise applying them has failed."""
    changes: tuple[ConfigChange, ...] = ()
    """The changes from the former configuration to the new one."""
    at: float = 0.0
    """The time of the reload's end: seconds since 1970."""

    @property
    def ok(self) -> bool:
        return not self.errors


class OneAtATime:
    """Runs a coroutine function, one run at a time, with at most one further run queued."""

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
                waiting.callback(result)  # a Failure makes `waiting` fail
            if self._waiting and not self._running:
                self._start()

        Deferred.fromCoroutine(run()).addBoth(finished)


class Reloader:
    """The reloads of a daemon."""

    def __init__(self, daemon: RunningDaemon, dependencies: Dependencies) -> None:
        self.last: ReloadResult | None = None
        """The result of the newest reload."""
        self._daemon = daemon
        self._dependencies = dependencies
        self._reactor = dependencies.reactor
        self._wall = wall_clock(dependencies.reactor)
        self._warnings: frozenset[str] = frozenset()  # the warnings about the file at its last read
        self._one_at_a_time = OneAtATime(self._reload)

    @property
    def running(self) -> bool:
        return self._one_at_a_time.running

    def request(self) -> Deferred[ReloadResult]:
        """Return a Deferred that fires with the outcome of the first reload that starts from now on."""
        return self._one_at_a_time.request()

    def check(self) -> Check:
        """Return the check of /readyz, which shows a failed reload but does not make the daemon unready."""
        refused = self.last is not None and not self.last.ok
        cause = "the last reload was refused; the previous configuration is in force" if refused else ""
        return Check("reload", cause, needed=False)

    def log_warnings(self, warnings: Sequence[str]) -> None:
        """Log the warnings about a file, except warnings that were logged at its previous read."""
        for warning in warnings:
            if warning not in self._warnings:
                log.warn("configuration warning", event="config_warning", cause=warning)
        self._warnings = frozenset(warnings)

    async def _reload(self) -> ReloadResult:
        begun = self._reactor.seconds()
        self._dependencies.notifier.reloading()
        errors: tuple[str, ...] = ()
        warnings: tuple[str, ...] = ()
        changes: tuple[ConfigChange, ...] = ()
        invalid = False
        loaded: Loaded | None = None
        try:
            loaded = await self._dependencies.load(self._dependencies.path)
            moved = layout_warnings(layouts_of(self._daemon.config), loaded)
            warnings = tuple(str(warning) for warning in (*loaded.warnings, *moved))
            changes = await self._dependencies.compare(self._daemon.config, loaded.config)
            await self._daemon.apply(loaded.config)
        except ConfigErrors as error:
            invalid = True
            errors = error.lines
            for problem in errors:
                log.error("configuration error", event="config_error", cause=problem)
        except Exception as error:
            invalid = is_of_configuration(error)
            place = place_of(error, loaded) if loaded is not None else ""
            log_error(log, "the new configuration cannot be applied", error, place, event="config_not_applied")
            errors = (error_text(error, place),)
        self.last = ReloadResult(errors, warnings, self._reactor.seconds() - begun, invalid, changes, self._wall())
        if loaded is not None:
            self.log_warnings(warnings)
        self._report(self.last)
        return self.last

    def _report(self, result: ReloadResult) -> None:
        self._daemon.counts.increase(RELOADS, ("accepted" if result.ok else "refused",))
        if result.ok:
            log.info(
                "configuration reloaded",
                event="config_reloaded",
                file=self._dependencies.path,
                seconds=result.seconds,
                **entry_counts(self._daemon.config),
                **_entries_by_kind(result.changes),
            )
            status = ""
        else:
            log.error(
                "reload refused; the old configuration stays in force",
                event="config_reload_failed",
                file=self._dependencies.path,
                errors=len(result.errors),
                todo="correct the errors in the lines before this one, then reload again",
            )
            status = f"reload failed: {result.errors[0]}"
        self._daemon.notify_ready(status)


def error_text(error: Exception, place: str) -> str:
    """Return the text of an error for the output of a command."""
    cause, todo = describe(error) or (f"{type(error).__name__}: {error}", "report this bug, with the log")
    return place + cause + (f"; {todo}" if todo else "")


def _entries_by_kind(changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return the changed entries by kind, each entry once, for a log line."""
    entries: dict[str, dict[str, None]] = {"added": {}, "removed": {}, "changed": {}}
    for change in changes:
        kind = "changed" if change.key else change.kind  # an added key is a change of its entry
        entries[kind][change.entry] = None
    return {kind: ", ".join(found) for kind, found in entries.items() if found} or {"changed": "nothing"}


def entry_counts(config: Config) -> dict[str, int]:
    """Return the numbers of entries of a configuration, for log lines."""
    counts = {"listeners": len(config.listeners), "servers": len(config.servers), "clusters": len(config.clusters)}
    workers = worker_count(config.daemon)
    return counts if workers == 1 else {**counts, "workers": workers}
