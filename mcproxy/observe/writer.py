"""Writes batches of log lines to a file in a thread, so that a stalled disk never blocks the reactor.

The thread owns the file. The reactor passes whole batches and reads counters; each counter has one writer, so there is
no lock.

Several processes may write to one file: workers, and two daemons while one takes over from the other. Their batches do
not mix: Linux appends one write to a file (O_APPEND) as a whole, and so do unix sockets (the journal's) up to 32 KiB.
A pipe takes only 4 KiB at once (PIPE_BUF), so writers to a pipe lock it.

A full disk, a quota or a crash cuts a line short. The next write begins on a new line: before a batch the last byte of
a regular file is read, under a lock that all processes writing to it take (flock(2)). The only writer of a file does so
only after the file was opened and after an error: each call releases the interpreter lock to the reactor's thread, and
taking it back costs both of them.
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
"""Seconds until the next attempt to lock after EDEADLK, or while another process has the lock."""
_LOCK_PATIENCE = 40
"""Attempts to get a lock that another process has."""
RETRY_AFTER = 0.5
"""Seconds until a failed write is repeated."""


@dataclass(frozen=True, slots=True)
class _Batch:
    data: bytes
    lines: int


class _Reopen:
    pass


class _Close:
    pass


Source = Callable[[], Iterable[tuple[bytes, int]]]
"""Yields batches: whole lines, and their number."""


class FileWriter:
    """An append-only log file and its thread.

    `path` is a file name, ``-`` for standard output, or a descriptor, which stays open. With `keep` a batch that cannot
    be written is kept and tried again, so that nothing is lost if a full disk has space again before the owner's queue
    is full; else it is lost, and counted. `alone`: no other process writes to the file. Raises OSError when the file
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
        """Bytes of all batches that were processed, written or lost."""
        self.lines_done = 0
        """Lines that were written."""
        self.lines_lost = 0
        """Lines that could not be written."""
        self.error = ""
        """The last error; "" again once a batch was written."""
        self.reopen_error = ""
        """Why the last `reopen` failed; "" if it succeeded."""
        self._reopens_asked = 0  # counted by the reactor
        self._reopens_done = 0  # counted by the thread
        self._thread = threading.Thread(target=self._work, name=f"log {path}", daemon=True)
        self._thread.start()

    def write(self, data: bytes, lines: int) -> None:
        """Write a batch; returns at once."""
        self._commands.put(_Batch(data, lines))

    def write_from(self, source: Source) -> None:
        """Write, in the thread, the batches that `source` yields, after all earlier ones; returns at once."""
        self._commands.put(source)

    def reopen(self) -> None:
        """Reopen the file by its name (log rotation), after all earlier batches were tried."""
        self._reopens_asked += 1
        self._commands.put(_Reopen())

    @property
    def reopening(self) -> bool:
        """Whether a `reopen` has not been tried yet."""
        return self._reopens_done < self._reopens_asked

    def close(self) -> None:
        """Close the file, after all earlier batches were tried; returns at once."""
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
            if len(self._kept) == 1:  # else earlier ones are tried first, at their time
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
        """Write the kept batches, up to the first that cannot be written."""
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
        except OSError as error:  # keep the open file: a log under a rotated name is better than none
            self.reopen_error = f"{self.path}: {error.strerror}"
            return
        self.reopen_error = ""
        self._file.close()
        self._file = file


class _File:
    """An open log file."""

    __slots__ = ("_alone", "_fd", "_owned", "_regular", "_whole")

    def __init__(self, path: str | int, alone: bool) -> None:
        """Open for appending; a new file is readable for owner and group only, since it names users and objects.

        With O_NONBLOCK opening a FIFO without a reader is an error instead of a hang; writing blocks, in the thread.
        Raises OSError.
        """
        self._alone = alone
        self._whole = False  # the file is known to end with a whole line
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
            self._fd = os.open(path, flags | os.O_WRONLY, 0o640)  # a file that may be appended to, but not read
        os.set_blocking(self._fd, True)
        self._regular = regular and stat.S_ISREG(os.fstat(self._fd).st_mode)

    def append(self, data: bytes) -> tuple[int, OSError | None]:
        """Append `data`, beginning on a new line; return the number of bytes written, and the error if some
        were not.
        """
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
        """End a line that was cut short. Raises OSError."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def _write(self, data: memoryview) -> tuple[int, OSError | None]:
        written = 0
        try:
            while written < len(data):  # after a short write, the next one fails and gives the reason
                written += os.write(self._fd, data[written:])
        except OSError as error:
            return written, error
        return written, None

    def close(self) -> None:
        if self._owned:
            os.close(self._fd)


def _flock(fd: int) -> bool:
    """Lock a regular file against other writers; return whether the lock was taken in time.

    Any process that may read the file can hold its lock: without the lock, only the line after one cut short is at
    risk.
    """
    for _ in range(_LOCK_PATIENCE):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                return False  # a file system without locks
            time.sleep(_LOCK_AGAIN)
        else:
            return True
    return False


def write_all(fd: int, data: bytes) -> None:
    """Write everything, blocking, to a descriptor that may be non-blocking.

    Raises OSError. Writes to the same file by other processes with this function do not come in between.
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
            # Linux detects deadlocks by process: two processes that write to two pipes, with a thread for each, look
            # like one.
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
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
