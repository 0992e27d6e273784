"""The place of one child among the processes of a daemon: it stays while the child that fills it is replaced."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

from mcproxy.daemon.processes.children import Child, Role

LONGEST_DELAY = 30.0
"""Seconds between the end of a child and its successor's start, at most."""
SETTLED = 60.0
"""Seconds of life after which the end of a child counts as its first."""


class Slot:
    """One worker's or the keeper's place."""

    def __init__(self, role: Role, index: int) -> None:
        self.role = role
        self.index = index
        self.child: Child | None = None
        """The child that starts or serves; None while its successor waits for its time."""
        self.serving = False
        """Whether `child` has a configuration in force."""
        self.restarts = 0
        self.waiting: IDelayedCall | None = None
        """The start of the successor."""
        self.delayed = False
        self.leaving: list[Child] = []
        """Children that go on serving until their successor does."""
        self._deaths = 0  # in a row
        self._wanting: list[Deferred[Child | None]] = []

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}" if self.role is Role.WORKER else str(self.role)

    def delay(self, lived: float) -> float:
        """Return the seconds until the successor of a child that has ended after `lived` seconds is started.

        The first one starts at once; then it is 1, 2, 4 … 30 s.
        """
        self._deaths = 1 if lived >= SETTLED else self._deaths + 1
        return 0.0 if self._deaths == 1 else min(2.0 ** (self._deaths - 2), LONGEST_DELAY)

    def child_serving(self) -> Deferred[Child | None]:
        """Return a Deferred that fires with a child that has a configuration in force, or with None if that takes long.

        So it does once a successor has ended early, too.
        """
        wanted: Deferred[Child | None] = Deferred()
        if self.waiting is not None and self.delayed:
            wanted.callback(None)
        elif self.serving:
            wanted.callback(self.child)
        else:
            self._wanting.append(wanted)
        return wanted

    def serves(self) -> None:
        """Its child has a configuration in force now."""
        assert self.child is not None
        self.serving = True
        self._tell(self.child)

    def wait(self, start: IDelayedCall, *, delayed: bool) -> None:
        """Its next child comes with `start`; `delayed`: not at once."""
        self.waiting, self.delayed = start, delayed
        if delayed:
            self._tell(None)

    def _tell(self, child: Child | None) -> None:
        wanting, self._wanting = self._wanting, []
        for wanted in wanting:
            if not wanted.called:
                wanted.callback(child)

    def empty(self) -> None:
        """Its child has ended, or is no longer its child."""
        self.child = None
        self.serving = False

    def give_up(self) -> None:
        """Start no successor."""
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None
