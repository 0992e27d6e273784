"""The access log: one line a request, gathered on the reactor and written in batches by a thread.

Records are formatted and handed over every 100 ms, or when 64 have come together: code that runs 64 times in a row
costs less than between requests, where the processor's caches are full of something else. When the disk stalls, up to
8 MiB wait; what comes then is dropped, counted and reported, because a proxy that stops for its log would be worse.
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
"""Seconds that a record waits at most before its line is handed to the writer."""
FLUSH_COUNT = 64
"""Records that are formatted at once: some 0.3 ms."""
LONGEST_BACKLOG = 8 * 1024 * 1024
"""Characters that may wait for the disk."""
REPORT_EVERY = 10.0
"""Seconds between two reports of lost lines."""


class AccessLog:
    """One open access log: a `Recorder`."""

    def __init__(
        self, clock: IReactorTime, config: model.AccessLog, *, heir: Callable[[], AccessLog | None] = lambda: None
    ) -> None:
        """Open the file. Raises OSError.

        `heir` tells which log takes a record that comes after `close`, from a request that began before a reload.
        """
        self.config = config
        self._clock = clock
        self._format = FORMATTERS[config.format]()
        self._writer = FileWriter(config.file)
        self._heir = heir
        self._records: list[AccessRecord] = []
        self._handed_over = 0
        self._timer: IDelayedCall | None = None
        self._dropped = 0
        self._reported = 0
        self._reported_error = ""
        self._next_report = 0.0
        self.is_open = True

    @property
    def lost(self) -> int:
        """Lines lost since the start, to a full backlog or a failing disk."""
        return self._dropped + self._writer.lines_lost

    def finished(self, record: AccessRecord) -> None:
        """Have the record of one request written. Never blocks and never raises."""
        if not self.is_open:
            heir = self._heir()
            if heir is not None:
                heir.finished(record)
            return
        self._records.append(record)
        if len(self._records) >= FLUSH_COUNT:
            self._hand_over()
        if self._timer is None:
            self._timer = self._clock.callLater(FLUSH_AFTER, self._tick)

    def reopen(self) -> None:
        """Open the file anew under its name, once the lines so far are written to the old one."""
        self._hand_over()
        self._writer.reopen()

    def close(self) -> None:
        """Have what is left written and the file closed; returns at once. A second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hand_over()
        self._writer.close()

    def wait_closed(self, timeout: float) -> bool:
        """After `close`: wait at most `timeout` seconds for the disk, report what was lost, tell whether it is done."""
        done = self._writer.wait_closed(timeout)
        self._report()
        return done

    def _tick(self) -> None:
        self._timer = None
        self._hand_over()
        unreported = self.lost > self._reported or self._writer.error != self._reported_error
        if unreported and self._clock.seconds() >= self._next_report:
            self._report()
        elif unreported:
            self._timer = self._clock.callLater(self._next_report - self._clock.seconds(), self._tick)

    def _hand_over(self) -> None:
        records, self._records = self._records, []
        if not records:
            return
        if self._handed_over - self._writer.bytes_done > LONGEST_BACKLOG:
            self._dropped += len(records)
            return
        data = "".join(map(self._format, records)).encode("ascii")  # both formats escape everything else
        self._writer.write(data, len(records))
        self._handed_over += len(data)

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
            path=self.config.file,
            lines=lost,
            cause=error or "the disk stalls",
            todo="free space or check the disk; SIGUSR1 opens the file anew",
        )


class AccessLogs:
    """Opens access logs and remembers them, for SIGUSR1 to open them anew, and so that none is cut off at the end."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._logs: list[AccessLog] = []

    def open(self, config: model.AccessLog) -> AccessLog:
        """Open an access log; whoever opens it closes it. Raises OSError."""
        opened = AccessLog(self._clock, config, heir=self._in_force)
        self._logs = [each for each in self._logs if each.is_open or not each.wait_closed(0)]
        self._logs.append(opened)
        return opened

    def _in_force(self) -> AccessLog | None:
        return next((each for each in reversed(self._logs) if each.is_open), None)

    def reopen(self) -> None:
        """Open every file anew (after log rotation)."""
        for access_log in self._logs:
            if access_log.is_open:
                access_log.reopen()

    def close(self, timeout: float = 2.0) -> None:
        """Close all, and wait at most `timeout` seconds for the disk: the end of the process."""
        for access_log in self._logs:
            access_log.close()
        deadline = time.monotonic() + timeout
        for access_log in self._logs:
            if not access_log.wait_closed(max(0.0, deadline - time.monotonic())):
                log.warn("access log {path} is cut off", path=access_log.config.file, cause="the disk stalls")
        self._logs = []
