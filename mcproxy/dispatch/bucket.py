"""Token buckets, one for each key, at the price of one number each; pure, time comes as an argument.

A bucket is kept as the time at which it will be full: taking a token moves that time on by 1/qps, and there is a token
as long as it lies no more than burst/qps ahead. So nothing has to be topped up, and a bucket that nobody used for
burst/qps seconds is full again, which is how every bucket begins: it can be forgotten without anyone noticing. The
table has two generations for that. What was not used during a whole one is dropped with it, in one go.

A bucket that is not full is never forgotten: whoever has many names could reset his limit by pushing his own names out.
When the table has no room, keys that are not in it share one more bucket until there is room again. That can only limit
a newcomer too much while somebody uses up the table, never anybody too little.
"""

from __future__ import annotations

#: Keys in a table: about 10 MB beside the names themselves.
LIMIT = 131072

# How far a token may be from whole and yet be given, so that the rounding of times costs nobody a token; it is not
# credited, so it does not add up.
_CLOSE = 1e-6
# The least rate; a rate of 0 would mean that a bucket is never full.
_SLOWEST = 1e-9
_SHORTEST_GENERATION = 1.0


class Buckets:
    """Buckets of `burst` tokens that gain `qps` tokens a second. All begin full.

    `time` is in seconds and may be that of a wall clock: if it goes back, it counts as standing still.
    """

    __slots__ = (
        "_elsewhere",
        "_epoch",
        "_floor",
        "_generation_ends",
        "_interval",
        "_limit",
        "_now",
        "_old",
        "_window",
        "_young",
        "burst",
        "qps",
    )

    def __init__(self, qps: float, burst: int, time: float, limit: int = LIMIT) -> None:
        """`limit`: how many keys at the most are kept apart."""
        self._epoch = time  # times are kept from here on: small numbers are exact ones
        self._now = 0.0
        self._limit = limit
        self._young: dict[str, float] = {}  # key -> when it will be full; used in this generation
        self._old: dict[str, float] = {}  # used in the one before, not in this
        self._elsewhere = 0.0  # the bucket that is shared when the table has no room
        self._floor = 0.0  # when the buckets that are in no table will be full: later than now only after a `resize`
        self._set(qps, burst)

    def take(self, key: str, time: float) -> bool:
        """Take a token; False if there is none."""
        now = time - self._epoch
        if now < self._now:
            now = self._went_back(time)
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
        """Give back a token that was taken for something that then did not happen."""
        for table in (self._young, self._old):
            if key in table:
                table[key] -= self._interval
                return
        if self._full:
            self._elsewhere -= self._interval

    def fill(self, key: str, time: float) -> float:
        """Return how many tokens there are."""
        return self.burst - max(0.0, self._full_at(key) - self._read(time)) / self._interval

    def wait(self, key: str, time: float) -> float:
        """Return in how many seconds there will be a token; 0 if there is one. Only for a burst of at least 1."""
        return max(0.0, 1.0 - self.fill(key, time)) * self._interval

    def resize(self, qps: float, burst: int, time: float) -> None:
        """Change rate and size; every bucket keeps the tokens that it has, cut to the new size."""
        now = self._read(time)
        old_burst, old_interval = self.burst, self._interval
        self._set(qps, burst)

        def moved(full_at: float) -> float:
            tokens = old_burst - max(0.0, full_at - now) / old_interval
            return now + max(0.0, burst - tokens) * self._interval

        self._young = {key: moved(full_at) for table in (self._old, self._young) for key, full_at in table.items()}
        self._old = {}
        self._elsewhere, self._floor = moved(self._elsewhere), moved(self._floor)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def _full(self) -> bool:
        return len(self._young) + len(self._old) >= self._limit

    def _set(self, qps: float, burst: int) -> None:
        self.qps, self.burst = qps, burst
        self._interval = 1.0 / max(qps, _SLOWEST)
        self._window = (burst + _CLOSE) * self._interval
        self._generation_ends = self._now + max(self._window, _SHORTEST_GENERATION)

    def _take_first(self, key: str, time: float) -> bool:
        """Take a token from a bucket that was not used in this generation."""
        if not self.burst:
            return False
        full_at = self._old.pop(key, None)
        if full_at is None:
            if self._full:
                return self._take_elsewhere()
            full_at = self._floor
        self._young[key] = full_at
        return self.take(key, time)

    def _take_elsewhere(self) -> bool:
        full_at = max(self._elsewhere, self._floor, self._now) + self._interval
        if full_at - self._now > self._window:
            return False
        self._elsewhere = full_at
        return True

    def _full_at(self, key: str) -> float:
        for table in (self._young, self._old):
            if key in table:
                return table[key]
        return max(self._elsewhere, self._floor) if self._full else self._floor

    def _read(self, time: float) -> float:
        now = time - self._epoch
        self._now = self._went_back(time) if now < self._now else now
        return self._now

    def _went_back(self, time: float) -> float:
        self._epoch = time - self._now
        return self._now

    def _drop_idle(self, now: float) -> None:
        generation = max(self._window, _SHORTEST_GENERATION)
        # What is older than a generation has had the time to become full.
        self._old = self._young if now < self._generation_ends + generation else {}
        self._young = {}
        self._generation_ends = now + generation
