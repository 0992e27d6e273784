"""The request logs of a process: access logs, audit logs and spans.

A Runtime opens them, and they are closed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.observe import tracing
from mcproxy.observe.access_log import AccessLog, AccessLogs
from mcproxy.observe.metrics.families import ACCESS_LOG_LOST, AUDIT_EVENTS, AUDIT_EVENTS_LOST
from mcproxy.observe.metrics.metrics import Metrics

if TYPE_CHECKING:
    from mcproxy.observe.audit.log import AuditLog, AuditLogs
    from mcproxy.observe.spans import Spans

REOPENED_WITHIN = 5.0
"""Longest time that `reopen` waits for a file whose disk stalls (seconds)."""
_POLL = 0.01  # seconds


class RequestLogs:
    """Opens request logs and keeps track of them.

    Opening the first audit log imports its modules."""

    def __init__(self, clock: IReactorTime, process: str = "", environ: Mapping[str, str] | None = None) -> None:
        """`process` is the name of this process in each line; "" in a daemon of one process.

        Variables in `environ` enable tracing; with None, requests are not traced.
        """
        self._environ = environ
        self._spans: Spans | None = None
        self._clock = clock
        self._process = process
        self.access = AccessLogs(clock, process)
        self._audit: AuditLogs | None = None
        self._flush_records: Callable[[], None] = lambda: None

    def open_access(self, config: model.AccessLogConfig) -> AccessLog:
        """Open an access log; the caller closes it. Raises OSError."""
        return self.access.open(config)

    def open_audit(self, config: model.AuditLogConfig) -> AuditLog:
        """Open an audit log; the caller closes it. Raises OSError."""
        if self._audit is None:
            from mcproxy.observe.audit.log import AuditLogs

            self._audit = AuditLogs(self._clock, self._process)
        return self._audit.open(config)

    def spans(self) -> Spans | None:
        """Return the receiver of spans, if requests are traced."""
        environ, self._environ = self._environ, None
        if environ is not None:
            self._spans = tracing.start(self._clock, environ, self._process)
        return self._spans

    @property
    def audit(self) -> AuditLogs | None:
        """The audit logs; None if no audit log was opened."""
        return self._audit

    def count_into(self, metrics: Metrics) -> None:
        """Start counting written, lost and queued lines in `metrics`."""
        metrics.follow(ACCESS_LOG_LOST, (), lambda: self.access.lost)
        metrics.follow(AUDIT_EVENTS, (), lambda: 0 if self._audit is None else self._audit.written)
        metrics.follow(AUDIT_EVENTS_LOST, (), lambda: 0 if self._audit is None else self._audit.lost)
        self._flush_records = metrics.flush  # this also passes ended requests to the logs
        metrics.audit_queue = lambda: 0 if self._audit is None else self._audit.queued_bytes

    def reopen(self) -> Deferred[None]:
        """Reopen every file (log rotation). Requests that ended before are written to the old file.

        The Deferred fires when all files are reopened or have failed, or a file has stalled for REOPENED_WITHIN.
        """
        self._flush_records()
        self.access.reopen()
        if self._audit is not None:
            self._audit.reopen()
        return Deferred.fromCoroutine(self._wait_reopened())

    async def _wait_reopened(self) -> None:
        deadline = self._clock.seconds() + REOPENED_WITHIN
        while self.access.reopening or (self._audit is not None and self._audit.reopening):
            if self._clock.seconds() >= deadline:
                return
            await deferLater(self._clock, _POLL)

    def close(self) -> None:
        """Close all logs at the end of the process, and wait some seconds for their files."""
        self.access.close()
        if self._audit is not None:
            self._audit.close()
        if self._spans is not None:
            self._spans.close()
