"""The daemon's log: one line per `twisted.logger` event on standard error; `log_lines` formats the lines.

A line of a child process has the child's name: `process=worker-1`.
Messages of Twisted itself (ports opened, factories started) are logged at debug level.

A client that sends thousands of bad requests must not fill the disk or hide other lines. So in each period only the
first `BURST` lines of a kind and client address are written, and one summary replaces the others. The kind of a line is
its event, or the format of a library's line. The line's `log_subject` replaces the address of an unknown client.

A thread writes the lines, so that a slow reader of standard error cannot block the reactor.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from math import inf
from types import TracebackType

from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config.model import Logging
from mcproxy.daemon.log_lines import LEVELS, Format, Stream, format_for, format_text, severity, stream_of
from mcproxy.log_once import LogOnce
from mcproxy.net.client_table import network
from mcproxy.observe.writer import FileWriter

log = Logger(namespace="mcproxy")

BURST = 10
"""Number of lines of a kind and address that are written in a period."""
MAX_KEYS = 1024
"""Limit of the keys, each of a kind and an address; further addresses share one key per kind."""
_OTHERS = "other clients"
MAX_QUEUED = 1024 * 1024
"""Limit of the queue (bytes)."""
PIECE = 4096
"""Greatest size of one write of several lines (bytes): PIPE_BUF, so that a write to a pipe is atomic."""
FINAL_FLUSH = 2.0
"""Longest time that the exit of the process waits for the reader of standard error (seconds)."""
SUMMARY_INTERVAL = 10.0
"""Interval at which summaries of suppressed lines are written (seconds)."""
Divert = Callable[[LogEvent, str], bool]
"""``(event, line) -> whether another process writes the line``; called in any thread."""


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
        """`process` names this process in each line; it is "" for the supervisor, and for the only process.

        `format_for` returns the line format for a value of `logging.format`; the initial format is text.
        """
        self._write = write
        self._format_for = format_for
        self._format = format_for("text")
        self._process = process
        self.divert: Divert | None = None
        """Diverts lines of a child's log to the supervisor's log; None: no line is diverted."""
        self._limiter = LogLimiter(seconds)
        self._lock = threading.RLock()  # events come from threads, and from finalizers at any time
        self.set_level(level)

    def set_level(self, level: str) -> None:
        """Set the lowest level that is written: debug, info, warn or error."""
        self.level = level
        self._threshold = LEVELS[level]

    def configure(self, logging: Logging) -> None:
        """Apply the section `logging` from now on."""
        self.set_level(logging.level)
        self._format = self._format_for(logging.format)

    def format(self, event: LogEvent) -> str:
        """Return an event as a line of this log."""
        return self._format({"process": self._process, **event} if self._process else event)

    def __call__(self, event: LogEvent) -> None:
        level = event.get("log_level")
        if level is LogLevel.debug and self._threshold > 0:  # the most frequent case must be cheap
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

    Python warnings of libraries are not logged: their lines have another format, and a client's certificate can cause
    them (by a name of odd length). Python would keep each of them in a registry for ever.
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
    """Return the kind of stream that standard error is."""
    return stream_of(2, os.environ)


def _finish(observer: LineObserver, writer: LogWriter) -> None:
    """At the exit of the process, write the queued lines if the reader accepts them within `FINAL_FLUSH`."""
    observer.write_summaries(now=True)
    writer.flush(FINAL_FLUSH)


def _log_uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Log an uncaught exception, such as one of a pyOpenSSL callback."""
    failure = Failure(error, kind, where)  # type: ignore[no-untyped-call]
    log.failure("uncaught exception", event="internal_error", failure=failure)


def _log_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_value is not None:
        _log_uncaught(unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback)


def _log_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _log_uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


class LogLimiter:
    """Counts the lines of each key. An event is limited if it has a field `client`: an address, or "" if unknown."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._once = LogOnce(burst=BURST, most=sys.maxsize)  # `admit` limits the keys; `summaries` removes them
        self._suppressed: dict[Hashable, tuple[int, LogEvent]] = {}  # number of suppressed events, and the last of them

    def admit(self, event: LogEvent) -> bool:
        """Return whether to write the event now. An event that is not written is counted for a summary."""
        client = event.get("client")
        if client is None:
            return True
        kind = str(event.get("event") or f"{event.get('log_namespace', '')} {event.get('log_format', '')}")
        subject = "" if client else str(event.get("log_subject", ""))
        key = (kind, subject, network(str(client)))
        if key not in self._once and len(self._once) >= MAX_KEYS:
            key = (kind, subject, _OTHERS)
        if key not in self._suppressed and self._once.allows(key, self._seconds()):
            return True
        count, _ = self._suppressed.get(key, (0, None))
        last = {**event, "client": _OTHERS} if key[2] == _OTHERS else event
        self._suppressed[key] = count + 1, last
        return False

    def summaries(self, *, now: bool = False) -> list[LogEvent]:
        """Return an event for each key whose period has ended with suppressed lines; with `now`, for all keys."""
        ended = self._once.forget(inf if now else self._seconds())
        held = [self._suppressed.pop(key) for key in ended if key in self._suppressed]
        return [{**last, "suppressed": count} for count, last in held]


class LogWriter:
    """The bounded queue of lines for the `FileWriter` of one descriptor, which stays open.

    A pipe without a reader buffers 64 KiB; then a write to it blocks for ever. If the queue is full, lines are dropped,
    and one line reports their number once the reader continues. `dropped_line` returns that line, with its line end.
    """

    def __init__(self, fd: int, dropped_line: Callable[[int], str], *, max_queued: int = MAX_QUEUED) -> None:
        self._writer = FileWriter(fd)
        self._dropped_line = dropped_line
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._lines: list[bytes | None] = []  # None: the report of dropped lines goes here
        self._queued = 0  # bytes, including those that the thread is writing
        self._writing = False
        self._dropped = 0

    def write(self, line: str) -> None:
        """Queue a line with its line end. Never blocks; can be called in any thread."""
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._queued + len(data) <= self._max_queued:
                self._lines.append(data)
                self._queued += len(data)
            else:
                self._dropped += 1
                self._report_dropped()
            self._pass_on()

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for all lines to be written; return whether they were."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._lines or self._writing), timeout)

    def _report_dropped(self) -> None:
        """Mark the end of the queue as the position of the report of dropped lines. The caller holds the lock."""
        if not self._lines or self._lines[-1] is not None:
            self._lines.append(None)

    def _pass_on(self) -> None:
        """Have the thread write the lines, unless it is already writing. The caller holds the lock."""
        if self._lines and not self._writing:
            self._writing = True
            self._writer.write_from(self._pieces)

    def _pieces(self) -> Iterator[tuple[bytes, int]]:
        """Yield the queued lines in pieces, in the writing thread, and count lines that could not be written."""
        with self._changed:
            lines, self._lines = self._lines, []
        lost_before = self._writer.lines_lost
        piece, count = b"", 0
        for line in lines:
            data, represented = self._report() if line is None else (line, 1)
            if piece and len(piece) + len(data) > PIECE:
                yield piece, count
                piece, count = b"", 0
            piece += data
            count += represented
        yield piece, count
        with self._changed:
            lost = self._writer.lines_lost - lost_before
            self._queued -= sum(len(line) for line in lines if line is not None)
            self._dropped += lost
            if self._dropped and not lost:  # report lines of a failed write only after a successful write
                self._report_dropped()
            self._writing = False
            self._pass_on()
            self._changed.notify_all()

    def _report(self) -> tuple[bytes, int]:
        """Return the line that reports the dropped lines, and their number; reset that number."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        return (self._dropped_line(dropped).encode("utf-8", "backslashreplace") if dropped else b""), dropped
