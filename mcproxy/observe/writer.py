"""Writes batches of log lines to a file in a thread, so that a stalled disk never blocks the reactor.

The thread owns the file. The reactor passes whole batches and reads counters. Each counter has one writer, so no lock
is needed.

Several processes can write to one file: workers, and two daemons during an upgrade. Their batches do not mix, because
Linux appends one write to a file (O_APPEND) as a whole, and one write to a unix socket (the journal's) up to 32 KiB. A
pipe accepts only 4 KiB at once (PIPE_BUF), so writers to a pipe lock it.

A full disk, a quota or a crash can cut a line short, but the next write must begin on a new line. So before a batch the
last byte of a regular file is read, under a lock that all its writers take (flock(2)). A file's only writer does this
only after opening the file and after an error: each call releases the interpreter lock to the reactor's thread, and
regaining it costs time in both threads.
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
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_LOCK_AGAIN = 0.005
"""Seconds between two attempts to lock after EDEADLK, or while another process has the lock."""
_LOCK_PATIENCE = 40
"""Number of attempts to get a lock that another process has."""
RETRY_AFTER = 0.5
"""Seconds after which a failed write is repeated."""


@dataclass(frozen=True, slots=True)
class _Batch:
    data: bytes
    lines: int


class _Reopen:
    pass


class _Close:
    pass


Source = Callable[[], Iterable[tuple[bytes, int]]]
"""Yields batches of whole lines, with their number."""


class FileWriter:
    """An append-only log file and its thread.

    `path` is a file name, ``-`` for standard output, or a descriptor, which stays open. With `keep`, a failed batch is
    kept and written again. So nothing is lost if a full disk has space again before the owner's queue is full. Without
    `keep`, a failed batch is lost and counted. `alone`: no other process writes to the file. Raises OSError if the file
    cannot be opened.
    """

    def __init__(self, path: str | int, *, keep: bool = False, alone: bool = False) -> None:
        self.path = path
        self._keep = keep
        self._alone = alone
        self._file = _File(path, alone)
        self._commands: queue.SimpleQueue[_Batch | _Reopen | _Close | Source] = queue.SimpleQueue()
        self._kept: deque[_Batch] = deque()  # in the order of their arrival
        self._closing = False
        self.bytes_done = 0
        """Bytes of all processed batches, written or lost."""
        self.lines_done = 0
        """Number of written lines."""
        self.lines_lost = 0
        """Number of lines that could not be written."""
        self.error = ""
        """The last error; "" after a batch was written."""
        self.reopen_error = ""
        """The reason why the last `reopen` failed; "" if it succeeded."""
        self._reopens_asked = 0  # counted by the reactor
        self._reopens_done = 0  # counted by the thread
        self._thread = threading.Thread(target=self._work, name=f"log {path}", daemon=True)
        self._thread.start()

    def write(self, data: bytes, lines: int) -> None:
        """Write a batch; returns at once."""
        self._commands.put(_Batch(data, lines))

    def write_from(self, source: Source) -> None:
        """Have the thread write the batches that `source` yields, after all earlier ones; returns at once."""
        self._commands.put(source)

    def reopen(self) -> None:
        """Reopen the file by its name (log rotation), after an attempt to write all earlier batches."""
        self._reopens_asked += 1
        self._commands.put(_Reopen())

    @property
    def reopening(self) -> bool:
        """Whether a `reopen` is pending."""
        return self._reopens_done < self._reopens_asked

    def close(self) -> None:
        """Close the file, after an attempt to write all earlier batches; returns at once."""
        self._commands.put(_Close())

    def wait_closed(self, timeout: float) -> bool:
        """After `close`: wait at most `timeout` seconds, and return whether the file is closed."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while not self._closing:
            self._take(self._commands.get())
            while self._kept and not self._closing:
                try:
                    self._take(self._commands.get(timeout=RETRY_AFTER))
                except queue.Empty:
                    self._write_kept()
        for batch in self._kept:
            self._lost(batch)
        self._file.close()

    def _take(self, command: _Batch | _Reopen | _Close | Source) -> None:
        if isinstance(command, _Batch):
            self._kept.append(command)
            if len(self._kept) == 1:  # else a retry of earlier batches is scheduled
                self._write_kept()
        elif isinstance(command, _Reopen):
            self._reopen()
            self._reopens_done += 1
            self._write_kept()
        elif isinstance(command, _Close):
            self._write_kept()
            self._closing = True
        else:
            for data, lines in command():
                self._take(_Batch(data, lines))

    def _write_kept(self) -> None:
        """Write the kept batches until a write fails."""
        kept = self._kept
        while kept:
            batch = kept[0]
            written, problem = self._file.append(batch.data)
            if problem is None:
                self.error = ""
            else:
                self.error = f"{self.path}: {problem.strerror}"
            whole = written if problem is None else batch.data.rfind(b"\n", 0, written) + 1
            lines = batch.lines if problem is None else batch.data.count(b"\n", 0, whole)
            self.lines_done += lines
            self.bytes_done += whole
            rest = _Batch(batch.data[whole:], batch.lines - lines)
            kept.popleft()
            if problem is None:
                continue
            if self._keep:
                kept.appendleft(rest)
                return
            self._lost(rest)

    def _lost(self, batch: _Batch) -> None:
        self.lines_lost += batch.lines
        self.bytes_done += len(batch.data)

    def _reopen(self) -> None:
        try:
            file = _File(self.path, self._alone)
        except OSError as error:  # keep the open file, since a log with a rotated name is better than none
            self.reopen_error = f"{self.path}: {error.strerror}"
            return
        self.reopen_error = ""
        self._file.close()
        self._file = file


class _File:
    """An open log file."""

    __slots__ = ("_alone", "_fd", "_owned", "_regular", "_whole")

    def __init__(self, path: str | int, alone: bool) -> None:
        """Open for appending. Only owner and group can read a new file, because it names users and objects.

        With O_NONBLOCK, opening a FIFO without a reader fails instead of blocking. Writes block, in the thread.
        Raises OSError.
        """
        self._alone = alone
        self._whole = False  # whether the file certainly ends with a whole line
        if isinstance(path, int) or path == "-":
            self._fd = path if isinstance(path, int) else 1
            self._regular = self._owned = False
            return
        self._owned = True
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            regular = stat.S_ISREG(os.stat(path).st_mode)
        except FileNotFoundError:
            regular = True
        try:
            self._fd = os.open(path, flags | (os.O_RDWR if regular else os.O_WRONLY), 0o640)
        except PermissionError:
            regular = False
            self._fd = os.open(path, flags | os.O_WRONLY, 0o640)  # a file with permission to append, but not to read
        os.set_blocking(self._fd, True)
        self._regular = regular and stat.S_ISREG(os.fstat(self._fd).st_mode)

    def append(self, data: bytes) -> tuple[int, OSError | None]:
        """Append `data`, beginning on a new line.

        Return the number of written bytes, and the error if it is too small."""
        if not self._regular:
            try:
                write_all(self._fd, data)
            except OSError as error:
                return 0, error
            return len(data), None
        if self._alone and self._whole:
            written, problem = self._write(memoryview(data))
            self._whole = problem is None
            return written, problem
        locked = _flock(self._fd)
        try:
            self._end_line()
            written, problem = self._write(memoryview(data))
            self._whole = problem is None
            return written, problem
        except OSError as error:
            return 0, error
        finally:
            if locked:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _end_line(self) -> None:
        """If the last line was cut short, end it. Raises OSError."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def _write(self, data: memoryview) -> tuple[int, OSError | None]:
        written = 0
        try:
            while written < len(data):  # after a short write, the next write fails with the reason
                written += os.write(self._fd, data[written:])
        except OSError as error:
            return written, error
        return written, None

    def close(self) -> None:
        if self._owned:
            os.close(self._fd)


def _flock(fd: int) -> bool:
    """Lock a regular file against other writers; return whether that succeeded in time.

    Any process that can read the file can hold its lock. Without the lock, only a line after a cut line can be
    damaged.
    """
    for _ in range(_LOCK_PATIENCE):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                return False  # the file system has no locks
            time.sleep(_LOCK_AGAIN)
        else:
            return True
    return False


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, blocking, also to a non-blocking descriptor. Raises OSError.

    Writes of other processes with this function do not interleave.
    """
    if not stat.S_ISFIFO(os.fstat(fd).st_mode) or not _lock(fd):
        _write_all(fd, data)
        return
    try:
        _write_all(fd, data)
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN)


def _lock(fd: int) -> bool:
    """Wait for the lock of a file, which the holder's exit releases (fcntl(2)); return whether it was taken."""
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
        except OSError as error:
            # Linux detects deadlocks per process, so two processes that each write to two pipes in two threads can
            # seem to be in a deadlock.
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
        except BlockingIOError:  # another process that shares the descriptor made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
