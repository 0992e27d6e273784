"""Singleflight: one call for each key at a time, whose result is shared by all waiters.

A waiter that is cancelled (its client is gone) removes only itself. A call that has not begun is dropped with its last
waiter; one that has begun continues, because its result is cached for the next request. A call waits for a place in the
turn of each of its clients, so no client has to wait in the turn of another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from mcproxy.identity.fair_places import FairPlaces, NoRoomError
from mcproxy.net.failures import failure

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightError(Exception):
    """A call was not made, or had no result in time."""


class ReviewLoad(NamedTuple):
    """What a reviewer does now."""

    waiting: int
    """Reviews that wait for a place."""
    running: int
    """Reviews that were sent."""
    cached: int
    """Results that are kept, some of which may have expired."""
    places: int = 0
    """How many can run at the same time."""
    largest_share: int = 0
    """How many of these places the client, or user, with the most has."""


class SingleFlight(Generic[K, V]):
    """Calls by key, each made when it has one of `places`."""

    def __init__(self, clock: IReactorTime, places: FairPlaces, *, timeout: float) -> None:
        """`timeout` is in seconds, the wait for a place included."""
        self._clock = clock
        self._timeout = timeout
        self._places = places
        self._calls: dict[K, _Call[V]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """How many of the calls have not begun: they wait for a place."""
        return sum(not call.begun for call in self._calls.values())

    def join(self, key: K, function: Callable[[], Coroutine[Deferred[Any], Any, V]], *, turn: str) -> Awaitable[V]:
        """Return the result for `key`: of the call that is under way, else of a new call of `function`.

        `turn` is the key under which it waits for a place. Raises what `function` raises, and `SingleFlightError`.
        """
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(
                self._places, function, lambda result: self._finish(key, result), self._timeout
            )
            call.timer = self._clock.callLater(self._timeout, call.time_out)
        waiter = call.waiter()
        call.wait_in_turn(turn)
        return waiter

    def _finish(self, key: K, result: V | Failure) -> None:
        call = self._calls.pop(key)
        if call.timer.active():
            call.timer.cancel()
        while call.waiting:  # one that is called may cancel another
            call.waiting.pop(0).callback(result)  # a Failure given to `callback` fails it


class _Call(Generic[V]):
    """One call: the waiters for its result, and the keys under which it waits for a place."""

    __slots__ = ("_finished", "_function", "_places", "_running", "_timeout", "_turns", "begun", "timer", "waiting")

    timer: IDelayedCall

    def __init__(
        self,
        places: FairPlaces,
        function: Callable[[], Coroutine[Deferred[Any], Any, V]],
        finished: Callable[[V | Failure], None],
        timeout: float,
    ) -> None:
        self.waiting: list[Deferred[V]] = []
        self._places = places
        self._function = function
        self._finished = finished
        self._timeout = timeout
        self._turns: dict[str, _Turn[V]] = {}
        self.begun = False
        self._running: Deferred[Any] | None = None

    def waiter(self) -> Deferred[V]:
        """Return one more Deferred that waits for the result; cancelling removes it."""
        waiter: Deferred[V] = Deferred(self._leave)
        self.waiting.append(waiter)
        return waiter

    def wait_in_turn(self, turn: str) -> None:
        """Wait for a place under the key `turn` as well."""
        if self.begun or turn in self._turns:
            return
        entry = _Turn(self, turn)
        try:
            has_place = self._places.acquire(turn, entry)
        except NoRoomError:
            if not self._turns:
                self._finished(failure(SingleFlightError("too many requests are waiting for an answer")))
            return
        if has_place:
            self.begin(turn)
        else:
            self._turns[turn] = entry

    def begin(self, turn: str) -> None:
        """Make the call; it has a place under the key `turn`."""
        self._turns.pop(turn, None)
        self._leave_turns()
        self.begun = True

        def done(result: V | Failure) -> None:
            if isinstance(result, Failure) and isinstance(result.value, CancelledError) and not self.timer.active():
                result = self._late()
            self._finished(result)
            self._places.release(turn)

        async def call() -> V:  # whatever fails, it ends in `done`, or the place would be lost
            return await self._function()

        self._running = Deferred.fromCoroutine(call())
        self._running.addBoth(done)

    def lose_turn(self, turn: str) -> None:
        """Note that it no longer waits under the key `turn`."""
        del self._turns[turn]
        if not self._turns:
            self._finished(failure(SingleFlightError("too many requests are waiting for an answer")))

    def time_out(self) -> None:
        """End the call, whether it has begun or not."""
        if self._running is not None:
            self._running.cancel()
        else:
            self._leave_turns()
            self._finished(self._late())

    def _late(self) -> Failure:
        return failure(SingleFlightError(f"no answer within {self._timeout:g} s"))

    def _leave(self, gone: Deferred[V]) -> None:
        if gone not in self.waiting:
            return
        self.waiting.remove(gone)
        if not self.waiting and not self.begun:
            self._leave_turns()
            self._finished(failure(CancelledError()))

    def _leave_turns(self) -> None:
        for turn, entry in self._turns.items():
            self._places.leave(turn, entry)
        self._turns.clear()


class _Turn(Generic[V]):
    """A call's entry in the queue of one key."""

    __slots__ = ("_call", "_key")

    def __init__(self, call: _Call[V], key: str) -> None:
        self._call = call
        self._key = key

    def granted(self) -> None:
        self._call.begin(self._key)

    def evicted(self) -> None:
        self._call.lose_turn(self._key)
