"""The recorders of a process: receivers of the record of each ended request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mcproxy.observe.record import AccessRecord


class Recorder(Protocol):
    """Receives the records of finished requests, on the reactor; it must be fast and must not raise."""

    def finished(self, record: AccessRecord) -> None:
        """Receive the record of a finished request."""


@dataclass(frozen=True, slots=True)
class Recorders:
    """The recorders for requests with and without an access log line; chosen when a Runtime is built."""

    logged: Recorder | None = None
    unlogged: Recorder | None = None

    @classmethod
    def of(cls, metrics: Recorder | None, access_log: Recorder | None) -> Recorders:
        """Return the recorders of a process for its metrics and access log, either of which can be absent."""
        if metrics is None or access_log is None:
            return cls(metrics or access_log, metrics)
        return cls(_Both(metrics, access_log), metrics)


class _Both:
    """A recorder that passes each record to two recorders."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Recorder, second: Recorder) -> None:
        self._first, self._second = first.finished, second.finished

    def finished(self, record: AccessRecord) -> None:
        """Pass the record to both recorders."""
        self._first(record)
        self._second(record)
