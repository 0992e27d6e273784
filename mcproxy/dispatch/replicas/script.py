"""The call of `lease.lua` for one limit, and its response. Pure.

All keys of a limit have one hash tag, ``{PREFIX:NAME:KIND:PER}``, so that they are in one slot of a cluster.
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
    least: float = 0.0  # requests in flight, which no answer can revoke
    held: float = 0.0
    want: float = 0.0  # visible to the others, which calculate their fair parts from it
    how: How = How.RENEW


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the script."""

    keys: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer for one key."""

    lease: float | None  # None: released
    me: int = 0  # this replica's place in `wants`
    wants: tuple[float, ...] = ()  # of all replicas with a lease on the key


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """The answer for one limit."""

    time: int  # Redis' own, in ms
    joined_for: float  # seconds since this replica joined
    seen: bool  # whether the others have processed answers since then, and so make room for it
    known_for: float  # seconds since the state was made
    members: int
    rank: int
    limit: float  # the least that any replica has configured
    differing: str  # a replica with another limit, and that limit; "": none
    noted: tuple[int, ...]  # keys of which some replica wants more
    granted: tuple[Granted, ...]  # in the order of the requests


def source() -> str:
    """Return the script."""
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
    """Return the call that joins or stays, and requests leases of `lasts` seconds on keys of a limit of `amount`.

    `whole`: it is counted in whole numbers. `known`: this replica joined a while ago. `seen` is the time of the last
    processed response, or 0.
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
    """Return the call by which a replica leaves, so that the others get its part at once."""
    tag = _tag(prefix, limit)
    return Call((f"{tag}:members", f"{tag}:noted"), ("leave", member, "0", "0", "0", "", "0", "0"))


def parse(reply: Any, asks: Sequence[Ask]) -> LimitAnswer:
    """Parse the response of the script to a renewal with `asks`. Raises ValueError for an invalid one.

    Others may write to this Redis, too: numbers that the script cannot return are refused, and no lease exceeds the
    request.
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
    if not least <= number <= _MOST:  # NaN is not, either
        raise ValueError(f"not a response of the script: an amount of {number}")
    return number


_NAME = re.compile("[0-9a-f]{16}")
_MOST_MEMBERS = 65536
_MOST_NOTED = 256  # as in the script
_LONGEST = 1 << 53  # ms
_LONGEST_LABEL = 200
_LEAST, _MOST = 1e-9, 1e15  # of a limit


def _tag(prefix: str, limit: LimitId) -> str:
    # A name may have braces, which would end the tag; all replicas of one configuration replace them in the same way.
    name = limit.name.translate({ord("{"): "(", ord("}"): ")"})
    return f"{{{prefix}:{name}:{limit.kind}:{limit.per}}}"
