"""The kind of standard error (the journal, a terminal or another file), and the form of log lines there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from mcproxy.daemon.log.line_formats import Format, format_journal, format_journal_json, format_json, format_text


class Stream(Enum):
    JOURNAL = "journal"
    TERMINAL = "terminal"
    OTHER = "other"


def stream_of(fd: int, environ: Mapping[str, str]) -> Stream:
    """Return what a descriptor is.

    systemd gives the device and inode number of the journal's socket in JOURNAL_STREAM (systemd.exec(5)). Comparing
    them tells whether the descriptor still is that socket, and was not redirected since.
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

    Colours are for terminals alone, and not if NO_COLOR is set (no-color.org) or TERM is "dumb".
    """
    if form == "json":
        return format_journal_json if stream is Stream.JOURNAL else format_json
    if stream is Stream.JOURNAL:
        return format_journal
    if stream is Stream.TERMINAL:
        from mcproxy.daemon.log.terminal_format import terminal_format

        return terminal_format(colours=not environ.get("NO_COLOR") and environ.get("TERM") != "dumb")
    return format_text
