"""The daemon's log: one line per event on standard error, in the form that fits it (`line_formats`, `standard_error`).

A line of a child of a daemon of several processes has its name: `process=worker-1`.

Events come from `twisted.logger`. Messages of Twisted itself (ports opened, factories started) are logged at debug
level.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType

from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import Logging
from mcproxy.daemon.log.line_formats import LEVELS, Format, format_text, severity
from mcproxy.daemon.log.log_writer import LogWriter
from mcproxy.daemon.log.rate_limit import LogLimiter
from mcproxy.daemon.log.standard_error import Stream, format_for, stream_of

FINAL_FLUSH = 2.0
"""Longest time that the end of the process waits for the reader of standard error (seconds)."""
SUMMARY_INTERVAL = 10.0
"""Interval at which summaries of suppressed lines are looked for (seconds)."""

Divert = Callable[[LogEvent, str], bool]
"""``(event, line) -> whether the line was taken``; called in any thread."""

log = Logger(namespace="mcproxy")


@implementer(ILogObserver)
class LineObserver:
    """Writes events at or above a level that can be changed at run time."""

    def __init__(
        self,
        write: Callable[[str], None],
        level: str = "info",
        *,
        process: str = "",
        seconds: Callable[[], float] = time.monotonic,
        format_for: Callable[[str], Format] = lambda form: format_text,
    ) -> None:
        """`process` is the name of this process in each line; "" for the supervisor, and for the only process.

        `format_for` returns the format of lines for `logging.format`, which is text at first.
        """
        self._write = write
        self._format_for = format_for
        self._format = format_for("text")
        self._process = process
        self.divert: Divert | None = None
        """Takes lines away from this log (of a child, to the supervisor's); None: no line."""
        self._limiter = LogLimiter(seconds)
        self._lock = threading.RLock()  # events come from threads, and from finalizers at any time
        self.set_level(level)

    def set_level(self, level: str) -> None:
        """Set the lowest level that is written: debug, info, warn or error."""
        self.level = level
        self._threshold = LEVELS[level]

    def configure(self, logging: Logging) -> None:
        """Write lines as the section `logging` has it from now on."""
        self.set_level(logging.level)
        self._format = self._format_for(logging.format)

    def format(self, event: LogEvent) -> str:
        """Return an event as a line of this log."""
        return self._format({"process": self._process, **event} if self._process else event)

    def __call__(self, event: LogEvent) -> None:
        level = event.get("log_level")
        if level is LogLevel.debug and self._threshold > 0:  # the common case first: it must cost almost nothing
            return
        if severity(event) >= self._threshold:
            with self._lock:
                admitted = self._limiter.admit(event)
            if admitted:
                self._write_event(event)

    def write_line(self, line: str) -> None:
        """Write a line that another process has formatted."""
        self._write(line)

    def write_summaries(self, *, now: bool = False) -> None:
        """Write the summaries of suppressed lines whose period has ended (`now`: all of them)."""
        with self._lock:
            summaries = self._limiter.summaries(now=now)
        for event in summaries:
            self._write_event(event)

    def _write_event(self, event: LogEvent) -> None:
        line = self.format(event)
        if self.divert is None or not self.divert(event, line):
            self._write(line)


def _dropped(count: int) -> LogEvent:
    return {
        "event": "log_lines_dropped",
        "log_format": "{lines} log lines were dropped",
        "log_level": LogLevel.warn,
        "log_time": time.time(),
        "lines": count,
        "cause": "standard error is not read fast enough",
        "todo": "let something read the daemon's standard error",
    }


def start_logging(logging: Logging, process: str = "") -> LineObserver:
    """Log all events of this process, and uncaught exceptions, to standard error; `process` as in LineObserver.

    Warnings of libraries are not shown: their lines have another format, and a client's certificate can cause them (a
    name of an odd length), each kept for ever in a registry.
    """
    warnings.simplefilter("ignore")
    stream, environ = standard_error(), dict(os.environ)
    writer = LogWriter(2, lambda count: observer.format(_dropped(count)))
    observer = LineObserver(writer.write, process=process, format_for=lambda form: format_for(stream, form, environ))
    observer.configure(logging)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_thread
    atexit.register(_finish, observer, writer)
    return observer


def standard_error() -> Stream:
    """Return what standard error is."""
    return stream_of(2, os.environ)


def _finish(observer: LineObserver, writer: LogWriter) -> None:
    """At the end of the process: write what is left, if the reader takes it."""
    observer.write_summaries(now=True)
    writer.flush(FINAL_FLUSH)


def _log_uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Exceptions of pyOpenSSL's callbacks end here."""
    failure = Failure(error, kind, where)  # type: ignore[no-untyped-call]
    log.failure("uncaught exception", event="internal_error", failure=failure)


def _log_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_value is not None:
        _log_uncaught(unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback)


def _log_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _log_uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
