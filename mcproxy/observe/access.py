"""The access log: one line per request, formatted on the reactor and written in batches by a thread.

Records are formatted and passed to the thread every 100 ms, or 64 at a time: formatting 64 in a row costs less than one
between requests, when the processor's caches hold something else. If the file stalls, up to 8 MiB are queued; further
lines are dropped, counted and reported, because a proxy that stops for its log would be worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.observe.format import FORMATTERS
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.writer import FileWriter

log = Logger()

FLUSH_AFTER = 0.1
"""Longest time that a record waits before its line is passed to the writer (seconds)."""
FLUSH_COUNT = 64
"""Records that are formatted at once; takes about 0.3 ms."""
LONGEST_BACKLOG = 8 * 1024 * 1024
"""Limit of the queue for the file (bytes)."""
REPORT_EVERY = 10.0
"""Interval of the reports of lost lines (seconds)."""


class AccessLog:
    """One open access log: a `Recorder`."""

    def __init__(
        self,
        clock: IReactorTime,
        config: model.AccessLog,
        *,
        process: str = "",
        successor: Callable[[], AccessLog | None] = lambda: None,
    ) -> None:
        """Open the file. Raises OSError.

        `process` is the name of this process in each line, where several write to the file. `successor` returns the log
        for records after `close`, of requests that began before a reload.
        """
        self.config = config
        self._clock = clock
        self._format = FORMATTERS[config.format](process)
        self._writer = FileWriter(config.file)
        self._successor = successor
        self._records: list[AccessRecord] = []
        self._bytes_passed = 0
        self._timer: IDelayedCall | None = None
        self._dropped = 0
        self._reported = 0
        self._reported_error = ""
        self._next_report = 0.0
        self.is_open = True

    @property
    def lost(self) -> int:
        """Lines lost since the start, by a full queue or write errors."""
        return self._dropped + self._writer.lines_lost

    def finished(self, record: AccessRecord) -> None:
        """Write the record of one request. Never blocks and never raises."""
        if not self.is_open:
            successor = self._successor()
            if successor is not None:
                successor.finished(record)
            return
        self._records.append(record)
        if len(self._records) >= FLUSH_COUNT:
            self._pass_on()
        if self._timer is None:
            self._timer = self._clock.callLater(FLUSH_AFTER, self._tick)

    def reopen(self) -> None:
        """Reopen the file by its name, after the lines so far are written to the old one."""
        self._pass_on()
        self._writer.reopen()

    def close(self) -> None:
        """Write what is left and close the file, in the thread; returns at once. A second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pass_on()
        self._writer.close()

    def wait_closed(self, timeout: float) -> bool:
        """After `close`: wait at most `timeout` seconds, report lost lines, and return whether all is written."""
        done = self._writer.wait_closed(timeout)
        self._report()
        return done

    def _tick(self) -> None:
        self._timer = None
        self._pass_on()
        unreported = self.lost > self._reported or self._writer.error != self._reported_error
        if unreported and self._clock.seconds() >= self._next_report:
            self._report()
        elif unreported:
            self._timer = self._clock.callLater(self._next_report - self._clock.seconds(), self._tick)

    def _pass_on(self) -> None:
        records, self._records = self._records, []
        if not records:
            return
        if self._bytes_passed - self._writer.bytes_done > LONGEST_BACKLOG:
            self._dropped += len(records)
            return
        data = "".join(map(self._format, records)).encode("ascii")  # both formats escape everything else
        self._writer.write(data, len(records))
        self._bytes_passed += len(data)

    def _report(self) -> None:
        lost = self.lost - self._reported
        error = self._writer.error
        if not lost and error == self._reported_error:
            return
        self._reported += lost
        self._reported_error = error
        self._next_report = self._clock.seconds() + REPORT_EVERY
        log.warn(
            "access log {path} lost {lines} lines",
            event="access_log_incomplete",
            path=self.config.file,
            lines=lost,
            cause=error or "the file stalls",
            todo="free space or check the disk; SIGUSR1 reopens the file",
        )


class AccessLogs:
    """Opens access logs and keeps them, for SIGUSR1 (reopen) and for the end of the process."""

    def __init__(self, clock: IReactorTime, process: str = "") -> None:
        """`process` is the name of this process in each line; "" for the only one of a daemon."""
        self._clock = clock
        self._process = process
        self._logs: list[AccessLog] = []

    def open(self, config: model.AccessLog) -> AccessLog:
        """Open an access log; the caller closes it. Raises OSError."""
        opened = AccessLog(self._clock, config, process=self._process, successor=self._newest_open)
        self._logs = [each for each in self._logs if each.is_open or not each.wait_closed(0)]
        self._logs.append(opened)
        return opened

    def _newest_open(self) -> AccessLog | None:
        return next((each for each in reversed(self._logs) if each.is_open), None)

    def reopen(self) -> None:
        """Reopen every file (log rotation)."""
        for access_log in self._logs:
            if access_log.is_open:
                access_log.reopen()

    def close(self, timeout: float = 2.0) -> None:
        """Close all, and wait at most `timeout` seconds for their files, at the end of the process."""
        for access_log in self._logs:
            access_log.close()
        deadline = time.monotonic() + timeout
        for access_log in self._logs:
            if not access_log.wait_closed(max(0.0, deadline - time.monotonic())):
                log.warn(
                    "access log {path} is incomplete",
                    event="access_log_incomplete",
                    path=access_log.config.file,
                    cause="the file stalls",
                )
        self._logs = []
