"""The state of a leader election by a Lease, as one candidate knows it. Pure. Source: client-go's leaderelection.

Only one clock is ever read, the candidate's own, and only to measure how long something is ago; the times that a Lease
carries are for people. The argument why no two candidates write at one time, whatever their clocks show:

- A leader may write until `RENEW_DEADLINE` (10 s) after it *sent* the last renewal that succeeded, and each of its
  writes has ended, or is given up, by then.
- Another candidate takes the Lease no earlier than `LEASE_DURATION` (15 s) after it has *seen* that renewal, which is
  after the cluster has written it, which is after it was sent.
- Its update names the version that it has seen, so a renewal in between makes it fail.

So clocks may differ by any time, and run at rates that differ by up to half (15 : 10). What no clock can see, a machine
that is frozen between the look at the clock and the send, is stopped by what every write also names: the version
of the object that it changes (`services.writer`).
"""

from __future__ import annotations

from collections.abc import Callable

from mcproxy.services.leader_election.lease import Lease, Record

LEASE_DURATION = 15
"""Seconds without a renewal after which another candidate may take the Lease."""
RENEW_DEADLINE = 10.0
"""Seconds after a renewal was sent for which it lets its leader write."""
RETRY_PERIOD = 2.0
"""Seconds between two attempts."""
JITTER_FACTOR = 1.2
"""By how many more periods at most a candidate that does not lead waits."""


class Election:
    """The state of one candidate: the Lease as it was last observed, and until when the candidate may write."""

    def __init__(self, identity: str, now: Callable[[], float]) -> None:
        """`identity` is unlike that of any other candidate, and of this one's earlier lives.

        `now`: seconds of a clock that runs while the machine sleeps, and that nobody sets.
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
        """The identity that the Lease had when it was last seen; "" if it was free, or never seen."""
        return "" if self._observed is None else self._observed.holder

    @property
    def transitions(self) -> int:
        """How often the Lease has changed hands."""
        return 0 if self._observed is None else self._observed.transitions

    @property
    def renewable(self) -> Lease | None:
        """The Lease to renew without reading it first, None if it must be read: this candidate does not lead."""
        return self._observed if self.leads else None

    def observe(self, lease: Lease | None) -> None:
        """Take what was read: None if there is no Lease. Who is not its holder writes no more from now on."""
        if lease is None or lease.holder != self.identity:
            self.step_down()
        if lease is None:
            self._observed = None
        elif self._observed is None or (self._observed.uid, self._observed.record) != (lease.uid, lease.record):
            self._observed = lease
            self._observed_at = self.now()
        else:
            self._observed = lease  # another version, since somebody has changed something else: not a renewal

    def next_record(self, wall: str) -> Record | None:
        """Return what to write over what was observed last; None while another candidate holds it. `wall`: the date."""
        lease = self._observed
        if lease is None:
            return Record(self.identity, LEASE_DURATION, 0, wall, wall)
        if lease.holder == self.identity:
            return Record(self.identity, LEASE_DURATION, lease.transitions, lease.acquired or wall, wall)
        if lease.holder and self.now() < self._observed_at + max(lease.duration, LEASE_DURATION):
            return None
        return Record(self.identity, LEASE_DURATION, lease.transitions + 1, wall, wall)

    def written(self, lease: Lease, sent: float) -> None:
        """Take the answer to an update or creation that succeeded; `sent`: what the clock said before it was sent."""
        self.observe(lease)
        if lease.holder == self.identity:
            self._until = max(self._until, sent + RENEW_DEADLINE)

    def step_down(self) -> None:
        """Write no more until a further update has succeeded."""
        self._until = float("-inf")

    def release_record(self, wall: str) -> tuple[Lease, Record] | None:
        """Return what frees the Lease at once for others; None if it is not this candidate's. Steps down."""
        lease = self._observed
        self.step_down()
        if lease is None or lease.holder != self.identity:
            return None
        return lease, Record("", 1, lease.transitions, wall, wall)
