"""The form of the daemon's log on a terminal, for a run in the foreground. Pure, except for the time zone.

    11:42:00 warn  an endpoint is out  cluster=east endpoint=a  [endpoint_out]
                   cause: the connection was refused
                   todo:  see whether the API server runs

Names, fields and escaping are those of the other forms (`line_formats`); long values get separate lines.
"""

from __future__ import annotations

import time

from twisted.logger import LogEvent

from mcproxy.daemon.log.line_formats import (
    LONGEST_VALUE,
    NAMES,
    Format,
    escape,
    field,
    fields,
    name_of,
    sentence,
    severity,
    text_of,
    traceback_of,
)

_INDENT = " " * 15
_WIDTH = 40
"""The least width of a sentence in columns, so that the fields of short ones are aligned."""
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_LEVEL_COLOURS = (_DIM, "\x1b[32m", "\x1b[33m", "\x1b[1;31m")
_OWN_LINE = ("cause", "todo")


def terminal_format(*, colours: bool) -> Format:
    """Return a function that formats events, with colours or without."""
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
