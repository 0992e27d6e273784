"""Whether an endpoint takes requests, derived from the results of checks and connections. No clock, no I/O.

The first answered check decides alone: an endpoint that has never been checked is neither ready nor out. After it, and
as long as none was answered, it takes `unhealthy_after` failures in a row to go out and `healthy_after` successful
checks in a row to come back. A connection that a request could not open counts as one failed check, at once, so that a
dead endpoint goes out after a few requests instead of after a few intervals. A connection that opens resets only the
count of these failures, and only checks bring an endpoint back: a kube-apiserver that answers requests but fails its
readiness (as it does while it shuts down) must still go out.

A check that is answered 401 or 403 is inconclusive. A kube-apiserver that has just started answers all requests 403,
/readyz too, until it has read its roles (recorded from Kubernetes 1.36: for about one second), and would refuse
impersonation to the proxy. So it is a failed check of an endpoint that has answered 200 to this credential before.
Of any other endpoint it is inconclusive until there was no other result for `REFUSED_SECONDS`; then the credential
evidently lacks the right to read the health, and the endpoint counts as alive.

An endpoint that is out may still serve, like an overloaded one whose /readyz is late (`may_serve`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

REFUSED_SECONDS = 30.0
"""Seconds of only 401 or 403 after which an endpoint that never answered 200 counts as alive."""


class Health(enum.Enum):
    """The three states of an endpoint."""

    UNCHECKED = "unchecked"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRecord:
    """A `HealthState` from checks only, for another process: without the failed connections of requests."""

    status: Health
    cause: str
    failures: int
    successes: int
    answered_ok: bool
    refused_for: float | None
    """The seconds since which all answers were 401 or 403; None: the newest one was not."""
    may_serve: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHealth:
    """The state of an endpoint in one process, without the failed connections of its own requests.

    The times are periods until now, in seconds: the clocks of two processes are not compared.
    """

    health: HealthRecord
    since: float
    """Seconds since its status changed."""
    silent: bool
    answered_failure: bool
    silent_checks: int


class HealthState:
    """The state machine of one endpoint. `cause` describes the newest failure, "" after a successful check.

    Each method that counts a result returns whether it changed `status`.
    """

    __slots__ = (
        "_answered_ok",
        "_connect_failures",
        "_credential",
        "_failures",
        "_healthy_after",
        "_refused_since",
        "_successes",
        "_unhealthy_after",
        "cause",
        "may_serve",
        "status",
    )

    def __init__(self, *, unhealthy_after: int, healthy_after: int) -> None:
        self.status = Health.UNCHECKED
        self.cause = ""
        self.may_serve = False  # it was ready, if only late, and no connection has failed since
        self._failures = 0  # checks, in a row
        self._connect_failures = 0  # connections of requests, in a row
        self._successes = 0  # checks, in a row
        self._unhealthy_after = unhealthy_after
        self._healthy_after = healthy_after
        self._credential: object = None
        self._answered_ok = False  # to `_credential`
        self._refused_since: float | None = None  # when the unbroken series of 401 and 403 began

    @property
    def unhealthy_after(self) -> int:
        """The number of failures in a row that takes the endpoint out."""
        return self._unhealthy_after

    @property
    def went_out_by_connections(self) -> bool:
        """Whether it is out, and failed connections of requests have contributed to that."""
        return self.status is Health.FAILED and self._connect_failures > 0

    def set_thresholds(self, *, unhealthy_after: int, healthy_after: int) -> None:
        """Set the thresholds of a new configuration; they apply from the next result on."""
        self._unhealthy_after = unhealthy_after
        self._healthy_after = healthy_after

    def use_credential(self, credential: object) -> None:
        """Forget the answers to any other credential; `credential` is a value that can be compared by equality."""
        if credential != self._credential:
            self._credential = credential
            self._answered_ok = False
            self._refused_since = None

    def check_succeeded(self) -> bool:
        """Count a check that was answered 2xx."""
        self._answered_ok = True
        self._refused_since = None
        return self._succeeded()

    def check_refused(self, cause: str, now: float) -> bool:
        """Count a check that was answered 401 or 403; `now` in seconds, of any clock."""
        if self._answered_ok:
            return self.check_failed(cause)
        if self._refused_since is None:
            self._refused_since = now
        if self.alive_but_refused(now):
            return self._succeeded()
        if self.status is not Health.READY:
            self.cause = cause
        return False

    def alive_but_refused(self, now: float) -> bool:
        """Return whether all results were 401 or 403 for long enough to count as alive."""
        return self._refused_since is not None and now - self._refused_since >= REFUSED_SECONDS

    def check_failed(self, cause: str, *, silent: bool = False, unconnected: bool = False) -> bool:
        """Count a failed check; `silent`: it got no answer; `unconnected`: because it got no connection."""
        self._failures += 1
        if unconnected:
            self.may_serve = False
        return self._failed(cause, silent=silent)

    def connect_failed(self, cause: str) -> bool:
        """Count a connection that a request could not open."""
        self._connect_failures += 1
        self.may_serve = False
        return self._failed(cause, silent=True)

    def failed_elsewhere(self, cause: str) -> bool:
        """Take the endpoint out by failed connections, since it refuses those of another process."""
        self._connect_failures = max(self._connect_failures, self._unhealthy_after)
        self.may_serve = False
        return self._failed(cause, silent=True)

    def connect_succeeded(self) -> None:
        """Reset the failed connections, since one was opened. Only a check brings an endpoint back."""
        self._connect_failures = 0

    def answered_late(self) -> None:
        """Note a 2xx that came too late for a check: the endpoint has started, and may serve while it is out."""
        self.may_serve = self._connect_failures == 0

    def record(self, now: float) -> HealthRecord:
        """Return the record from which another process continues; `now` as for `check_refused`."""
        return HealthRecord(
            status=self.status,
            cause=self.cause,
            failures=self._failures,
            successes=self._successes,
            answered_ok=self._answered_ok,
            refused_for=None if self._refused_since is None else now - self._refused_since,
            may_serve=self.may_serve,
        )

    def follow(self, credential: object, refused_for: float | None, now: float) -> None:
        """Prepare to count another process's result: use its credential and the age of its refusals."""
        self.use_credential(credential)
        if refused_for is not None:
            self._refused_since = now - refused_for

    def adopt(self, record: HealthRecord, credential: object, now: float) -> bool:
        """Continue from another process's record; return whether `status` changed."""
        self.cause = record.cause
        self._failures = record.failures
        self._successes = record.successes
        self._credential = credential
        self._answered_ok = record.answered_ok
        self._refused_since = None if record.refused_for is None else now - record.refused_for
        self.may_serve = record.may_serve
        return self._become(record.status)

    def _succeeded(self) -> bool:
        self._failures = self._connect_failures = 0
        self._successes += 1
        enough = self.status is Health.UNCHECKED or self._successes >= self._healthy_after
        if self.status is not Health.READY and not enough:
            return False
        self.cause = ""
        self.may_serve = True
        return self._become(Health.READY)

    def _failed(self, cause: str, *, silent: bool = False) -> bool:
        self.cause = cause
        self._successes = 0
        self._refused_since = None
        enough = self._failures + self._connect_failures >= self._unhealthy_after
        if not enough and (self.status is Health.READY or (silent and self.status is Health.UNCHECKED)):
            return False
        return self._become(Health.FAILED)

    def _become(self, status: Health) -> bool:
        changed = self.status is not status
        self.status = status
        return changed
