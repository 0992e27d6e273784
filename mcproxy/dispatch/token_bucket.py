"""Token buckets by key, of one float each; pure, time is an argument.

A bucket is stored as the time at which it will be full: taking a token moves that time on by 1/qps, and there is a
token as long as it is at most burst/qps ahead. So nothing has to be refilled, and a bucket that was not used for
burst/qps seconds is full again, as every bucket is at first: it can be dropped without effect. The table has two
generations for that; what was not used during a whole one is dropped with it at once.

A bucket that is not full is never dropped: a user with many names could reset a limit by pushing names out of the
table. When the table has no room even without the full ones, keys that are not in it share one overflow bucket until
there is room again. New keys are then limited more than necessary, and a client that fills the table gains no more than
that one shared bucket.
"""

from __future__ import annotations

#: Keys in a table: about 10 MB without the names.
LIMIT = 131072

# The tolerance with which a token is granted, in tokens and in seconds: a wall clock's floats are 2.4e-7 s apart, which
# must not cost a token. The tolerance is not credited, so it does not add up.
_CLOSE = 1e-6
_CLOSE_TIME = 1e-6
# The least rate; a rate of 0 would mean that a bucket is never full.
_SLOWEST = 1e-9
_SHORTEST_GENERATION = 1.0
# Seconds between two searches of a table without room; one takes about 10 ms.
_SEARCH_EVERY = 5.0


class TokenBuckets:
    """Buckets of `burst` tokens that gain `qps` tokens a second. All begin full.

    `time` is in seconds and may be that of a wall clock: if it goes back, it counts as standing still.
    """

    __slots__ = (
        "_epoch",
        "_floor",
        "_generation_ends",
        "_interval",
        "_limit",
        "_now",
        "_old",
        "_overflow",
        "_search_again",
        "_window",
        "_young",
        "burst",
        "qps",
    )

    def __init__(self, qps: float, burst: int, time: float, limit: int = LIMIT) -> None:
        """`limit`: the maximum number of keys with a bucket of their own."""
        self._epoch = time  # times are kept from here on: small numbers are exact ones
        self._now = 0.0
        self._limit = limit
        self._young: dict[str, float] = {}  # key -> when it will be full; used in this generation
        self._old: dict[str, float] = {}  # used in the one before, not in this
        self._overflow = 0.0  # the bucket that is shared when the table has no room
        self._floor = 0.0  # when the buckets that are in no table will be full: later than now only after a `resize`
        self._search_again = 0.0
        self._set(qps, burst)

    def take(self, key: str, time: float) -> bool:
        """Take a token; False if there is none."""
        now = time - self._epoch
        if now < self._now:
            now = self._clock_went_back(time)
        self._now = now
        if now >= self._generation_ends:
            self._drop_idle(now)
        full_at = self._young.get(key)
        if full_at is None:
            return self._take_first(key, time)
        if full_at < now:
            full_at = now
        full_at += self._interval
        if full_at - now > self._window:
            return False
        self._young[key] = full_at
        return True

    def refund(self, key: str) -> None:
        """Give back a token of a request that was not admitted after all."""
        for table in (self._young, self._old):
            if key in table:
                table[key] -= self._interval
                return
        if self._full:
            self._overflow -= self._interval

    def fill(self, key: str, time: float) -> float:
        """Return how many tokens there are."""
        return self.burst - max(0.0, self._full_at(key) - self._read(time)) / self._interval

    def wait(self, key: str, time: float) -> float:
        """Return the seconds until there is a token; 0 if there is one. Only for a burst of at least 1."""
        return max(0.0, 1.0 - self.fill(key, time)) * self._interval

    def resize(self, qps: float, burst: int, time: float) -> None:
        """Change rate and size; every bucket keeps its tokens, cut to the new size."""
        now = self._read(time)
        full = max(self._floor, now)  # when the buckets that are in no table will be full
        added, old_interval = burst - self.burst, self._interval
        self._set(qps, burst)
        # What is missing, in tokens, is (full_at - now) / interval, and `added` more; there may be 100,000 of them.
        slope = self._interval / old_interval
        shift = now - now * slope + added * self._interval
        self._young = {
            key: full_at * slope + shift
            for table in (self._old, self._young)
            for key, full_at in table.items()
            if full_at > full
        }
        self._old = {}
        self._floor = full * slope + shift
        self._overflow = self._overflow * slope + shift  # where that is less than the floor, the floor counts

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def _full(self) -> bool:
        return len(self._young) + len(self._old) >= self._limit

    def _set(self, qps: float, burst: int) -> None:
        self.qps, self.burst = qps, burst
        self._interval = 1.0 / max(qps, _SLOWEST)
        close = max(_CLOSE * self._interval, min(_CLOSE_TIME, 0.5 * self._interval))
        self._window = burst * self._interval + close
        self._generation_ends = self._now + max(self._window, _SHORTEST_GENERATION)

    def _take_first(self, key: str, time: float) -> bool:
        """Take a token from a bucket that was not used in this generation."""
        if not self.burst:
            return False
        full_at = self._old.pop(key, None)
        if full_at is None:
            if self._full and not self._made_room():
                return self._take_from_overflow()
            full_at = self._floor
        self._young[key] = full_at
        return self.take(key, time)

    def _made_room(self) -> bool:
        """Drop buckets that are full although they were used recently; return whether there is room now."""
        if self._now < self._search_again:
            return False
        self._search_again = self._now + _SEARCH_EVERY
        full = max(self._floor, self._now)
        self._young = {key: at for table in (self._old, self._young) for key, at in table.items() if at > full}
        self._old = {}
        return not self._full

    def _take_from_overflow(self) -> bool:
        full_at = max(self._overflow, self._floor, self._now) + self._interval
        if full_at - self._now > self._window:
            return False
        self._overflow = full_at
        return True

    def _full_at(self, key: str) -> float:
        for table in (self._young, self._old):
            if key in table:
                return table[key]
        return max(self._overflow, self._floor) if self._full else self._floor

    def _read(self, time: float) -> float:
        now = time - self._epoch
        self._now = self._clock_went_back(time) if now < self._now else now
        return self._now

    def _clock_went_back(self, time: float) -> float:
        self._epoch = time - self._now
        return self._now

    def _drop_idle(self, now: float) -> None:
        generation = max(self._window, _SHORTEST_GENERATION)
        # A bucket older than a generation has become full.
        self._old = self._young if now < self._generation_ends + generation else {}
        self._young = {}
        self._generation_ends = now + generation
