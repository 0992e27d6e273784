"""Leader election: a candidate acquires the Lease of a cluster, renews it while it leads, and releases it at the
end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.net.wall_time import wall_seconds
from mcproxy.services.lease import Lease, LeaseConflictError, LeaseLock, LeaseUnavailableError, Record

log = Logger(__name__)

# -- the rules ------------------------------------------------------------------------------------------------
#
# One candidate's state of a leader election by a Lease. Pure. Source: client-go's leaderelection.
#
# A candidate reads only its own clock, and only to measure durations; the times in a Lease are only for people. No two
# candidates write at the same time, whatever their clocks show, because:
#
# - A leader may write until `RENEW_DEADLINE` (10 s) after it *sent* the last successful renewal, and each of its
#   writes has ended, or is abandoned, by then.
# - Another candidate takes the Lease no earlier than `LEASE_DURATION` (15 s) after it has *seen* that renewal. It sees
#   the renewal after the cluster has written it, and the leader has sent it before that.
# - The other candidate's update names the version that it has seen, so it fails after a renewal in between.
#
# So clocks may differ by any time, and their rates by up to half (15 : 10). If a machine freezes between reading the
# clock and sending, its late write fails: every write names the version of the object (`services.writer`).


LEASE_DURATION = 15
"""Seconds without a renewal after which another candidate can take the Lease."""
RENEW_DEADLINE = 10.0
"""Seconds after the sending of a renewal for which the leader may write."""
RETRY_PERIOD = 2.0
"""Seconds between two attempts to acquire or renew the Lease."""
JITTER_FACTOR = 1.2
"""Maximum of the random additional wait of a candidate that does not lead, as a multiple of that period."""


class Election:
    """The state of one candidate: the last observed Lease, and the end of the time in which the candidate may write."""

    def __init__(self, identity: str, now: Callable[[], float]) -> None:
        """`identity`: unique among all candidates, including earlier processes of the same candidate.

        `now`: seconds of a clock that continues while the machine sleeps, and cannot be set.
        """
        self.identity = identity
        self.now = now
        self._observed: Lease | None = None
        self._observed_at = float("-inf")
        self._until = float("-inf")

    @property
    def remaining(self) -> float:
        """Seconds for which this candidate may still write; 0 if it may not."""
        return max(0.0, self._until - self.now())

    @property
    def leads(self) -> bool:
        """Whether this candidate may write now."""
        return self.now() < self._until

    @property
    def holder(self) -> str:
        """The holder in the last observed Lease; "" if it was free or never observed."""
        return "" if self._observed is None else self._observed.holder

    @property
    def transitions(self) -> int:
        """The number of changes of the holder (leaseTransitions)."""
        return 0 if self._observed is None else self._observed.transitions

    @property
    def renewable(self) -> Lease | None:
        """The Lease that a leader renews without reading it first; None if this candidate does not lead."""
        return self._observed if self.leads else None

    def observe(self, lease: Lease | None) -> None:
        """Observe the Lease that was read, None if there is none. A candidate that is not its holder steps down."""
        if lease is None or lease.holder != self.identity:
            self.step_down()
        if lease is None:
            self._observed = None
        elif self._observed is None or (self._observed.uid, self._observed.record) != (lease.uid, lease.record):
            self._observed = lease
            self._observed_at = self.now()
        else:
            self._observed = lease  # the version changed without a renewal: another field has changed

    def next_record(self, wall: str) -> Record | None:
        """Return the record to write to the Lease; None while another candidate holds it. `wall`: the date."""
        lease = self._observed
        if lease is None:
            return Record(self.identity, LEASE_DURATION, 0, wall, wall)
        if lease.holder == self.identity:
            return Record(self.identity, LEASE_DURATION, lease.transitions, lease.acquired or wall, wall)
        if lease.holder and self.now() < self._observed_at + max(lease.duration, LEASE_DURATION):
            return None
        return Record(self.identity, LEASE_DURATION, lease.transitions + 1, wall, wall)

    def written(self, lease: Lease, sent: float) -> None:
        """Observe the response to a successful update or creation. `sent`: time before the request was sent."""
        self.observe(lease)
        if lease.holder == self.identity:
            self._until = max(self._until, sent + RENEW_DEADLINE)

    def step_down(self) -> None:
        """Stop writing until a further update has succeeded."""
        self._until = float("-inf")

    def release_record(self, wall: str) -> tuple[Lease, Record] | None:
        """Return the update that releases the Lease; None if this candidate does not hold it. Steps down."""
        lease = self._observed
        self.step_down()
        if lease is None or lease.holder != self.identity:
            return None
        return lease, Record("", 1, lease.transitions, wall, wall)


REQUEST_TIMEOUT = RENEW_DEADLINE / 2
"""Timeout of one request in seconds, as in client-go: a second attempt fits before the deadline."""
RELEASE_TIMEOUT = 2.0
"""Seconds for releasing the Lease at a shutdown."""


class LeaderElector:
    """One candidate for the Lease of one cluster."""

    def __init__(
        self,
        cluster: str,
        api: LeaseLock,
        election: Election,
        clock: IReactorTime,
        random: Callable[[], float],
        changed: Callable[[bool], None],
    ) -> None:
        """`cluster`: the cluster's name, for the log. `random` returns a float in [0, 1).

        `changed` is called with True when this candidate may write, and with False when it must stop.
        """
        self.cluster = cluster
        self.election = election
        self.cause = ""
        """Why the last attempt to read or write the Lease failed; "" if it succeeded."""
        self._api = api
        self._clock = clock
        self._random = random
        self._changed = changed
        self._reported = False
        self._failing = False
        self._running: Deferred[None] | None = None
        self._next: IDelayedCall | None = None
        self._expiry: IDelayedCall | None = None
        self._stopped = True

    @property
    def leads(self) -> bool:
        """Whether this candidate may write now."""
        return self.election.leads

    @property
    def remaining(self) -> float:
        """Seconds for which this candidate may still write."""
        return self.election.remaining

    def start(self) -> None:
        """Start the attempts."""
        self._stopped = False
        self._begin()

    def stop(self) -> None:
        """Stop the attempts and step down. The Lease expires by itself, unless `release` is called."""
        self._stopped = True
        self.election.step_down()
        if self._next is not None:
            self._next.cancel()
            self._next = None
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
        self._report_leadership()

    async def release(self) -> None:
        """Release the Lease, after `stop` and after the responses to all writes."""
        freed = self.election.release_record(self._wall())
        if freed is None:
            return
        try:
            await self._api.update(*freed, RELEASE_TIMEOUT)
        except (LeaseConflictError, LeaseUnavailableError):
            pass  # the Lease expires by itself
        else:
            log.info(
                "lease released: other replicas may write to the cluster", event="lease_released", cluster=self.cluster
            )

    # -- attempts ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._next = None
        running = self._running = Deferred.fromCoroutine(self._attempt())
        running.addErrback(self._crashed)
        running.addCallback(self._again)

    async def _attempt(self) -> None:
        try:
            await self._acquire_or_renew()
        except LeaseConflictError:
            self.election.step_down()  # somebody else has written the Lease, so it must be read first
        except LeaseUnavailableError as error:
            self._failed(error)
        else:
            if self._failing:
                self._failing = False
                self.cause = ""
                log.info("the lease of a cluster is available again", event="lease_available", cluster=self.cluster)
        self._report_leadership()

    async def _acquire_or_renew(self) -> None:
        election = self.election
        current = election.renewable
        if current is not None:
            record = election.next_record(self._wall())
            assert record is not None  # a leader may renew
            try:
                await self._update(current, record)
            except LeaseConflictError:
                election.step_down()
                self._report_leadership()
            else:
                return
        found = await self._api.get(REQUEST_TIMEOUT)
        election.observe(found)
        record = election.next_record(self._wall())
        if record is None:
            return
        if found is not None:
            await self._update(found, record)
            return
        sent = election.now()
        election.written(await self._api.create(record, REQUEST_TIMEOUT), sent)

    async def _update(self, lease: Lease, record: Record) -> None:
        sent = self.election.now()
        self.election.written(await self._api.update(lease, record, REQUEST_TIMEOUT), sent)

    def _again(self, _: object) -> None:
        self._running = None
        if self._stopped:
            return
        self._report_leadership()
        wait = RETRY_PERIOD if self.leads else RETRY_PERIOD * (1 + JITTER_FACTOR * self._random())
        self._next = self._clock.callLater(wait, self._begin)

    def _failed(self, error: LeaseUnavailableError) -> None:
        self.cause = error.cause
        if not self._failing:
            self._failing = True
            log.warn(
                "lease unavailable: nothing is written to the cluster",
                event="lease_unavailable",
                cluster=self.cluster,
                cause=error.cause,
                todo=error.todo,
            )

    def _crashed(self, failure: Failure) -> None:
        """Ignore a cancellation; log any other exception, a bug that must not end the attempts for good."""
        if not (self._stopped and isinstance(failure.value, CancelledError)):
            log.failure("leader election failed unexpectedly", failure, event="internal_error", cluster=self.cluster)

    # -- notification ------------------------------------------------------------------------------------------------

    def _report_leadership(self) -> None:
        """Report a change of leadership, and schedule the next check for when the Lease expires."""
        leads = self.leads
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if leads:
            self._expiry = self._clock.callLater(self.election.remaining, self._expired)
        if leads == self._reported:
            return
        self._reported = leads
        if leads:
            log.info(
                "lease acquired: this process writes exported services to the cluster",
                event="lease_acquired",
                cluster=self.cluster,
                identity=self.election.identity,
                transitions=self.election.transitions,
            )
        elif not self._stopped:
            log.warn(
                "lease lost: this process no longer writes to the cluster",
                event="lease_lost",
                cluster=self.cluster,
                holder=self.election.holder,
                cause=self.cause,
            )
        self._changed(leads)

    def _expired(self) -> None:
        self._expiry = None
        self._report_leadership()

    def _wall(self) -> str:
        """Return the date as a MicroTime."""
        now = datetime.fromtimestamp(wall_seconds(self._clock), UTC)
        return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
