"""Spreads the sending of watch events over reactor turns, so that no turn takes long.

Live events come first. Watches that catch up (initial events, a resume, a slow client) get the rest of each turn, and
always at least a reserved share.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

log = Logger(__name__)

TURN_COST = 200
"""Cost limit of one turn, in writes of a small event; about 5 ms."""
CATCH_UP_COST = 60
"""The share of a turn that is reserved for catching up."""
TURN_TIME = 0.015
"""Seconds after which a turn ends even if its cost limit is not reached."""


class Job(Protocol):
    """Some work in small steps."""

    def step(self) -> int:
        """Do one small step; return its cost in writes of a small event, 0 if nothing is left to do now."""


class WatchScheduler:
    """Runs jobs; one scheduler serves all watches of a process."""

    __slots__ = ("_call", "_catching_up", "_clock", "_live", "_queued")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._live: deque[Job] = deque()
        self._catching_up: deque[Job] = deque()
        self._queued: set[int] = set()
        self._call: IDelayedCall | None = None

    def add(self, job: Job, *, live: bool) -> None:
        """Call `job.step` in this and the next turns until it returns 0; a job that is already queued is ignored."""
        if id(job) in self._queued:
            return
        self._queued.add(id(job))
        (self._live if live else self._catching_up).append(job)
        if self._call is None:
            self._call = self._clock.callLater(0, self._turn)

    def stop(self) -> None:
        """Forget all jobs."""
        self._live.clear()
        self._catching_up.clear()
        self._queued.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _turn(self) -> None:
        self._call = None
        end = self._clock.seconds() + TURN_TIME
        spent = self._run(self._live, TURN_COST - CATCH_UP_COST if self._catching_up else TURN_COST, end)
        # Do at least one step, even if the turn is late.
        self._run(self._catching_up, max(1, TURN_COST - spent), max(end, self._clock.seconds() + TURN_TIME / 4))
        if (self._live or self._catching_up) and self._call is None:
            self._call = self._clock.callLater(0, self._turn)

    def _run(self, jobs: deque[Job], cost: int, end: float) -> int:
        spent = 0
        while jobs and spent < cost and self._clock.seconds() <= end:
            job = jobs.popleft()
            self._queued.discard(id(job))
            try:
                step = job.step()
            except Exception:
                log.failure("a watch failed", event="internal_error")
                continue
            if step and id(job) not in self._queued:
                self._queued.add(id(job))
                jobs.append(job)
            spent += step
        return spent
