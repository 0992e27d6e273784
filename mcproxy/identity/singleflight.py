"""Singleflight: one call for each key at a time, whose result is shared by all waiters.

A waiter that is cancelled (its client has disconnected) removes only itself. A call that has not begun is dropped with
its last waiter. A running call continues, because its result is cached for the next request. A call waits for a slot in
the queue of each of its clients, so no client has to wait in the queue of another client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from mcproxy.dispatch.fair_queue import FairQueue
from mcproxy.net.failures import failure

# A fair queue for a limited number of slots ("places") for concurrent calls to a server; pure.
#
# Each waiter has a key: a client's address before authentication, a user afterwards. Keys take turns, and one key holds
# at most a share of the places. A key whose calls often fail waits after the others, and a key with a successful call
# before them. So a client with a thousand invalid tokens delays others by one turn, and cannot use up the places or the
# queue. A client with a thousand addresses (IPv6) can delay unknown clients, but not those that have succeeded.

_OFTEN = 4.5  # with as many weighted failures (older ones count less), e.g. five in a short time, a key waits last
_HALF_LIFE = 60.0  # seconds after which a failure or a success counts half
_KEPT = 4096  # maximum number of keys with known failures, and of keys with a success


class NoRoomError(Exception):
    """The queue is full."""


class Waiter(Protocol):
    """A waiter for a place."""

    def granted(self) -> None:
        """Called when the waiter gets a place, which `release` returns."""

    def evicted(self) -> None:
        """Called when the waiter is removed from the queue in favour of a key with fewer waiters."""


class FairSemaphore:
    """The places of one server."""

    __slots__ = (
        "_failing",
        "_free",
        "_granting",
        "_held",
        "_history",
        "_max_waiting",
        "_preferred",
        "_seconds",
        "_share",
        "_waiting",
    )

    def __init__(self, places: int, *, share: int, max_waiting: int, seconds: Callable[[], float]) -> None:
        """`share` is the maximum number of places of one key; `seconds` returns the time."""
        self._free = places
        self._share = max(1, share)
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._granting = False
        self._held: dict[str, int] = {}
        self._preferred: FairQueue[Waiter] = FairQueue()  # keys that had succeeded before they queued
        self._waiting: FairQueue[Waiter] = FairQueue()
        self._failing: FairQueue[Waiter] = FairQueue()  # keys that had failed often before they queued
        self._history = _CallHistory()

    def __len__(self) -> int:
        """Return the number of waiters."""
        return len(self._preferred) + len(self._waiting) + len(self._failing)

    @property
    def places(self) -> int:
        """The total number of places, free and held."""
        return self._free + sum(self._held.values())

    @property
    def largest_share(self) -> int:
        """The largest number of places that one key holds."""
        return max(self._held.values(), default=0)

    def acquire(self, key: str, waiter: Waiter) -> bool:
        """Take a place if one is available for `key`; else add `waiter` to the queue and return False.

        Raises NoRoomError if the queue is full and no key has more waiters than `key` would have.
        """
        if self._free and self._has_share(key):
            self._take(key)
            return True
        queue = self._queue_for(key)
        if len(self) >= self._max_waiting:
            self._make_room(key, queue)
        queue.push(key, waiter)
        return False

    def leave(self, key: str, waiter: Waiter) -> None:
        """Remove a waiter from the queue, if it is in the queue."""
        for queue in self._queues:
            try:
                queue.remove(key, waiter)
            except (KeyError, ValueError):
                continue
            return

    def release(self, key: str) -> None:
        """Release a place, and give it to the next waiter."""
        held = self._held[key] - 1
        if held:
            self._held[key] = held
        else:
            del self._held[key]
        self._free += 1
        if self._granting:  # a call that ended at once: the loop below continues, so that a long queue does not recurse
            return
        self._granting = True
        try:
            while self._free:
                turn = None
                for queue in self._queues:  # compiled, a generator expression would take one of each queue
                    turn = queue.pop_eligible(self._has_share)
                    if turn is not None:
                        break
                if turn is None:
                    return
                self._take(turn[0])
                turn[1].granted()
        finally:
            self._granting = False

    def record(self, key: str, *, failed: bool) -> None:
        """Record whether a call of `key` failed."""
        self._history.record(key, self._seconds(), failed=failed)

    def _has_share(self, key: str) -> bool:
        return self._held.get(key, 0) < self._share

    def _take(self, key: str) -> None:
        self._free -= 1
        self._held[key] = self._held.get(key, 0) + 1

    @property
    def _queues(self) -> tuple[FairQueue[Waiter], ...]:
        """The queues in the order in which they are served."""
        return self._preferred, self._waiting, self._failing

    def _queue_for(self, key: str) -> FairQueue[Waiter]:
        if self._history.often(key, self._seconds()):
            return self._failing
        return self._preferred if self._history.has_succeeded(key) else self._waiting

    def _make_room(self, key: str, queue: FairQueue[Waiter]) -> None:
        last = next(each for each in reversed(self._queues) if each is queue or len(each))
        if last is queue and not queue.can_make_room_for(key):
            raise NoRoomError
        last.pop_newest_of_fullest().evicted()


class _CallHistory:
    """The recent failures of each key's calls, and the keys with a success.

    These are two tables, since a client that fails under many keys must not evict keys that have succeeded.
    """

    __slots__ = ("_counts", "_succeeded")

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[float, float, float]] = OrderedDict()  # failures, successes, their time
        self._succeeded: OrderedDict[str, None] = OrderedDict()  # the latest last

    def record(self, key: str, now: float, *, failed: bool) -> None:
        failures, successes = self._current(key, now)
        self._counts[key] = (failures + failed, successes + (not failed), now)
        self._counts.move_to_end(key)
        if len(self._counts) > _KEPT:
            self._counts.popitem(last=False)
        if not failed:
            self._succeeded[key] = None
            self._succeeded.move_to_end(key)
            if len(self._succeeded) > _KEPT:
                self._succeeded.popitem(last=False)

    def has_succeeded(self, key: str) -> bool:
        """Whether a call of a key has ever succeeded."""
        return key in self._succeeded

    def often(self, key: str, now: float) -> bool:
        """Whether calls of a key failed often, and more often than they succeeded."""
        failures, successes = self._current(key, now)
        return failures >= _OFTEN and failures > successes

    def _current(self, key: str, now: float) -> tuple[float, float]:
        failures, successes, then = self._counts.get(key, (0.0, 0.0, now))
        factor = 0.5 ** ((now - then) / _HALF_LIFE)
        return failures * factor, successes * factor


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightError(Exception):
    """A call was not made, or had no result in time."""


class ReviewLoad(NamedTuple):
    """The present load of a reviewer."""

    waiting: int
    """Reviews that wait for a place."""
    running: int
    """Reviews that were sent."""
    cached: int
    """Cached results, some of which may have expired."""
    places: int = 0
    """The maximum number of concurrent reviews."""
    largest_share: int = 0
    """The largest number of these places that one client or user holds."""


class SingleFlight(Generic[K, V]):
    """Calls by key; each call runs when it gets one of `places`."""

    def __init__(self, clock: IReactorTime, places: FairSemaphore, *, timeout: float) -> None:
        """`timeout` is in seconds, and includes the wait for a place."""
        self._clock = clock
        self._timeout = timeout
        self._places = places
        self._calls: dict[K, _Call[V]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """The number of calls that have not begun and wait for a place."""
        return sum(not call.begun for call in self._calls.values())

    def join(self, key: K, function: Callable[[], Coroutine[Deferred[Any], Any, V]], *, turn: str) -> Awaitable[V]:
        """Return the result for `key`: of the running or waiting call, else of a new call of `function`.

        `turn` is the key under which it waits for a place. Raises the errors of `function`, and `SingleFlightError`.
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
        while call.waiting:  # calling one waiter can cancel another
            call.waiting.pop(0).callback(result)  # with a Failure, `callback` makes the Deferred fail


class _Call(Generic[V]):
    """One call: the waiters for its result, and the keys under which it waits for a place."""

    __slots__ = ("_finished", "_function", "_places", "_running", "_timeout", "_turns", "begun", "timer", "waiting")

    timer: IDelayedCall

    def __init__(
        self,
        places: FairSemaphore,
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
        """Return another Deferred that waits for the result; its cancellation removes it."""
        waiter: Deferred[V] = Deferred(self._leave)
        self.waiting.append(waiter)
        return waiter

    def wait_in_turn(self, turn: str) -> None:
        """Wait for a place also under the key `turn`."""
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
        """Run the call, which has a place under the key `turn`."""
        self._turns.pop(turn, None)
        self._leave_turns()
        self.begun = True

        def done(result: V | Failure) -> None:
            if isinstance(result, Failure) and isinstance(result.value, CancelledError) and not self.timer.active():
                result = self._late()
            self._finished(result)
            self._places.release(turn)

        async def call() -> V:  # every failure ends in `done`, otherwise the place would be lost
            return await self._function()

        self._running = Deferred.fromCoroutine(call())
        self._running.addBoth(done)

    def lose_turn(self, turn: str) -> None:
        """Note that the call does not wait under the key `turn` any more."""
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
