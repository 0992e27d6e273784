"""Writes the lines of the daemon's log from a thread, so that the reader of standard error cannot block the reactor.

A pipe that is not read takes 64 KiB; then a write to it blocks for ever. Here lines go to a bounded queue. If it is
full they are dropped, and one line reports their number once the reader continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

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
        self._lines: list[bytes | None] = []  # None: here lines were dropped
        self._queued = 0  # bytes, those that the thread is writing included
        self._writing = False
        self._dropped = 0
        threading.Thread(target=self._work, name="log", daemon=True).start()

    def write(self, line: str) -> None:
        """Queue a line with its line end. Never blocks; may be called from any thread."""
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._queued + len(data) <= self._max_queued:
                self._lines.append(data)
                self._queued += len(data)
            else:
                self._dropped += 1
                self._report_dropped()
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until all lines are written; return whether they are."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._lines or self._writing:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def _report_dropped(self) -> None:
        """Mark the end of the queue as the place of the report, unless it is marked. Needs the lock."""
        if not self._lines or self._lines[-1] is not None:
            self._lines.append(None)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                lines, self._lines = self._lines, []
                self._writing = True
            lost = self._write(lines)
            with self._changed:
                self._queued -= sum(len(line) for line in lines if line is not None)
                self._dropped += lost
                if self._dropped and not lost:  # lines of a failed write are reported after one that did not fail
                    self._report_dropped()
                self._writing = False
                self._changed.notify_all()

    def _write(self, lines: Sequence[bytes | None]) -> int:
        """Write the lines, several at a time; return how many could not be written, dropped ones included."""
        lost = count = size = 0
        piece: list[bytes] = []
        for line in lines:
            data, represented = self._report() if line is None else (line, 1)
            if size + len(data) > PIECE:
                lost += self._write_piece(piece, count)
                piece, count, size = [], 0, 0
            piece.append(data)
            count += represented
            size += len(data)
        return lost + self._write_piece(piece, count)

    def _write_piece(self, lines: Sequence[bytes], count: int) -> int:
        """Return `count` if they could not be written, else 0: a log that fails must not end the daemon."""
        try:
            write_all(self._fd, b"".join(lines))
        except OSError:
            return count
        return 0

    def _report(self) -> tuple[bytes, int]:
        """Return the line that reports the lines dropped until now, and their number, and reset the count."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        return (self._dropped_line(dropped).encode("utf-8", "backslashreplace") if dropped else b""), dropped
