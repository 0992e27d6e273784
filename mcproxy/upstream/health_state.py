"""Whether an endpoint is to be used, judged from the results of checks and connections. No clock, no I/O.

The first check decides alone: an endpoint that has never been checked is neither good nor bad. From then on it takes
`unhealthy_after` failures in a row to go out and `healthy_after` good checks in a row to come back. A connection that
a request could not open counts as one failed check, at once, so that a dead endpoint goes out after a few requests
instead of after a few intervals. A connection that opens takes back only such counts: an apiserver that answers
requests but fails its own readiness (it does so while it shuts down) must still go out.
"""

from __future__ import annotations

import enum


class Health(enum.Enum):
    """The three states of an endpoint."""

    UNCHECKED = "unchecked"
    READY = "ready"
    FAILED = "failed"


class HealthState:
    """The state machine of one endpoint. `cause` is the sentence of the newest failure, "" after a good check."""

    __slots__ = (
        "_connect_failures",
        "_failures",
        "_healthy_after",
        "_successes",
        "_unhealthy_after",
        "cause",
        "status",
    )

    def __init__(self, *, unhealthy_after: int, healthy_after: int) -> None:
        self.status = Health.UNCHECKED
        self.cause = ""
        self._failures = 0  # checks, in a row
        self._connect_failures = 0  # connections of requests, in a row
        self._successes = 0  # checks, in a row
        self._unhealthy_after = unhealthy_after
        self._healthy_after = healthy_after

    def set_thresholds(self, *, unhealthy_after: int, healthy_after: int) -> None:
        """Take the thresholds of a new configuration; they apply from the next result on."""
        self._unhealthy_after = unhealthy_after
        self._healthy_after = healthy_after

    def check_succeeded(self) -> bool:
        """Count a good check; True if the status changed by it."""
        self._failures = self._connect_failures = 0
        self._successes += 1
        enough = self.status is Health.UNCHECKED or self._successes >= self._healthy_after
        if self.status is not Health.READY and not enough:
            return False
        self.cause = ""
        return self._become(Health.READY)

    def check_failed(self, cause: str) -> bool:
        """Count a failed check; True if the status changed by it."""
        self._failures += 1
        return self._failed(cause)

    def connect_failed(self, cause: str) -> bool:
        """Count a connection that a request could not open; True if the status changed by it."""
        self._connect_failures += 1
        return self._failed(cause)

    def connect_succeeded(self) -> None:
        """Forget the failed connections: the newest one opened. Brings no endpoint back, only a check does."""
        self._connect_failures = 0

    def _failed(self, cause: str) -> bool:
        self.cause = cause
        self._successes = 0
        enough = self._failures + self._connect_failures >= self._unhealthy_after
        if self.status is Health.READY and not enough:
            return False
        return self._become(Health.FAILED)

    def _become(self, status: Health) -> bool:
        changed = self.status is not status
        self.status = status
        return changed
