"""How a limit is divided between replicas: equal parts, and fair ones where they want different amounts. Pure.

Every replica calculates the part that it should have; `lease.lua` grants no more of it than is free. Therefore a wrong
or old view of the others can make a part too small for a moment, but never the sum too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mcproxy.dispatch.shared_memory.limit_shares import Share

#: The part of a limit that a replica admits before it knows the others. Counted in whole requests, at least one.
_UNKNOWN = 0.05
#: The fraction of an equal part that an idle replica keeps while others want more than the limit, so that its first
#: request is admitted without waiting.
_IDLE = 0.01


def equal_part(limit: float, members: int, rank: int, *, whole: bool) -> float:
    """Return the part of a replica that holds no lease; `lease.lua` reckons with the same."""
    if not whole:
        return limit / members
    part, left = divmod(int(limit), members)
    return part + 1 if rank < left else part


def unknown_part(limit: float, *, whole: bool) -> float:
    """Return the part of a replica that has joined and not been heard of by the others yet."""
    part = limit * _UNKNOWN
    return min(limit, max(1, int(part))) if whole else part


def idle_part(limit: float, members: int, *, whole: bool) -> float:
    """Return the least part under a lease; 0 of a limit too small to keep some of it unused."""
    part = limit / members * _IDLE
    if not whole:
        return part
    return max(1, int(part)) if limit >= 20 * members else 0


def fair_part(limit: float, wants: Sequence[float], me: int, least: float, *, whole: bool) -> float:
    """Return the fair part of `wants[me]`. `least` is what each wants at least; the unwanted rest is divided equally.

    Where all want more than there is, a rate is divided in proportion to what is offered, as one bucket for all would
    admit it; then also no bucket is ever full, so no token is lost. Of whole numbers each gets what it wants, and those
    that want the most get equally less: how often a full maximum is asked for again says nothing of what is needed.

    The parts add up to `limit`; those of whole numbers, too, if each uses its own place in the same `wants`.
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
    # One more for the replicas whose parts were rounded down the most, in order.
    order = sorted(range(len(wants)), key=lambda i: (floors[i] - parts[i], i))
    return floors[me] + (1 if me in order[:left] else 0)


def _level(limit: float, wants: Sequence[float]) -> list[float]:
    left, parts = limit, list(wants)
    for count, i in enumerate(sorted(range(len(wants)), key=lambda i: wants[i])):
        parts[i] = min(wants[i], left / (len(wants) - count))
        left -= parts[i]
    return parts


def bucket_share(rate: float, qps: float, burst: int, members: int, *, known: bool = True) -> Share:
    """Return rate and burst of a bucket that has `rate` of `qps`, of a bucket of `burst` over all `members`.

    A replica that is not `known` to the others yet has little of the rate, but its equal part of the burst, which is
    there from the first request on: `members` are those that it has seen itself by then, 0 for none.

    Every replica has one token of the burst, since a
    bucket that holds less admits nothing. Half of the rest is divided equally, for those whose requests come close
    together though they are few, and half like the rate. A burst below the number of replicas counts as that number.
    """
    if members <= 1 and rate >= qps:
        return Share(rate=rate, burst=burst)
    members = max(1, members)
    part = (rate / qps + 1 / members) / 2 if known else 1 / members
    return Share(rate=rate, burst=min(burst, 1.0 + max(0, burst - members) * part))
