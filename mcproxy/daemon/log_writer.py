"""Writes the lines of the daemon's log from a thread, so that the reader of standard error cannot block the reactor.

A pipe that nobody reads takes 64 KiB; a write to it then blocks for ever. Here lines go to a bounded queue. If it is
full they are dropped, and one line says how many once the reader continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mcproxy.observe.writer import write_all

MAX_QUEUED = 1024 * 1024
"""Limit of the queue (bytes)."""
PIECE = 4096
"""Lines are written together up to this size (bytes): PIPE_BUF, so that a pipe takes them whole."""


class LogWriter:
    """The queue and the thread of one descriptor, which stays open.

    `dropped_line` returns the line (with its line end) that reports a number of dropped lines.
    """

    def __init__(self, fd: int, dropped_line: Callable[[int], str], *, max_queued: int = MAX_QUEUED) -> None:
        self._fd = fd
        self._dropped_line = dropped_line
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._queued = 0  # bytes, those that the thread is writing included
        self._dropped = 0
        threading.Thread(target=self._work, name="log", daemon=True).start()

    def write(self, line: str) -> None:
        """Queue a line with its line end. Never blocks; may be called from any thread."""
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._queued + len(data) > self._max_queued:
                self._dropped += 1
                return
            self._lines.append(data)
            self._queued += len(data)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until all lines are written; return whether they are."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._queued:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return not self._queued
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                lines, self._lines = self._lines, []
            lost = self._write(lines)
            with self._changed:
                self._queued -= sum(map(len, lines))
                self._dropped += lost
                dropped = self._dropped
                if dropped and not lost:  # the reader has taken all that was queued before these
                    self._dropped = 0
                    report = self._dropped_line(dropped).encode("utf-8", "backslashreplace")
                    self._lines.insert(0, report)
                    self._queued += len(report)
                self._changed.notify_all()

    def _write(self, lines: list[bytes]) -> int:
        """Write the lines; return how many could not be written. A log that fails must not end the daemon."""
        lost = start = 0
        while start < len(lines):
            end, size = start + 1, len(lines[start])
            while end < len(lines) and size + len(lines[end]) <= PIECE:
                size += len(lines[end])
                end += 1
            try:
                write_all(self._fd, b"".join(lines[start:end]))
            except OSError:
                lost += end - start
            start = end
        return lost
