"""Writes batches of log lines to a file from its own thread, so that a stalled disk never blocks the reactor.

The thread owns the file. The reactor passes whole batches and reads counters; each counter has one writer, so there is
no lock.

Several processes may write to one file: workers, and two daemons while one takes over from the other. Their batches do
not mix: Linux appends one write to a file (O_APPEND) as a whole, and so do unix sockets (the journal's) up to 32 KiB.
A pipe takes only 4 KiB at once (PIPE_BUF), so writers to a pipe lock it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import select
import stat
import threading
import time
from dataclasses import dataclass

_LOCK_AGAIN = 0.005
"""Seconds until a lock that looked like a deadlock is asked for again."""


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
        self._commands: queue.SimpleQueue[_Batch | _Reopen | _Close] = queue.SimpleQueue()
        self.bytes_done = 0
        """Bytes of all batches that were processed, written or lost."""
        self.lines_lost = 0
        """Lines that could not be written."""
        self.error = ""
        """The last error."""
        self._thread = threading.Thread(target=self._work, name=f"log {path}", daemon=True)
        self._thread.start()

    def write(self, data: bytes, lines: int) -> None:
        """Write a batch; returns at once."""
        self._commands.put(_Batch(data, lines))

    def reopen(self) -> None:
        """Reopen the file by its name, after all batches before are written (log rotation)."""
        self._commands.put(_Reopen())

    def close(self) -> None:
        """Close the file, after all batches before are written; returns at once."""
        self._commands.put(_Close())

    def wait_closed(self, timeout: float) -> bool:
        """After `close`: wait at most `timeout` seconds, and return whether the file is closed."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            command = self._commands.get()
            if isinstance(command, _Batch):
                self._write(command)
            elif isinstance(command, _Reopen):
                self._reopen()
            else:
                _close(self._fd)
                return

    def _write(self, batch: _Batch) -> None:
        try:
            write_all(self._fd, batch.data)
        except OSError as error:
            self.error = f"{self.path}: {error.strerror}"
            self.lines_lost += batch.lines
        self.bytes_done += len(batch.data)

    def _reopen(self) -> None:
        try:
            fd = _open(self.path)
        except OSError as error:  # keep the open file: a log under a rotated name is better than none
            self.error = f"{self.path}: {error.strerror}"
            return
        _close(self._fd)
        self._fd = fd


def write_all(fd: int, data: bytes) -> None:
    """Write everything, however long that blocks, to a descriptor that may be non-blocking. Raises OSError.

    Other processes that write to the same file with this function do not write in between.
    """
    if not stat.S_ISFIFO(os.fstat(fd).st_mode) or not _lock(fd):
        _write_all(fd, data)
        return
    try:
        _write_all(fd, data)
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


def _lock(fd: int) -> bool:
    """Wait for the lock of a file, which ends with the process that has it (fcntl(2)); return whether it was had."""
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
        except OSError as error:
            # Linux counts waiting by process: two that write to two pipes with a thread for each look like a deadlock.
            if error.errno != errno.EDEADLK:
                return False
            time.sleep(_LOCK_AGAIN)
        else:
            return True


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # the descriptor is shared with a process that made it so
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def _open(path: str) -> int:
    """Open for appending; a new file is readable for owner and group only, since it names users and objects.

    With O_NONBLOCK opening a FIFO without a reader is an error instead of a hang; writing blocks, in the thread.
    """
    if path == "-":
        return 1
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    os.set_blocking(fd, True)
    return fd


def _close(fd: int) -> None:
    if fd != 1:
        os.close(fd)
