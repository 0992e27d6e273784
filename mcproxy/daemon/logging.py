"""The daemon's log: one line per event on standard error, in key=value form (logfmt).

    2026-11-21T11:42:00.123Z level=warn event=endpoint_out msg="an endpoint is out" cluster=east endpoint=a cause="…"

`event` is a stable name to alert on (`observe.events` has all of them), `msg` a sentence for people.

A line of a child of a daemon of several processes has its name: `process=worker-1`.

Events come from `twisted.logger`. Peers choose much of their contents, so values are escaped and bounded: no peer
can forge a line or fill the disk with one. Only bugs have a traceback, in one field of the same line. Messages of
Twisted itself (ports opened, factories started) are logged at debug level.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType

from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, formatEvent, globalLogBeginner
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.daemon.log_limiter import LogLimiter
from mcproxy.daemon.log_writer import LogWriter

LONGEST_VALUE = 1000
"""Limit of a value (characters); a traceback may have eight times as many."""
MOST_FIELDS = 24
FINAL_FLUSH = 2.0
"""Longest time that the end of the process waits for the reader of standard error (seconds)."""
SUMMARY_INTERVAL = 10.0
"""Interval at which summaries of suppressed lines are looked for (seconds)."""

_LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3, "critical": 3}
_NAMES = ("debug", "info", "warn", "error")
_FIRST = ("process", "server", "listener", "cluster", "endpoint")
_LAST = ("cause", "todo")
_INTERNAL = {
    "event",
    "format",
    "message",
    "isError",
    "failure",
    "why",
    "time",
    "system",
    "printed",
    "logLevel",
    "traceback",
}
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@+,-[]")

Divert = Callable[[LogEvent, str], bool]
"""``(event, line) -> whether the line was taken``; called in any thread."""

log = Logger(namespace="mcproxy")


def escape(text: str, longest: int = LONGEST_VALUE) -> str:
    """Return `text` cut to `longest` characters, with quotes, backslashes and everything unprintable escaped."""
    if len(text) > longest:
        text = text[:longest] + "..."
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    return "".join(_escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def field(name: str, value: object, longest: int = LONGEST_VALUE) -> str:
    """Return ``name=value``, quoted unless the value is one plain word."""
    text = value if isinstance(value, str) else _text(value)
    if text and len(text) <= longest and _BARE.issuperset(text):
        return f"{name}={text}"
    return f'{name}="{escape(text, longest)}"'


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    try:
        return str(value)
    except Exception as error:  # a broken __str__ must not lose the line
        return f"<{type(value).__name__}: {type(error).__name__} in str()>"


def format_line(event: LogEvent) -> str:
    """Return an event of `twisted.logger` as one line, with its line end."""
    when = event.get("log_time", 0.0)
    whole, milliseconds = divmod(int(when * 1000 + 0.5), 1000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    parts = [f"{stamp}.{milliseconds:03d}Z", f"level={_NAMES[severity(event)]}", field("event", event_name(event))]
    parts.append(f'msg="{escape(_what(event))}"')
    names = [name for name in event if not name.startswith("log_") and name not in _INTERNAL]
    between = [name for name in names if name not in _FIRST and name not in _LAST]
    for name in [*(n for n in _FIRST if n in event), *between, *(n for n in _LAST if n in event)][:MOST_FIELDS]:
        value = event[name]
        if value is not None and value != "":
            parts.append(field(name, value))
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        if "cause" not in event:
            parts.append(
                field("cause", f"{failure.type.__name__ if failure.type else '?'}: {failure.getErrorMessage()}")
            )
        parts.append(field("traceback", failure.getTraceback(), 8 * LONGEST_VALUE))
    return " ".join(parts) + "\n"


def event_name(event: LogEvent) -> str:
    """Return the name of an event; one of a library has none of its own."""
    name = event.get("event")
    if isinstance(name, str):
        return name
    return "internal_error" if "log_failure" in event else "library_message"


def _what(event: LogEvent) -> str:
    text = formatEvent(event).strip() or event.get("log_namespace", "event")
    suppressed = event.get("suppressed")
    return text if suppressed is None else f"{text} (more lines like this were suppressed)"


def severity(event: LogEvent) -> int:
    """Return 0 (debug) to 3 (error). Twisted's own info messages count as debug."""
    level = event.get("log_level")
    number = _LEVELS[level.name] if level is not None else 1
    if number == 1 and event.get("log_namespace", "").startswith(("twisted.", "log_legacy")):
        return 0
    return number


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
    ) -> None:
        """`process` is the name of this process in each line; "" for the supervisor, and for the only process."""
        self._write = write
        self._process = process
        self.divert: Divert | None = None
        """Takes lines away from this log (of a child, to the supervisor's); None: no line."""
        self._limiter = LogLimiter(seconds)
        self._lock = threading.RLock()  # events come from threads, and from finalizers at any time
        self.set_level(level)

    def set_level(self, level: str) -> None:
        """Set the lowest level that is written: debug, info, warn or error."""
        self.level = level
        self._threshold = _LEVELS[level]

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
        line = format_line({"process": self._process, **event} if self._process else event)
        if self.divert is None or not self.divert(event, line):
            self._write(line)


def _dropped_line(count: int, process: str) -> str:
    return format_line(
        {
            "event": "log_lines_dropped",
            "process": process,
            "log_format": "{lines} log lines were dropped",
            "log_level": LogLevel.warn,
            "log_time": time.time(),
            "lines": count,
            "cause": "standard error is not read fast enough",
            "todo": "let something read the daemon's standard error",
        }
    )


def start_logging(level: str, process: str = "") -> LineObserver:
    """Log all events of this process, and uncaught exceptions, to standard error; `process` as in LineObserver.

    Warnings of libraries are not shown: their lines have another format, and a client's certificate can cause them (a
    name of an odd length), each kept for ever in a registry.
    """
    warnings.simplefilter("ignore")
    writer = LogWriter(2, lambda count: _dropped_line(count, process))
    observer = LineObserver(writer.write, level, process=process)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_thread
    atexit.register(_finish, observer, writer)
    return observer


def _finish(observer: LineObserver, writer: LogWriter) -> None:
    """At the end of the process: write what is left, if the reader takes it."""
    observer.write_summaries(now=True)
    writer.flush(FINAL_FLUSH)


def _log_uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Exceptions of pyOpenSSL's callbacks end here."""
    failure = Failure(error, kind, where)  # type: ignore[no-untyped-call]
    log.failure("uncaught exception", event="internal_error", failure=failure, todo="report this log")


def _log_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_value is not None:
        _log_uncaught(unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback)


def _log_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _log_uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
