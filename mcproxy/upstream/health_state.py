"""Derives the health of an endpoint from the results of checks and connections. No clock, no I/O.

An endpoint that has never been checked is neither ready nor out. The first check with a response decides alone. After
it, and as long as no check got a response, `unhealthy_after` failures in a row put the endpoint out, and
`healthy_after` successful checks in a row make it ready. A connection that a request could not open counts at once as
one failed check, so that a dead endpoint goes out after a few requests instead of a few intervals. A successful
connection resets only the count of these failures. Only checks make an endpoint ready again: a kube-apiserver that
serves requests but fails its readiness (as during its shutdown) must still go out.

A kube-apiserver that has just started responds with 403 to all requests, also to /readyz, until it has read its roles
(recorded from Kubernetes 1.36: for about one second), and would refuse impersonation to the proxy. So 401 or 403 is a
failed check of an endpoint that has responded with 200 to this credential before. For any other endpoint the check is
inconclusive until there was no other result for `REFUSED_SECONDS`. Then the credential evidently lacks the right to
read the health, and the endpoint counts as alive.

An endpoint that is out may still serve, such as an overloaded one whose /readyz is late (`may_serve`): if no endpoint
is ready, `Cluster.last_resort` tries it with a few requests (`trials`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

REFUSED_SECONDS = 30.0
"""Seconds of only 401 or 403 after which an endpoint that never responded with 200 counts as alive."""


class Health(enum.Enum):
    """The three states of an endpoint."""

    UNCHECKED = "unchecked"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRecord:
    """The part of a `HealthState` that results from checks, for another process; it omits failed connections."""

    status: Health
    cause: str
    failures: int
    successes: int
    answered_ok: bool
    refused_for: float | None
    """Seconds for which all responses have been 401 or 403; None: the newest response was another one."""
    may_serve: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHealth:
    """The state of an endpoint in one process, without the failed connections of its own requests.

    The times are periods until now, in seconds: the clocks of two processes are not compared.
    """

    health: HealthRecord
    since: float
    """Seconds since the last change of the status."""
    silent: bool
    answered_failure: bool
    silent_checks: int


class HealthState:
    """The state machine of one endpoint's health. `cause`: the newest failure, "" after a successful check.

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
        self.may_serve = False  # whether it was ready (perhaps too late), and no connection has failed since
        self._failures = 0  # number of failed checks in a row
        self._connect_failures = 0  # number of failed connections of requests in a row
        self._successes = 0  # number of successful checks in a row
        self._unhealthy_after = unhealthy_after
        self._healthy_after = healthy_after
        self._credential: object = None
        self._answered_ok = False  # whether a check with `_credential` succeeded
        self._refused_since: float | None = None  # begin of the uninterrupted series of 401 and 403

    @property
    def unhealthy_after(self) -> int:
        """The number of failures in a row that puts the endpoint out."""
        return self._unhealthy_after

    @property
    def went_out_by_connections(self) -> bool:
        """Whether the endpoint is out, and failed connections of requests have contributed to this."""
        return self.status is Health.FAILED and self._connect_failures > 0

    def set_thresholds(self, *, unhealthy_after: int, healthy_after: int) -> None:
        """Set the thresholds of a new configuration; they apply from the next result on."""
        self._unhealthy_after = unhealthy_after
        self._healthy_after = healthy_after

    def use_credential(self, credential: object) -> None:
        """Forget the responses to any other credential; `credential` is any value that supports equality."""
        if credential != self._credential:
            self._credential = credential
            self._answered_ok = False
            self._refused_since = None

    def check_succeeded(self) -> bool:
        """Count a check with a 2xx response."""
        self._answered_ok = True
        self._refused_since = None
        return self._succeeded()

    def check_refused(self, cause: str, now: float) -> bool:
        """Count a check with a 401 or 403 response; `now` in seconds, by any clock."""
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
        """Count a failed check. `silent`: it got no response. `unconnected`: it got no connection."""
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
        """Put the endpoint out because of failed connections: it refuses those of another process."""
        self._connect_failures = max(self._connect_failures, self._unhealthy_after)
        self.may_serve = False
        return self._failed(cause, silent=True)

    def connect_succeeded(self) -> None:
        """Reset the count of failed connections, because one was opened. Only checks make an endpoint ready again."""
        self._connect_failures = 0

    def answered_late(self) -> None:
        """Note a 2xx that arrived too late for a check: the endpoint has started, and may serve while it is out."""
        self.may_serve = self._connect_failures == 0

    def record(self, now: float) -> HealthRecord:
        """Return the record from which another process continues; `now`: as in `check_refused`."""
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
        """Prepare to count another process's result, by using its credential and the age of its refusals."""
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
