"""Who gets the record of a finished request: metrics always, the access log if policy and server say so."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.observe.record import AccessRecord, Recorder


@dataclass(frozen=True, slots=True)
class Recorders:
    """The recorders of a request, by whether it is in the access log; chosen when a Runtime is built."""

    logged: Recorder | None = None
    unlogged: Recorder | None = None

    @classmethod
    def of(cls, metrics: Recorder | None, access_log: Recorder | None) -> Recorders:
        """Return those of a process that counts requests and may have an access log."""
        if metrics is None or access_log is None:
            return cls(metrics or access_log, metrics)
        return cls(_Both(metrics, access_log), metrics)


class _Both:
    """A recorder that passes each record to two."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Recorder, second: Recorder) -> None:
        self._first, self._second = first.finished, second.finished

    def finished(self, record: AccessRecord) -> None:
        """Pass it on."""
        self._first(record)
        self._second(record)
