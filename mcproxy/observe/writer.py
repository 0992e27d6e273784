"""Writes batches of log lines to a file from a thread of its own, so that a stalled disk never stops the reactor.

The thread owns the file. The reactor hands it whole batches and reads its counters; each counter has one writer, and a
number is replaced whole, so there is no lock.
"""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Batch:
    data: bytes
    lines: int


class _Reopen:
    pass


class _Close:
    pass


class FileWriter:
    """An append-only log file and its thread.

    `path` is a file name, or ``-`` for standard output. Raises OSError when the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = _open(path)
        self._orders: queue.SimpleQueue[_Batch | _Reopen | _Close] = queue.SimpleQueue()
        self.bytes_done = 0
        """Bytes of all batches that are dealt with, written or lost."""
        self.lines_lost = 0
        """Lines that could not be written."""
        self.error = ""
        """Why, the last time."""
        self._thread = threading.Thread(target=self._work, name=f"log {path}", daemon=True)
        self._thread.start()

    def write(self, data: bytes, lines: int) -> None:
        """Have a batch written; returns at once."""
        self._orders.put(_Batch(data, lines))

    def reopen(self) -> None:
        """Have the file opened anew under its name, after what has been handed over is written (log rotation)."""
        self._orders.put(_Reopen())

    def close(self) -> None:
        """Have what is left written and the file closed; returns at once."""
        self._orders.put(_Close())

    def wait_closed(self, timeout: float) -> bool:
        """After `close`: wait at most `timeout` seconds for it, and tell whether it is done."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            if isinstance(order, _Batch):
                self._write(order)
            elif isinstance(order, _Reopen):
                self._reopen()
            else:
                _close(self._fd)
                return

    def _write(self, batch: _Batch) -> None:
        rest = memoryview(batch.data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.error = f"{self.path}: {error.strerror}"
            self.lines_lost += batch.lines
        self.bytes_done += len(batch.data)

    def _reopen(self) -> None:
        try:
            fd = _open(self.path)
        except OSError as error:  # go on with the file that is open: better a rotated name than no log
            self.error = f"{self.path}: {error.strerror}"
            return
        _close(self._fd)
        self._fd = fd


def _open(path: str) -> int:
    """Open for appending; a new file is readable for owner and group only, since it names users and objects.

    O_NONBLOCK makes opening a FIFO that nobody reads an error instead of a hang; writing blocks, in the thread.
    """
    if path == "-":
        return 1
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    os.set_blocking(fd, True)
    return fd


def _close(fd: int) -> None:
    if fd != 1:
        os.close(fd)
