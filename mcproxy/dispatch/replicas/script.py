"""The call of `lease.lua` for one limit, and its response. Pure.

All keys of a limit have the same hash tag, ``{PREFIX:NAME:KIND:PER}``, so that they are in one slot of a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from mcproxy.dispatch.tables.limit_shares import LimitId


class How(StrEnum):
    """The intention of a replica, in addition to the requested amount."""

    RENEW = "0"
    RELEASE = "1"  # release the lease, for the equal part
    WANT_MORE = "2"  # announce a want above the equal part: other replicas then lease only as much as they want


@dataclass(frozen=True, slots=True)
class Ask:
    """The request for one key."""

    key: int
    ask: float
    least: float = 0.0  # requests in flight, which no response can revoke
    held: float = 0.0
    want: float = 0.0  # the want, which other replicas see and use to calculate their fair parts
    how: How = How.RENEW


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the script."""

    keys: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """The response for one key."""

    lease: float | None  # the granted part; None: the lease is released
    me: int = 0  # this replica's index in `wants`
    wants: tuple[float, ...] = ()  # wants of all replicas with a lease on the key


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """The response for one limit."""

    time: int  # time by Redis' clock, in ms
    joined_for: float  # seconds since this replica joined
    seen: bool  # whether the others have processed responses since then, and so make room for this replica
    known_for: float  # age of the state in Redis in seconds
    members: int
    rank: int
    limit: float  # the smallest limit that any replica has configured
    differing: str  # a replica with another limit, and that limit; "" if there is none
    noted: tuple[int, ...]  # keys of which a replica wants more
    granted: tuple[Granted, ...]  # in the order of the requests


def source() -> str:
    """Return the source of lease.lua."""
    return resources.files(__package__).joinpath("lease.lua").read_text("utf-8")


def renewal(
    prefix: str,
    limit: LimitId,
    member: str,
    lasts: float,
    amount: float,
    label: str,
    asks: Sequence[Ask],
    *,
    whole: bool,
    known: bool,
    seen: int,
) -> Call:
    """Return the call by which a replica joins or stays, and requests leases of `lasts` seconds on keys of a limit.

    `amount`: the limit. `whole`: it counts in whole numbers. `known`: this replica joined a while ago. `seen`: the time
    of the last processed response, or 0.
    """
    tag = _tag(prefix, limit)
    names = [f"{ask.key:016x}" for ask in asks]
    arguments = [
        "renew",
        member,
        str(round(lasts * 1000)),
        repr(amount),
        str(int(whole)),
        label,
        str(int(known)),
        str(seen),
    ]
    for name, ask in zip(names, asks, strict=True):
        arguments += [name, repr(ask.ask), repr(ask.least), repr(ask.held), repr(ask.want), str(ask.how)]
    return Call((f"{tag}:members", f"{tag}:noted", *(f"{tag}:key:{name}" for name in names)), tuple(arguments))


def leaving(prefix: str, limit: LimitId, member: str) -> Call:
    """Return the call by which a replica leaves, so that the other replicas get its part at once."""
    tag = _tag(prefix, limit)
    return Call((f"{tag}:members", f"{tag}:noted"), ("leave", member, "0", "0", "0", "", "0", "0"))


def parse(reply: Any, asks: Sequence[Ask]) -> LimitAnswer:
    """Parse the response of the script to a renewal with `asks`. Raises ValueError for an invalid one.

    Other clients may write to this Redis too, so numbers that the script cannot return are refused, and no lease
    exceeds the request.
    """
    try:
        time, joined, seen, known, members, rank, limit, differing, noted, granted = reply
        count = _whole(members, 1, _MOST_MEMBERS)
        if len(granted) != len(asks):
            raise ValueError(f"{len(granted)} responses to {len(asks)} requests")
        return LimitAnswer(
            time=_whole(time, 0, _LONGEST),
            joined_for=_whole(joined, 0, _LONGEST) / 1000,
            seen=_whole(seen, 0, 1) == 1,
            known_for=_whole(known, 0, _LONGEST) / 1000,
            members=count,
            rank=_whole(rank, 0, count - 1),
            limit=_amount(limit, least=_LEAST),
            differing=str(differing)[:_LONGEST_LABEL],
            noted=tuple(int(name, 16) for name in noted[:_MOST_NOTED] if _NAME.fullmatch(name)),
            granted=tuple(_granted(item, ask, count) for item, ask in zip(granted, asks, strict=True)),
        )
    except (TypeError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"not a response of the script: {error}") from None


def _granted(item: Any, ask: Ask, members: int) -> Granted:
    lease = item[0]
    if lease == "default":
        return Granted(None)
    wants = item[2:]
    me = _whole(item[1], 0, min(len(wants), members) - 1)
    return Granted(min(_amount(lease), ask.ask), me, tuple(map(_amount, wants[:members])))


def _whole(value: Any, least: int, most: int) -> int:
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"not a response of the script: {number} is not between {least} and {most}")
    return number


def _amount(value: Any, least: float = 0.0) -> float:
    number = float(value)
    if not least <= number <= _MOST:  # also true for NaN
        raise ValueError(f"not a response of the script: an amount of {number}")
    return number


_NAME = re.compile("[0-9a-f]{16}")
_MOST_MEMBERS = 65536
_MOST_NOTED = 256  # the maximum in lease.lua
_LONGEST = 1 << 53  # ms
_LONGEST_LABEL = 200
_LEAST, _MOST = 1e-9, 1e15  # minimum and maximum of a limit


def _tag(prefix: str, limit: LimitId) -> str:
    # Braces in a name would end the hash tag; all replicas replace them in the same way.
    name = limit.name.translate({ord("{"): "(", ord("}"): ")"})
    return f"{{{prefix}:{name}:{limit.kind}:{limit.per}}}"
