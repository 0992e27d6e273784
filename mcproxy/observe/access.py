"""The access log: one line for each request."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.observe.batched_log import BatchedLog, OpenLogs
from mcproxy.observe.format import FORMATTERS
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.writer import FileWriter

log = Logger(__name__)

LONGEST_BACKLOG = 8 * 1024 * 1024
"""Limit of the queue for the file (bytes)."""


class AccessLog(BatchedLog[AccessRecord]):
    """One open access log: a `Recorder`."""

    def __init__(
        self,
        clock: IReactorTime,
        config: model.AccessLog,
        *,
        process: str = "",
        successor: Callable[[], BatchedLog[AccessRecord] | None] = lambda: None,
    ) -> None:
        """Open the file. Raises OSError.

        `process` is the name of this process in each line, where several write to the file. `successor` returns the log
        for records after `close`, of requests that began before a reload.
        """
        self.config = config
        self._successor = successor
        writer = FileWriter(config.file, alone=not process)
        super().__init__(clock, writer, FORMATTERS[config.format](process), LONGEST_BACKLOG)

    def finished(self, record: AccessRecord) -> None:
        """Write the record of one request. Never blocks and never raises."""
        self.add(record)

    def next_log(self) -> BatchedLog[AccessRecord] | None:
        return self._successor()

    def report_lost(self, lines: int, cause: str) -> None:
        log.warn(
            "the access log has lost lines",
            event="access_log_incomplete",
            path=self.config.file,
            lines=lines,
            cause=cause,
            todo="free space or check the disk; SIGUSR1 reopens the file",
        )

    def report_error(self, cause: str) -> None:
        """Nothing: what cannot be written is lost at once, which is reported."""

    def report_not_reopened(self, cause: str) -> None:
        log.warn(
            "the access log was not reopened; the previous file stays in use",
            event="access_log_not_reopened",
            path=self.config.file,
            cause=cause,
            todo="let the daemon's user create the file (see the create line of logrotate), and send SIGUSR1 again",
        )


class AccessLogs:
    """Opens access logs and keeps them, for SIGUSR1 (reopen) and for the end of the process."""

    def __init__(self, clock: IReactorTime, process: str = "") -> None:
        """`process` is the name of this process in each line; "" for the only one of a daemon."""
        self._clock = clock
        self._process = process
        self._logs: OpenLogs[AccessRecord] = OpenLogs()

    def open(self, config: model.AccessLog) -> AccessLog:
        """Open an access log; the caller closes it. Raises OSError."""
        opened = AccessLog(self._clock, config, process=self._process, successor=self._logs.newest)
        self._logs.opened(opened)
        return opened

    @property
    def lost(self) -> int:
        """Lines lost since the start of the process."""
        return self._logs.lost

    def reopen(self) -> None:
        """Reopen every file (log rotation)."""
        self._logs.reopen()

    @property
    def reopening(self) -> bool:
        """Whether one of the files is still to be reopened."""
        return self._logs.reopening

    def close(self, timeout: float = 2.0) -> None:
        """Close all, and wait at most `timeout` seconds for their files, at the end of the process."""
        for late in self._logs.close(timeout):
            assert isinstance(late, AccessLog)
            log.warn(
                "the access log is incomplete",
                event="access_log_incomplete",
                path=late.config.file,
                cause="the file stalls",
                todo="check the disk",
            )
