"""The formats of lines of the daemon's log, and the choice of the format for standard error.

Formats are `key=value` (logfmt), the same with the journal's priority prefix, JSON, and columns for a terminal:

    2026-11-21T11:42:00.123Z level=warn event=endpoint_out msg="an endpoint is out" cluster=east endpoint=a cause="…"

`event` is a stable name for alerts (`observe.events` lists all names), `msg` a sentence for people. Peers choose many
values of an event. So values are escaped and limited, and no peer can forge a line or fill the disk with one. Only bugs
are logged with a traceback, in one field of the same line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from json.encoder import encode_basestring_ascii

from twisted.logger import LogEvent, formatEvent
from twisted.python.failure import Failure

from mcproxy.kube.numbers import plain_number
from mcproxy.observe.events import EVENTS

LONGEST_VALUE = 1000
"""Limit of an escaped value (characters); of a traceback, eight times as many. So a line stays below journald's limit
(48 KiB, journald.conf(5) LineMax=), at which journald would split it.
"""
MOST_FIELDS = 24
LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3, "critical": 3}
NAMES = ("debug", "info", "warn", "error")
_PRIORITIES = (7, 6, 4, 3)  # syslog(3) priorities, which sd-daemon(3) reads from a line's prefix
_FIRST = ("process", "server", "listener", "cluster", "endpoint", "client", "user")
_LAST = ("cause", "todo")
_INTERNAL = frozenset(
    ("event", "format", "message", "isError", "failure", "why", "time", "system", "printed", "logLevel", "traceback")
)
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@+,-[]")
Format = Callable[[LogEvent], str]
"""Returns an event of `twisted.logger` as a line, with its line end."""
_INDENT = " " * 15
_WIDTH = 40
"""Columns to which a short sentence is padded, so that the fields of lines are aligned."""
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_LEVEL_COLOURS = (_DIM, "\x1b[32m", "\x1b[33m", "\x1b[1;31m")
_OWN_LINE = ("cause", "todo")


def escape(text: str, longest: int = LONGEST_VALUE) -> str:
    """Return `text` cut to about `longest` characters; quotes, backslashes and unprintable characters are escaped."""
    if len(text) <= longest and text.isprintable() and '"' not in text and "\\" not in text:
        return text
    parts: list[str] = []
    left = longest
    for character in text:
        part = _escape_character(character)
        left -= len(part)
        if left < 0:
            return "".join(parts) + "..."
        parts.append(part)
    return "".join(parts)


def _escape_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def field(name: str, value: object, longest: int = LONGEST_VALUE) -> str:
    """Return ``name=value``, quoted unless the value is one plain word."""
    text = text_of(value)
    if text and len(text) <= longest and _BARE.issuperset(text):
        return f"{name}={text}"
    return f'{name}="{escape(text, longest)}"'


def text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    try:
        return str(value)
    except Exception as error:  # a broken __str__ must not lose the line
        return f"<{type(value).__name__}: {type(error).__name__} in str()>"


def severity(event: LogEvent) -> int:
    """Return 0 (debug) to 3 (error). Twisted's own info messages count as debug."""
    level = event.get("log_level")
    number = LEVELS[level.name] if level is not None else 1
    if number == 1 and event.get("log_namespace", "").startswith(("twisted.", "log_legacy")):
        return 0
    return number


def name_of(event: LogEvent) -> str:
    """Return the name of an event; all events of libraries have the same name."""
    name = event.get("event")
    if isinstance(name, str):
        return name
    return "internal_error" if "log_failure" in event else "library_message"


def sentence(event: LogEvent) -> str:
    """Return the message of an event, a sentence for people."""
    text = formatEvent(event).strip() or event.get("log_namespace", "event")
    return text if event.get("suppressed") is None else f"{text} (more lines like this were suppressed)"


def fields(event: LogEvent) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the event's fields, in the order of the line; `cause` and `todo` are the last."""
    known = EVENTS.get(str(event.get("event")))
    if known is not None and known.todo_in_line:
        event = {"todo": known.line_todo, **event}
    names = [name for name in event if not name.startswith("log_") and name not in _INTERNAL]
    between = [name for name in names if name not in _FIRST and name not in _LAST]
    first = [name for name in _FIRST if name in event]
    last = [name for name in _LAST if name in event]
    for name in [*first, *between][: MOST_FIELDS - len(last)] + last:
        value = event[name]
        if value is not None and value != "":
            yield name, value
    failure = event.get("log_failure")
    if isinstance(failure, Failure):
        if "cause" not in event:
            yield "cause", f"{failure.type.__name__ if failure.type else '?'}: {failure.getErrorMessage()}"
        if "todo" not in event:
            yield "todo", "report this bug, with this line"


def traceback_of(event: LogEvent) -> str:
    failure = event.get("log_failure")
    return failure.getTraceback() if isinstance(failure, Failure) else ""


def format_text(event: LogEvent) -> str:
    """Return an event as one line in `key=value` form."""
    return f"{stamp(event)} {_rest(event)}"


def format_journal(event: LogEvent) -> str:
    """Return an event as one line for the journal, which reads the priority from the prefix and adds the time."""
    return f"<{_PRIORITIES[severity(event)]}>{_rest(event)}"


def format_json(event: LogEvent) -> str:
    """Return an event as a JSON object in one line, with the same field names and `time` as the first field."""
    parts = [f'"time":"{stamp(event)}"', f'"level":"{NAMES[severity(event)]}"', f'"event":{_json(name_of(event))}']
    parts.append(f'"msg":{_json(sentence(event))}')
    parts.extend(f"{_json(name)}:{_json(value)}" for name, value in fields(event))
    if traceback := traceback_of(event):
        parts.append(f'"traceback":{_json(traceback, 8 * LONGEST_VALUE)}')
    return "{" + ",".join(parts) + "}\n"


def format_journal_json(event: LogEvent) -> str:
    return f"<{_PRIORITIES[severity(event)]}>{format_json(event)}"


def stamp(event: LogEvent) -> str:
    """Return the event's time (RFC 3339, UTC, milliseconds)."""
    whole, milliseconds = divmod(int(event.get("log_time", 0.0) * 1000 + 0.5), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


def _rest(event: LogEvent) -> str:
    parts = [f"level={NAMES[severity(event)]}", field("event", name_of(event)), f'msg="{escape(sentence(event))}"']
    parts.extend(field(name, value) for name, value in fields(event))
    if traceback := traceback_of(event):
        parts.append(field("traceback", traceback, 8 * LONGEST_VALUE))
    return " ".join(parts) + "\n"


def _json(value: object, longest: int = LONGEST_VALUE) -> str:
    if value is True or value is False or type(value) is int:
        return text_of(value)
    if type(value) is float and value == value and abs(value) != float("inf"):
        return text_of(value)
    text = text_of(value)
    quoted = encode_basestring_ascii(text[:longest])
    if len(text) <= longest and len(quoted) <= longest + 2:
        return quoted
    while len(quoted) > longest + 2:  # an escaped character takes up to twelve
        text = text[: len(text[:longest]) * longest // len(quoted)]
        quoted = encode_basestring_ascii(text)
    return quoted[:-1] + '..."'


def terminal_format(*, colours: bool) -> Format:
    """Return a function that formats events for a terminal, with or without colours."""
    dim, reset = (_DIM, _RESET) if colours else ("", "")

    def format_event(event: LogEvent) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(event.get("log_time", 0.0)))
        number = severity(event)
        colour = _LEVEL_COLOURS[number] if colours else ""
        found = dict(fields(event))
        short = " ".join(field(name, value) for name, value in found.items() if name not in _OWN_LINE)
        name = escape(name_of(event))
        text = escape(sentence(event))
        line = f"{dim}{when}{reset} {colour}{NAMES[number]:<5}{reset} {text:<{_WIDTH}}"
        line += f"  {short}" if short else ""
        lines = [f"{line}  {dim}[{name}]{reset}"]
        lines += [
            f"{_INDENT}{dim}{f'{name}:':<6}{reset} {escape(text_of(found[name]))}"
            for name in _OWN_LINE
            if name in found
        ]
        traceback = traceback_of(event)[: 8 * LONGEST_VALUE]
        lines += [f"{_INDENT}{escape(part)}" for part in traceback.splitlines()]
        return "\n".join(lines) + "\n"

    return format_event


class Stream(Enum):
    JOURNAL = "journal"
    TERMINAL = "terminal"
    OTHER = "other"


def stream_of(fd: int, environ: Mapping[str, str]) -> Stream:
    """Return the kind of stream of a descriptor.

    systemd sets JOURNAL_STREAM to the device and inode number of the journal's socket (systemd.exec(5)). A comparison
    with the descriptor's shows whether it is still that socket or was redirected.
    """
    try:
        found = os.fstat(fd)
    except OSError:
        return Stream.OTHER
    if environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}":
        return Stream.JOURNAL
    return Stream.TERMINAL if os.isatty(fd) else Stream.OTHER


def format_for(stream: Stream, form: str, environ: Mapping[str, str]) -> Format:
    """Return the format of log lines. `form` is `logging.format`: text or json.

    Only terminals get colours, unless NO_COLOR is set (no-color.org) or TERM is "dumb".
    """
    if form == "json":
        return format_journal_json if stream is Stream.JOURNAL else format_json
    if stream is Stream.JOURNAL:
        return format_journal
    if stream is Stream.TERMINAL:
        return terminal_format(colours=not environ.get("NO_COLOR") and environ.get("TERM") != "dumb")
    return format_text
