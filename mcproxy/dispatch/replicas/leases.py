"""One limit at one replica: its leases, the requests for them, and its parts without Redis. Pure; time is an argument.

Without a lease, a key has an equal part of the limit at every replica, so most keys never have one. If a key's demand
at a replica comes near that part, the replica takes a lease, and announces that it wants more. Then the others lease
only as much of the key as they want. When no replica wants more than an equal part, the leases are released.

    leases.demanded(demands, seconds)      # process the demand that the table has counted
    asks = leases.asks(now)                # the requests to send
    leases.answered(asks, answer, now)     # process the response
    leases.lost()                          # no response for the lifetime of a lease: equal parts of all keys
    leases.changes()                       # the shares to set in the table

Every replica calculates its part (an equal part, or a fair one if replicas want different amounts). `lease.lua` grants
at most the free amount. So if a replica has a wrong or old view of the others, a part can be too small for a moment,
but the sum is never too large.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mcproxy.dispatch.replicas.script import Ask, How, LimitAnswer
from mcproxy.dispatch.tables.limit_shares import Demand, LimitId, Share
from mcproxy.kube.numbers import plain_number

#: The fraction of a limit that a replica admits before it knows the others; of a limit in whole requests at least one.
_UNKNOWN = 0.05
#: The fraction of an equal part that an idle replica keeps while others want more than the limit, so that its first
#: request is admitted without waiting.
_IDLE = 0.01
#: Maximum of keys of one limit for which one replica requests leases. Other keys have equal parts.
MAX_KEYS = 256
# Fractions of the equal part: a key that wants more than the first takes a lease; less than the second releases it.
_TAKE_ABOVE = 0.7
_RELEASE_BELOW = 0.5
# Seconds for which a lease is kept while the demand is low.
_KEEP = 3.0
# A lease exceeds the offered rate by this factor: an equal limit would refuse requests that arrive close together.
_HEADROOM = 1.05
# A larger offered rate counts as this multiple of the limit, so that a flood at one replica leaves the others a part.
_MOST = 2.0
# Time constants (seconds) for smoothing a rate: for a change that may be chance, because requests arrive at random
# times, and for a significant change. Without smoothing, chance would resize leases all the time, and a released part
# is unused until another replica requests it.
_STEADY = 4.0
_CHANGED = 0.1
_WINDOW = 1.0  # time constant (seconds) of the difference between arrived and expected requests
_DEVIATIONS = 3.5  # standard deviations beyond which a difference is significant
# Time constant (seconds) for smoothing a number in flight; it is shorter for large numbers, of which one request is a
# small fraction.
_MEMORY = 0.5
_REQUESTS = 25
_NOTHING = Demand(0, 0, 0, 0)
# A demand below this is negligible.
_LITTLE = 0.01


@dataclass(frozen=True, slots=True)
class LeasedLimit:
    """A shared limit of the configuration."""

    id: LimitId
    amount: float  # requests a second, or the maximum in flight
    burst: int = 0  # burst of a token bucket

    @property
    def whole(self) -> bool:
        """Whether the limit counts in whole numbers."""
        return self.id.kind != "bucket"

    @property
    def label(self) -> str:
        """The text of the limit, which replicas compare and operators read."""
        if self.id.kind == "bucket":
            return f"qps {plain_number(self.amount)}, burst {self.burst}"
        return f"{'max' if self.id.kind == 'short' else 'maxLongRunning'} {plain_number(self.amount)}"


@dataclass(slots=True)
class Changes:
    """The shares to set in the table."""

    default: Share | None = None  # the share of all keys without a lease; None: unchanged
    keys: dict[int, Share | None] = field(default_factory=dict)  # shares by key; None: back to the default share


class KeyDemand:
    """The demand of one key at one replica, smoothed. More than `most` counts as `most`."""

    __slots__ = ("_more", "_variance", "in_flight", "want")

    def __init__(self, want: float = 0.0) -> None:
        self.want = want
        self.in_flight = 0
        # For about the last second: the number of arrived requests minus the expected number, and its variance by
        # chance.
        self._more = self._variance = 0.0

    def add_rate(self, taken: int, refused: int, seconds: float, most: float) -> None:
        """Count the requests admitted and refused in the last `seconds`."""
        came = min(taken + refused, most * seconds)
        expected = self.want * seconds
        kept = math.exp(-seconds / _WINDOW)
        self._more = self._more * kept + came - expected
        self._variance = self._variance * kept + max(expected, came / 4)
        if abs(self._more) > _DEVIATIONS * math.sqrt(self._variance + 1.0):
            self._more = self._variance = 0.0
            self._move(came / seconds, seconds, _CHANGED)
        else:
            self._move(came / seconds, seconds, _STEADY)

    def add_in_flight(self, in_flight: int, refused: int, seconds: float, most: float) -> None:
        """Count the requests in flight, and those refused in the last `seconds`; a rise applies at once."""
        self.in_flight = in_flight
        want = min(in_flight + refused, most)
        self.want = max(self.want, want)
        self._move(want, seconds, min(_MEMORY, _REQUESTS / max(self.want, 1.0)))

    def _move(self, want: float, seconds: float, memory: float) -> None:
        self.want += (want - self.want) * (1.0 - math.exp(-seconds / memory))


class _Key:
    """A key for which this replica has or requests a lease."""

    __slots__ = ("demand", "keep_until", "lease", "me", "refused", "share", "wanted_more", "wants")

    def __init__(self, want: float) -> None:
        self.demand = KeyDemand(want)
        self.refused = False  # whether requests were refused in the last interval
        self.lease: float | None = None  # the leased part; None: the equal part
        self.share: Share | None = None  # the share in the table; None: the default share
        self.wants: tuple[float, ...] = ()  # last seen wants of all replicas with a lease; this replica's is at `me`
        self.me = 0
        self.keep_until = 0.0
        self.wanted_more = False  # whether a replica wants more of the key, by the last response


class Leases:
    """The leases of this replica on the keys of one limit. `lasts`: the lifetime of a lease in seconds."""

    def __init__(self, limit: LeasedLimit, lasts: float) -> None:
        self.limit = limit
        self.members = 0  # last seen number of replicas; 0: no response yet
        self.differing = ""  # last seen replica whose configured limit differs
        self.established = False  # whether the other replicas know this one
        self.seen = 0  # time of the last response, by Redis' clock in ms
        self._lasts = lasts
        self._settled = True  # whether the state in Redis is old enough to know all members
        self._rank = 0
        self._amount = limit.amount  # last seen minimum of the amounts of all replicas
        self._keys: dict[int, _Key] = {}
        # (time, part of a key without a lease) in the last `lasts` seconds. The smallest part applies, because a part
        # must not grow before other replicas' leases above their equal parts have ended.
        self._parts: deque[tuple[float, float]] = deque([(0.0, unknown_part(limit.amount, whole=limit.whole))])
        self._default: Share | None = None  # the default share in the table
        self._released: list[int] = []

    @property
    def part(self) -> float:
        """The part of a key without a lease."""
        return min(part for _, part in self._parts)

    def change(self, limit: LeasedLimit, now: float) -> None:
        """Apply another amount or burst; leases stay until the next response, cut to the new amount."""
        self.limit, self._amount = limit, limit.amount
        if self.members and self.established:
            self._parts = deque([(now, self._equal_part())])
        else:
            self._parts = deque([(now, unknown_part(limit.amount, whole=limit.whole))])
        for key in self._keys.values():
            if key.lease is not None:
                key.lease = min(key.lease, limit.amount)

    def demanded(self, demands: Iterable[Demand], seconds: float, now: float) -> None:
        """Process the demands that the table has counted in the last `seconds`."""
        asked = {demand.key: demand for demand in demands}
        for name, key in self._keys.items():
            self._count(key, asked.pop(name, _NOTHING), seconds, now)
        if self.members < 2:
            return
        threshold = self.part * _TAKE_ABOVE
        for name, demand in asked.items():
            want = self._offered(demand, seconds)
            if (demand.refused or want > threshold) and len(self._keys) < MAX_KEYS:
                self._keys[name] = key = _Key(want)
                self._count(key, demand, seconds, now)

    def _offered(self, demand: Demand, seconds: float) -> float:
        if self.limit.whole:
            offered: float = demand.in_flight + demand.refused
        else:  # a few simultaneous requests are not a rate yet
            offered = (demand.taken + demand.refused) / (seconds if demand.refused else max(seconds, 1.0))
        return min(offered, self._amount)

    def _count(self, key: _Key, demand: Demand, seconds: float, now: float) -> None:
        if self.limit.whole:
            key.demand.add_in_flight(demand.in_flight, demand.refused, seconds, self._amount)
        else:
            key.demand.add_rate(demand.taken, demand.refused, seconds, _MOST * self._amount)
        if demand.refused or key.demand.want > self._equal_part() * _RELEASE_BELOW + _LITTLE:
            key.keep_until = now + _KEEP

    def asks(self, now: float) -> list[Ask]:
        """Return the requests for the next exchange.

        Reductions apply from now on, because Redis can lease the freed part to others even if its response is lost.
        """
        asks = [self._ask(name, key, now) for name, key in self._keys.items()]
        for ask, key in zip(asks, self._keys.values(), strict=True):
            held = self.part if key.lease is None else key.lease
            key.lease = min(held, self.part if ask.how is How.RELEASE else ask.ask)
        return asks

    def _ask(self, name: int, key: _Key, now: float) -> Ask:
        whole, members = self.limit.whole, max(1, self.members)
        want = self._want(key, now)
        wants = list(key.wants) or [want]
        wants[key.me] = want
        # The number of replicas without a lease, which keep their equal parts.
        without = max(0, members - len(wants))
        fair = fair_part(
            self._amount * (members - without) / members,
            wants,
            key.me,
            idle_part(self._amount, members, whole=whole),
            whole=whole,
        )
        held = self.part if key.lease is None else key.lease
        if not self._settled:
            fair = max(fair, held)  # the other replicas have not reported their parts yet
        how = How.RENEW
        if want > self._equal_part():
            how = How.WANT_MORE
        elif now >= key.keep_until and not key.wanted_more:
            how = How.RELEASE
        return Ask(name, fair, key.demand.in_flight, held, want, how)

    def _want(self, key: _Key, now: float) -> float:
        want = key.demand.want
        if want < _LITTLE:
            return 0.0
        if not self.limit.whole:
            return want * _HEADROOM
        return min(max(want, 1.0) if now < key.keep_until else want, self._amount)

    def answered(self, asks: Sequence[Ask], answer: LimitAnswer, now: float) -> None:
        """Process the response to `asks`."""
        settled = self._settled = answer.known_for >= self._lasts
        alone = answer.members == 1 and settled
        self.seen = answer.time
        if not self.established and (alone or (answer.seen and settled) or answer.joined_for >= self._lasts):
            self.established = True
            self._parts.clear()
        # After a loss of its state, Redis learns the replicas one after the other.
        self.members = answer.members if settled else max(answer.members, self.members)
        self._rank = answer.rank
        self._amount = min(answer.limit, self.limit.amount)
        self.differing = answer.differing
        if self.established:
            self._remember(self._equal_part(), now)
        elif self.members > 1:
            self._parts = deque([(now, unknown_part(self._amount, whole=self.limit.whole))])
        for ask, granted in zip(asks, answer.granted, strict=True):
            key = self._keys.get(ask.key)
            if key is None:
                continue  # the leases have expired meanwhile
            key.lease, key.wants, key.me = granted.lease, granted.wants, granted.me
            if granted.lease is None:
                self._release(ask.key)
        noted = set(answer.noted)
        for name in answer.noted:
            if name not in self._keys and len(self._keys) < MAX_KEYS:
                self._keys[name] = _Key(0.0)
        for name, key in self._keys.items():
            key.wanted_more = name in noted

    def lost(self, now: float) -> None:
        """Drop expired leases; until the next response every key has an equal part, by the last number of replicas."""
        self.seen = 0
        for name in list(self._keys):
            self._release(name)
        self._parts = deque([(now, self._equal_part())])
        if self.members:
            self.established = True

    def _equal_part(self) -> float:
        return equal_part(self._amount, max(1, self.members), self._rank, whole=self.limit.whole)

    def _remember(self, part: float, now: float) -> None:
        self._parts.append((now, part))
        while self._parts[0][0] < now - self._lasts:
            self._parts.popleft()

    def _release(self, name: int) -> None:
        if self._keys.pop(name).share is not None:
            self._released.append(name)

    def changes(self) -> Changes:
        """Return the shares that have changed since the last call."""
        changes = Changes()
        default = self._share_of(self.part)
        if default != self._default:
            changes.default = self._default = default
        for name in self._released:
            changes.keys[name] = None
        self._released.clear()
        for name, key in self._keys.items():
            if key.lease is not None:
                share = self._share_of(key.lease)
                if share != key.share:
                    changes.keys[name] = key.share = share
        return changes

    def _share_of(self, part: float) -> Share:
        if self.limit.whole:
            return Share(maximum=int(part))
        return bucket_share(part, self._amount, self.limit.burst, self.members, known=self.established)


def equal_part(limit: float, members: int, rank: int, *, whole: bool) -> float:
    """Return the part of a replica that holds no lease; `lease.lua` calculates the same."""
    if not whole:
        return limit / members
    part, left = divmod(int(limit), members)
    return part + 1 if rank < left else part


def unknown_part(limit: float, *, whole: bool) -> float:
    """Return the part of a replica that has joined, but that the others do not know yet."""
    part = limit * _UNKNOWN
    return min(limit, max(1, int(part))) if whole else part


def idle_part(limit: float, members: int, *, whole: bool) -> float:
    """Return the minimum part under a lease; 0 if the limit is too small to leave a part of it unused."""
    part = limit / members * _IDLE
    if not whole:
        return part
    return max(1, int(part)) if limit >= 20 * members else 0


def fair_part(limit: float, wants: Sequence[float], me: int, least: float, *, whole: bool) -> float:
    """Return the fair part of `wants[me]`. Each want counts as at least `least`; an unwanted rest is divided equally.

    If the wants exceed the limit, a rate is divided in proportion to the offered rates, as a single bucket would admit
    it. Then no bucket is ever full, so no token is lost. With whole numbers, the largest wants are cut to an equal
    number, and each other replica gets its want. A proportional division would be wrong there, because clients' retries
    at a full maximum do not show their need.

    The parts add up to `limit`, also in whole numbers if each replica uses its position in the same `wants`.
    """
    wants = [max(want, least) for want in wants]
    wanted = math.fsum(wants)
    if wanted <= limit:
        parts = [want + (limit - wanted) / len(wants) for want in wants]
    elif not whole:
        return limit * wants[me] / wanted
    else:
        parts = _level(limit, wants)
    if not whole:
        return parts[me]
    floors = [math.floor(part + 1e-9) for part in parts]
    left = round(limit) - sum(floors)
    # Add one to the parts that were rounded down the most, in order.
    order = sorted(range(len(wants)), key=lambda i: (floors[i] - parts[i], i))
    return floors[me] + (1 if me in order[:left] else 0)


def _level(limit: float, wants: Sequence[float]) -> list[float]:
    left, parts = limit, list(wants)
    for count, i in enumerate(sorted(range(len(wants)), key=lambda i: wants[i])):
        parts[i] = min(wants[i], left / (len(wants) - count))
        left -= parts[i]
    return parts


def bucket_share(rate: float, qps: float, burst: int, members: int, *, known: bool = True) -> Share:
    """Return rate and burst for a part with the rate `rate` of a bucket with `qps` and `burst` over all `members`.

    A replica that is not `known` to the others yet has little of the rate, but its equal part of the burst from the
    first request on. `members` is then the number of replicas that it has seen itself, possibly 0.

    Every replica has one token of the burst, because a smaller bucket admits no request. Half of the rest is divided
    equally, for replicas with few requests that arrive close together, and half in proportion to the rate. A burst
    below the number of replicas counts as that number.
    """
    if members <= 1 and rate >= qps:
        return Share(rate=rate, burst=burst)
    members = max(1, members)
    part = (rate / qps + 1 / members) / 2 if known else 1 / members
    return Share(rate=rate, burst=min(burst, 1.0 + max(0, burst - members) * part))
