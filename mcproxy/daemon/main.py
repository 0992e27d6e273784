"""Builds and runs a daemon: reads the configuration, chooses the reactor and starts the service, in this order.

It requires epoll and SO_PEERCRED, so Linux.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import LogLevel
from twisted.python.failure import Failure

from mcproxy.config.model import Config
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon import process_setup, signals
from mcproxy.daemon.config_process import ConfigProcessError
from mcproxy.daemon.daemon_log import SUMMARY_INTERVAL, LineObserver, standard_error, start_logging
from mcproxy.daemon.dependencies import DaemonService, Dependencies
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.lazy_parts import SharedLimits
from mcproxy.daemon.lifecycle import Daemon
from mcproxy.daemon.log_lines import Stream, format_for
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.service_by_workers import MakeParts, ServiceByWorkers, ServiceParts
from mcproxy.daemon.status.admin_source import DaemonAdmin
from mcproxy.daemon.systemd import Notifier, adopt_sockets
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.net.bind import SystemdSockets
from mcproxy.net.listening_sockets import HandedOver, LocalSockets
from mcproxy.observe.request_logs import RequestLogs

if TYPE_CHECKING:
    from mcproxy.config.config_changes import ConfigChange
    from mcproxy.config.loaded import Loaded
    from mcproxy.daemon.upgrade import Takeover

T = TypeVar("T")

Load = Callable[[str], "Loaded"]
_SENTENCES = {"config_error": "configuration error", "daemon_start_failed": "mcproxy does not start"}

MakeService = Callable[..., DaemonService]
"""``(reactor, *, parts, request_logs) -> Service``, the signature of `daemon.service.SingleProcessService`."""


def run(
    path: str,
    *,
    load: Load,
    make_service: MakeService,
    errors: TextIO = sys.stderr,
    hangup_stops: bool = False,
) -> int:
    """Run a daemon with the configuration file `path` until it is stopped, and return its exit status.

    The status is 0 after a shutdown, 78 (EX_CONFIG) for an invalid file, 1 for any other failure to serve.
    Each reload calls `load`, which raises ConfigErrors, in a thread. With `hangup_stops`, SIGHUP stops the daemon.
    Call `signals.ignore_until_ready` before it.
    """
    if not sys.platform.startswith("linux"):
        _print_error("daemon_start_failed", "the daemon needs Linux (epoll)", errors)
        return 1
    process_setup.set_collector_thresholds()
    process_setup.raise_descriptor_limit()
    process_setup.daemon_instance()  # before workers and exec plugins get the environment
    path = os.path.abspath(path)
    try:
        takeover = _takeover()
    except DaemonError as error:
        _print_error("daemon_start_failed", error.cause, errors, error.todo)
        return 1
    systemd = adopt_sockets(os.environ, pid=os.getpid()) if takeover is None else takeover.systemd
    try:
        loaded = load(path)
    except ConfigErrors as error:
        for line in error.lines:
            _print_error("config_error", line, errors)
        if takeover is not None:
            takeover.failed(list(error.lines), invalid=True)
        return os.EX_CONFIG
    except ConfigProcessError as error:
        _print_error("daemon_start_failed", error.cause, errors, error.todo)
        if takeover is not None:
            takeover.failed([error.cause])
        return 1
    notifier = Notifier.from_environment(os.environ, pid=os.getpid())
    observer = start_logging(loaded.config.logging)
    reactor = _choose_reactor()
    handed_over = HandedOver() if takeover is None else takeover.sockets
    admin = DaemonAdmin()
    make = _service_maker(reactor, systemd, make_service, observer, admin)
    service = ServiceByWorkers(reactor, make, loaded.config, handed_over)

    dependencies = Dependencies(
        reactor=reactor,
        path=path,
        load=lambda file: _in_thread(reactor, lambda: load(file)),
        compare=lambda old, new: _in_thread(reactor, lambda: _changes(old, new)),
        dump=lambda config, form: _in_thread(reactor, lambda: _dump(config, form)),
        notifier=notifier,
        observer=observer,
        log_files=service,
        systemd_sockets=systemd,
        takeover=takeover,
    )
    daemon = Daemon(service, dependencies)
    admin.attach(daemon)
    if takeover is not None:
        takeover.begin(reactor, daemon.give_way)
    reactor.callWhenRunning(_begin, reactor, daemon, loaded, hangup_stops)
    if os.getpid() == 1:
        process_setup.reap_regularly(reactor, has_plugins=lambda: service.runs_plugins)
    summaries = LoopingCall(observer.write_summaries)
    summaries.clock = reactor
    summaries.start(SUMMARY_INTERVAL, now=False)
    gc.freeze()  # imported objects live as long as the process
    gc.enable()
    reactor.run()
    return daemon.exit_status


def _print_error(event: str, cause: str, errors: TextIO, todo: str = "") -> None:
    """Print an error before the log is set up: on a terminal as `check` does, else as a line of the log.

    The line is in text, because `logging.format` is not known yet. Alerts match its event name, and the journal has
    its priority.
    """
    stream = standard_error()
    if errors is not sys.stderr or stream is Stream.TERMINAL:
        prefix = "" if event == "config_error" else "mcproxy: "
        print(prefix + cause + (f"; {todo}" if todo else ""), file=errors)
        return
    fields = {"event": event, "log_level": LogLevel.error, "log_time": time.time(), "cause": cause, "todo": todo}
    errors.write(format_for(stream, "text", os.environ)({**fields, "log_format": _SENTENCES[event]}))
    errors.flush()


def _takeover() -> Takeover | None:
    """Return the hand-over from the daemon that this one replaces; None if it replaces no daemon.

    Raises DaemonError."""
    if "MCPROXY_HANDOVER" not in os.environ:
        return None
    from mcproxy.daemon.upgrade import Takeover

    return Takeover.from_environ(os.environ)


def _service_maker(
    reactor: Any,
    systemd: SystemdSockets,
    make_service: MakeService,
    observer: LineObserver,
    admin: DaemonAdmin,
) -> MakeParts:
    """Return a factory of the service (in one or several processes) and its log files."""

    def make_one(handed_over: HandedOver) -> ServiceParts:
        request_logs = RequestLogs(reactor, environ=os.environ)
        tables = LimitTables.of_one_process(reactor)
        parts = ProcessParts(
            sockets=LocalSockets(systemd, handed_over),
            limit_tables=tables,
            admin=admin,
            shared_limits=SharedLimits(reactor, tables.owned),
        )
        parts.metrics.measure_loop("mcproxy", reactor)
        request_logs.count_into(parts.metrics)
        service = make_service(reactor, parts=parts, request_logs=request_logs)
        return ServiceParts(service, request_logs, lambda: None)

    def make(several: bool, handed_over: HandedOver) -> ServiceParts:
        if not several:
            return make_one(handed_over)
        from mcproxy.daemon.processes.socket_table import SocketTable
        from mcproxy.daemon.processes.supervisor import LogFilesOfChildren, Supervisor

        sockets = SocketTable(systemd, handed_over)
        supervisor = Supervisor(reactor, sockets=sockets, write_line=observer.write_line, admin=admin)
        supervisor.metrics.measure_loop("supervisor", reactor)
        return ServiceParts(supervisor, LogFilesOfChildren(supervisor.children), supervisor.close)

    return make


def _begin(reactor: Any, daemon: Daemon, loaded: Loaded, hangup_stops: bool) -> None:
    signals.install(reactor, daemon, hangup_stops=hangup_stops)
    Deferred.fromCoroutine(daemon.start(loaded)).addErrback(daemon.start_failed)


def _changes(old: Config, new: Config) -> tuple[ConfigChange, ...]:
    from mcproxy.config.config_changes import changes

    return changes(old, new)


def _dump(config: Config, form: str) -> str:
    from mcproxy.config.dump import as_text

    return as_text(config, form)


def _in_thread(reactor: Any, work: Callable[[], T]) -> Deferred[T]:
    """Call `work` in a thread; return a Deferred with its result.

    The thread is not from the reactor's pool, whose threads the process awaits at its exit: a file on a dead network
    file system would block the exit.
    """
    outcome: Deferred[T] = Deferred()

    def run() -> None:
        try:
            result = work()
        except Exception:
            reactor.callFromThread(outcome.errback, Failure())  # type: ignore[no-untyped-call]
        else:
            reactor.callFromThread(outcome.callback, result)

    threading.Thread(target=run, name="reload", daemon=True).start()
    return outcome


def _choose_reactor() -> Any:
    """Install the reactor of `net.reactor`. No other module chooses a reactor."""
    from mcproxy.net.reactor import install

    return install()
