"""A Lease in a cluster that a test controls: what is asked of it, when it answers, and what fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from mcproxy.services.lease import Lease, LeaseConflictError, LeaseLock, LeaseUnavailableError, Record


class FakeCluster:
    """The Lease as a cluster keeps it: every write has another version, and names what it replaces."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.writes: list[Record] = []
        self._version = 1

    def create(self, record: Record) -> Lease:
        if self.lease is not None:
            raise LeaseConflictError
        return self._write(record, f"uid-{self._version}")

    def update(self, lease: Lease, record: Record) -> Lease:
        current = self.lease
        if current is None or (current.uid, current.resource_version) != (lease.uid, lease.resource_version):
            raise LeaseConflictError
        return self._write(record, current.uid)

    def _write(self, record: Record, uid: str) -> Lease:
        self._version += 1
        self.writes.append(record)
        self.lease = Lease(
            record.holder, float(record.duration), record.transitions, record.acquired, record.renewed, uid,
            str(self._version), {},
        )  # fmt: skip
        return self.lease


class FakeAPI(LeaseLock):
    """One candidate's way to the cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.down = False
        self.lose_answers = False
        """What is written takes effect, but the answer is lost."""
        self.asked: list[str] = []
        self.held: list[Deferred[None]] | None = None
        """Requests wait here before they reach the cluster, if it is a list."""

    async def get(self, timeout: float) -> Lease | None:
        found: Lease | None = await self._call("get", lambda: self.cluster.lease)
        return found

    async def create(self, record: Record, timeout: float) -> Lease:
        created: Lease = await self._call("create", lambda: self.cluster.create(record))
        return created

    async def update(self, lease: Lease, record: Record, timeout: float) -> Lease:
        written: Lease = await self._call("update", lambda: self.cluster.update(lease, record))
        return written

    async def _call(self, verb: str, work: Callable[[], Any]) -> Any:
        self.asked.append(verb)
        if self.held is not None:
            waiting: Deferred[None] = Deferred()
            self.held.append(waiting)
            await waiting
        if self.down:
            raise LeaseUnavailableError("refused the connection", "start it")
        done = work()
        if self.lose_answers:
            raise LeaseUnavailableError("no answer", "see")
        return done
