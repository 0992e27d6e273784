"""Shows, after one second, what a command waits for, if standard error is a terminal.

A command writes results to standard output and errors to standard error. Progress is neither, so it is shown only on a
terminal that can move its cursor, and is erased before the next line is written.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

DELAY = 1.0
"""Seconds before the first line; shorter waits show nothing."""
_INTERVAL = 1.0
_ERASE = "\r\x1b[K"
_COLUMNS = 80


class Progress:
    """A line with the reason and the duration of a wait; `say` changes the reason."""

    def __init__(self, what: str, stream: TextIO | None) -> None:
        """`stream` is a terminal, or None to write nothing."""
        self._what = what
        self._stream = stream
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._shown = False
        self._thread = threading.Thread(target=self._show, daemon=True) if stream is not None else None

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def say(self, what: str) -> None:
        """Change the text; it is shown from the next second on."""
        self._what = what

    def stop(self) -> None:
        """Erase the line. Nothing is written afterwards."""
        self._over.set()
        if self._thread is None or self._stream is None:
            return
        with self._lock:
            if self._shown:
                self._write(_ERASE)
        self._thread.join()

    def _show(self) -> None:
        delay = DELAY
        while not self._over.wait(delay):
            delay = _INTERVAL
            seconds = time.monotonic() - self._begun
            line = f"{self._what} ({seconds:.0f} s)"
            with self._lock:
                if not self._over.is_set():
                    self._shown = True
                    self._write(_ERASE + line[: _columns(self._stream) - 1])

    def _write(self, text: str) -> None:
        assert self._stream is not None
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, but the command continues
            self._stream.write(text)
            self._stream.flush()


@contextlib.contextmanager
def progress(what: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show `what` when the block takes more than a second, if `stream` (default: standard error) is a terminal.

    `what` is a clause without an end: "waiting for the daemon to reload".
    """
    shown = Progress(what, _terminal(sys.stderr if stream is None else stream))
    shown.start()
    try:
        yield shown
    finally:
        shown.stop()


def _terminal(stream: TextIO) -> TextIO | None:
    try:
        movable = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # the stream is closed
        return None
    return stream if movable else None


def _columns(stream: TextIO | None) -> int:
    try:
        return os.get_terminal_size(stream.fileno() if stream is not None else 2).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS
