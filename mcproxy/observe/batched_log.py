"""A log whose lines a thread writes in batches.

    add -> [lines] --64--> [bytes] --50 ms or 1024 lines--> FileWriter (queue, thread) -> file

Lines are joined while the processor still has them in its caches.

If the file stalls, a limited number of bytes is queued. Further lines are dropped, counted and reported, because a
proxy that waits for its log would be worse.
"""

from __future__ import annotations

import time
from abc import ABCMeta, abstractmethod
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.observe.writer import FileWriter

FLUSH_AFTER: Final = 0.05
"""Longest time that a line waits before it is passed to the writer (seconds)."""
FLUSH_COUNT: Final = 1024
"""Lines per batch. Waking the thread for a batch costs as much as 20 lines."""
_JOINED: Final = 64  # lines
REPORT_EVERY = 10.0
"""Interval of the reports of lost lines (seconds)."""
POLL_AFTER = 1.0
"""Seconds between two checks of the writer's results."""


class BatchedLog(metaclass=ABCMeta):
    """One open log file."""

    def __init__(self, clock: IReactorTime, writer: FileWriter, longest_backlog: int) -> None:
        """`longest_backlog` is the limit of the queue (bytes)."""
        self._clock = clock
        self._writer = writer
        self._longest_backlog = longest_backlog
        self._lines: list[str] = []
        self._joined: list[bytes] = []  # earlier lines
        self._count = 0  # of both
        self._bytes_passed = 0
        self._timer: IDelayedCall | None = None  # for passing lines to the writer
        self._poll_timer: IDelayedCall | None = None  # for checking the writer's results
        self._dropped = 0
        self._reported = 0
        self._reported_error = ""
        self._reported_reopen_error = ""
        self._next_report = 0.0
        self.is_open = True

    @abstractmethod
    def next_log(self) -> BatchedLog | None:
        """Return the log that takes over after `close`, for requests that began before a reload."""

    @abstractmethod
    def report_lost(self, lines: int, cause: str) -> None:
        """Log that lines were lost."""

    @abstractmethod
    def report_error(self, cause: str) -> None:
        """Log that the file cannot be written or, for "", can be written again. Kept lines are not lost yet."""

    @abstractmethod
    def report_not_reopened(self, cause: str) -> None:
        """Log that the file could not be reopened, so that the former one stays in use."""

    @abstractmethod
    def report_late(self) -> None:
        """Log that not all lines were written within the time limit at the end of the process."""

    @property
    def lost(self) -> int:
        """Number of lines lost since the start, by a full queue or write errors."""
        return self._dropped + self._writer.lines_lost

    @property
    def written(self) -> int:
        """Number of lines written since the start."""
        return self._writer.lines_done

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the file."""
        return self._bytes_passed - self._writer.bytes_done

    def add(self, line: str) -> None:
        """Write a line (ASCII, with its end). Never blocks and never raises."""
        if not self.is_open:
            successor = self.next_log()
            if successor is not None:
                successor.add(line)
            return
        lines = self._lines
        lines.append(line)
        if len(lines) >= _JOINED:
            self._join()
            if self._count >= FLUSH_COUNT:
                self._pass_on()
        if self._timer is None:
            self._timer = self._clock.callLater(FLUSH_AFTER, self._tick)

    def reopen(self) -> None:
        """Reopen the file by its name, after all previous lines are written to the old file."""
        self._pass_on()
        self._writer.reopen()
        if self._poll_timer is None:
            self._poll_timer = self._clock.callLater(POLL_AFTER, self._poll_writer)

    @property
    def reopening(self) -> bool:
        """Whether a reopening of the file is pending."""
        return self.is_open and self._writer.reopening

    def close(self) -> None:
        """Have the thread write the queued lines and close the file; returns at once. A second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        for timer in (self._timer, self._poll_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._poll_timer = None
        self._pass_on()
        self._writer.close()

    def wait_closed(self, timeout: float) -> bool:
        """After `close`: wait at most `timeout` seconds, report lost lines; return whether all lines are written."""
        done = self._writer.wait_closed(timeout)
        self._report()
        return done

    def _tick(self) -> None:
        self._timer = None
        self._pass_on()
        if self._poll_timer is None:  # a separate timer, so that new lines are not delayed
            self._poll_writer()

    def _poll_writer(self) -> None:
        self._poll_timer = None
        wait = self._next_report - self._clock.seconds()
        if wait <= 0:
            self._report()
        if self.lost > self._reported:
            self._poll_timer = self._clock.callLater(max(wait, FLUSH_AFTER), self._poll_writer)
        elif self.queued_bytes or self._reported_error:
            self._poll_timer = self._clock.callLater(POLL_AFTER, self._poll_writer)

    def _join(self) -> None:
        self._joined.append("".join(self._lines).encode("ascii"))
        self._count += len(self._lines)
        self._lines.clear()

    def _pass_on(self) -> None:
        self._join()
        joined, count = self._joined, self._count
        self._joined, self._count = [], 0
        if not count:
            return
        if self.queued_bytes > self._longest_backlog:
            self._dropped += count
            return
        data = b"".join(joined)
        self._bytes_passed += len(data)
        self._writer.write(data, count)

    def _report(self) -> None:
        writer = self._writer
        lost, error, reopen_error = self.lost - self._reported, writer.error, writer.reopen_error
        if lost:
            self._reported += lost
            self._next_report = self._clock.seconds() + REPORT_EVERY
            self.report_lost(lost, error or "the file stalls")
        elif error != self._reported_error:
            self.report_error(error)
        self._reported_error = error
        if reopen_error != self._reported_reopen_error:
            self._reported_reopen_error = reopen_error
            if reopen_error:
                self.report_not_reopened(reopen_error)


class OpenLogs:
    """The open logs of one kind, for SIGUSR1 (reopen), the metrics and the end of the process."""

    def __init__(self, close_timeout: float) -> None:
        """`close_timeout` is the limit of the time to write the queues at the end of the process (seconds)."""
        self._close_timeout = close_timeout
        self._logs: list[BatchedLog] = []
        self._lost_before = self._written_before = 0

    def opened(self, log: BatchedLog) -> None:
        """Note that a log was opened, and drop logs that are closed."""
        for each in list(self._logs):
            if not each.is_open and each.wait_closed(0):
                self._logs.remove(each)
                self._lost_before += each.lost
                self._written_before += each.written
        self._logs.append(log)

    def newest(self) -> BatchedLog | None:
        """Return the newest open log."""
        return next((each for each in reversed(self._logs) if each.is_open), None)

    @property
    def lost(self) -> int:
        """Number of lines lost since the start of the process."""
        return self._lost_before + sum(log.lost for log in self._logs)

    @property
    def written(self) -> int:
        """Number of lines written since the start of the process."""
        return self._written_before + sum(log.written for log in self._logs)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for files."""
        return sum(log.queued_bytes for log in self._logs)

    def reopen(self) -> None:
        """Reopen every file (log rotation)."""
        for log in self._logs:
            if log.is_open:
                log.reopen()

    @property
    def reopening(self) -> bool:
        """Whether a reopening of one of the files is pending."""
        return any(log.reopening for log in self._logs)

    def close(self, timeout: float | None = None) -> None:
        """At the end of the process, close all logs, and wait at most `timeout` seconds for their files."""
        for log in self._logs:
            log.close()
        deadline = time.monotonic() + (self._close_timeout if timeout is None else timeout)
        late = [log for log in self._logs if not log.wait_closed(max(0.0, deadline - time.monotonic()))]
        self._logs = []
        for log in late:
            log.report_late()
