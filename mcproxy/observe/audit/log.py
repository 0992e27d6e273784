"""The open audit log: a file with one event per line, written by a thread from a bounded queue.

While the disk is full, queued events are kept and written later. Only events that exceed the queue are lost. Lost
events are counted and reported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.observe.audit import values
from mcproxy.observe.batched_log import BatchedLog, OpenLogs
from mcproxy.observe.writer import FileWriter

log = Logger(__name__)

LONGEST_BACKLOG = 16 * 1024 * 1024
"""Limit of the queue for the file (bytes): some 20,000 events."""
CLOSE_TIMEOUT = 5.0
"""Limit of the time to write the queue at the end of the process (seconds)."""
_TODO = "free space or check the disk; events are kept in memory up to 16 MiB and written as soon as that works again"


class AuditLog(BatchedLog):
    """An open audit log, with a cache of values that many events share."""

    def __init__(
        self,
        clock: IReactorTime,
        config: model.AuditLogConfig,
        *,
        process: str = "",
        successor: Callable[[], BatchedLog | None] = lambda: None,
    ) -> None:
        """Open the file. Raises OSError.

        `process` is the name of this process in each event, if several write to the file. `successor` returns the log
        that takes over after `close`, for requests that began before a reload.
        """
        self.config = config
        self.process = process or None
        self.object_refs = values.ObjectReferences()
        self.uri = lru_cache(1024)(values.uri_of)
        self.source_ips = lru_cache(512)(values.source_ips_of)
        self.nobody = values.user_of(None)
        self.status = lru_cache(600)(lambda code: values.status_of(code, None))
        self.micro_time = values.MicroTime()
        self._successor = successor
        writer = FileWriter(config.file, keep=True, alone=not process)
        super().__init__(clock, writer, LONGEST_BACKLOG)

    def next_log(self) -> BatchedLog | None:
        return self._successor()

    def report_lost(self, lines: int, cause: str) -> None:
        log.error(
            "the audit log has lost events",
            event="audit_log_incomplete",
            path=self.config.file,
            lines=lines,
            cause=cause,
            todo=_TODO,
        )

    def report_error(self, cause: str) -> None:
        if cause:
            log.warn(
                "the audit log cannot be written; events are kept for now",
                event="audit_log_unwritable",
                path=self.config.file,
                queued=self.queued_bytes,
                cause=cause,
                todo=_TODO,
            )
        else:
            log.info("the audit log is written again", event="audit_log_written_again", path=self.config.file)

    def report_not_reopened(self, cause: str) -> None:
        log.warn(
            "the audit log was not reopened; the previous file stays in use",
            event="audit_log_not_reopened",
            path=self.config.file,
            cause=cause,
            todo="let the daemon's user create the file (see the create line of logrotate), and send SIGUSR1 again",
        )

    def report_late(self) -> None:
        log.error(
            "the audit log is incomplete",
            event="audit_log_incomplete",
            path=self.config.file,
            queued=self.queued_bytes,
            cause="the file stalls",
            todo="check the disk",
        )


class AuditLogs(OpenLogs):
    """Opens audit logs and keeps track of them, for SIGUSR1 (reopen), the metrics and the end of the process."""

    def __init__(self, clock: IReactorTime, process: str = "") -> None:
        """`process` is the name of this process in each event; "" in a daemon of one process."""
        super().__init__(CLOSE_TIMEOUT)
        self._clock = clock
        self._process = process

    def open(self, config: model.AuditLogConfig) -> AuditLog:
        """Open an audit log; the caller closes it. Raises OSError."""
        opened = AuditLog(self._clock, config, process=self._process, successor=self.newest)
        self.opened(opened)
        return opened
