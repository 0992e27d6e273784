"""The directory of limits in shared memory: a record for each limit, with the parameters that all processes use.

A record belongs to a limit's name, kind and `per`. It outlives reloads. It is reused for another limit only if no
process uses it and no other record is free. The owner word then identifies the slots of the former limit, which are
dropped.
"""

from __future__ import annotations

import math

from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.layout import (
    D_KEPT,
    D_KIND,
    D_LEASES_END,
    D_MAXIMUM,
    D_OVERFLOW,
    D_OWNER,
    D_PARAMETERS,
    D_SET_COUNT,
    D_SET_WORDS,
    D_SETS,
    D_SHARED,
    D_USERS,
    P_BURST,
    P_FLOOR,
    P_LEVEL,
    P_NEEDED,
    P_RATE,
    P_TIME,
)
from mcproxy.dispatch.tables.limit_shares import LimitId, Share, identity_hash, overflow_hash
from mcproxy.dispatch.tables.memory import Memory

# The tolerance for granting a token, in tokens and in seconds, so that rounding errors of floats cost no token. It is
# not credited, so it does not accumulate.
_CLOSE = 1e-6
_CLOSE_TIME = 1e-6


class DirectoryFullError(Exception):
    """The memory has no record for another limit."""

    cause = f"there are more than {layout.RECORDS} limits (a MaxRequestsInflight has two, a listener one)"
    todo = "use one flow control for several policies"

    def __str__(self) -> str:
        return self.cause


class RecordUse:
    """One use of a record. The table that uses the record owns this object; garbage collection of it ends the use.

    This is a separate class, because compiled objects do not support weak references.
    """

    def __init__(self, record: int) -> None:
        self.record = record


class Directory:
    """The records of limits. Only its methods change them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._words, self._floats = memory.words, memory.floats

    def open(self, limit: LimitId, share: Share, now: float, *, shared: bool, column: int | None) -> int:
        """Return the offset of the record of a limit; create it with the parameters of `share` if there is none.

        `column`: the column of a process that uses the record; None: the record is kept without users. Raises
        DirectoryFullError.
        """
        self._memory.mutexes.lock(layout.DIRECTORY_MUTEX)
        try:
            base = self.find(limit, shared=shared)
            if base is None:
                base = self._unused()
                self._make(base, limit, share, now, shared)
            if column is None:
                self._words[base + D_KEPT] = 1
            else:
                self._words[base + D_USERS] |= 1 << column
        finally:
            self._memory.mutexes.release(layout.DIRECTORY_MUTEX)
        return base

    def find(self, limit: LimitId, *, shared: bool) -> int | None:
        """Return the offset of the record of a limit, or None."""
        identity, identities = identity_hash(limit, shared), self._identities()
        return _record(identities.index(identity)) if identity in identities else None

    def close(self, base: int, column: int | None) -> None:
        """End the use of a record by a process; its slots stay until another limit needs the record."""
        self._memory.mutexes.lock(layout.DIRECTORY_MUTEX)
        try:
            if column is None:
                self._words[base + D_KEPT] = 0
            else:
                self._words[base + D_USERS] &= ~(1 << column)
        finally:
            self._memory.mutexes.release(layout.DIRECTORY_MUTEX)

    def reclaim(self, column: int) -> None:
        """End all uses of records by a process that has ended."""
        for number, identity in enumerate(self._identities()):
            base = _record(number)
            if identity and self._words[base + D_USERS] >> column & 1:
                self.close(base, column)

    def resize(self, base: int, rate: float, burst: float, now: float) -> None:
        """Change rate and burst of a limit's buckets; each keeps its tokens, cut to the new size."""
        words, floats = self._words, self._floats
        mutexes = self._memory.mutexes
        mutexes.lock(layout.DIRECTORY_MUTEX)
        try:
            at = words[base + D_PARAMETERS]
            if floats[at + P_RATE] == rate and floats[at + P_BURST] == burst:
                return
            number = (at - base - D_SETS) // D_SET_WORDS
            after = base + D_SETS + (number + 1) % D_SET_COUNT * D_SET_WORDS
            write_parameters(floats, after, at, rate, burst, now)
            mutexes.release(layout.DIRECTORY_MUTEX)  # a memory barrier: the new set is visible before it is in force
            mutexes.lock(layout.DIRECTORY_MUTEX)
            words[base + D_PARAMETERS] = after
        finally:
            mutexes.release(layout.DIRECTORY_MUTEX)

    def set_maximum(self, base: int, maximum: int | None) -> bool:
        """Change the maximum of a limit's counts; return whether that raised it."""
        before = self._words[base + D_MAXIMUM]
        after = self._words[base + D_MAXIMUM] = layout.NO_MAXIMUM if maximum is None else maximum
        return after > before

    def is_kept(self, base: int) -> bool:
        """Whether the agent of the limits over replicas keeps a record."""
        return self._words[base + D_KEPT] == 1

    def is_shared(self, base: int) -> bool:
        """Whether a record belongs to a limit over replicas."""
        return self._words[base + D_SHARED] == 1

    def _unused(self) -> int:
        """Return a record that was never used, or else an unused one. Raises DirectoryFullError."""
        identities = self._identities()
        if 0 in identities:
            return _record(identities.index(0))
        for base in map(_record, range(layout.RECORDS)):
            if not self._words[base + D_USERS] and not self._words[base + D_KEPT]:
                return base
        raise DirectoryFullError

    def _make(self, base: int, limit: LimitId, share: Share, now: float, shared: bool) -> None:
        words, floats = self._words, self._floats
        number = (base - layout.DIRECTORY_AT) // layout.RECORD_WORDS
        words[layout.IDENTITIES_AT + number] = layout.ALL_ONES  # unowned until the record is complete
        owner = words[base + D_OWNER] = ((words[base + D_OWNER] >> 16) + 1 << 16) | number
        for at in (D_USERS, D_KEPT):
            words[base + at] = 0
        floats[base + D_LEASES_END] = math.inf
        words[base + D_SHARED] = int(shared)
        counts = limit.kind != "bucket"
        words[base + D_KIND] = layout.OF_COUNTS if counts else layout.OF_BUCKETS
        self.set_maximum(base, share.maximum)
        first = words[base + D_PARAMETERS] = base + D_SETS
        write_parameters(floats, first, 0, share.rate, share.burst, now)
        slot = base + D_OVERFLOW
        clear_slot(self._memory, slot, owner, counts=counts)
        words[slot + layout.S_TAG] = tag_of(overflow_hash(limit), owner)
        words[layout.IDENTITIES_AT + number] = identity_hash(limit, shared)

    def _identities(self) -> list[int]:
        return self._words[layout.IDENTITIES_AT : layout.IDENTITIES_AT + layout.RECORDS].tolist()


def _record(number: int) -> int:
    return layout.DIRECTORY_AT + number * layout.RECORD_WORDS


def write_parameters(floats: memoryview[float], to: int, before: int, rate: float, burst: float, now: float) -> None:
    """Write rate and burst; the level continues from the parameters at `before` (0: there are none)."""
    level, floor = 0.0, -math.inf
    if before:
        level = level_at(floats, before, now)
        floor = max(floats[before + P_FLOOR], level - floats[before + P_BURST])
    floats[to + P_LEVEL] = level
    floats[to + P_TIME] = now
    floats[to + P_RATE] = rate
    floats[to + P_BURST] = burst
    floats[to + P_FLOOR] = floor
    floats[to + P_NEEDED] = 1.0 - max(_CLOSE, min(_CLOSE_TIME * rate, 0.5))


def set_share(
    words: memoryview[int],
    floats: memoryview[float],
    base: int,
    own: int,
    general: int,
    rate: float,
    burst: float,
    now: float,
) -> int:
    """Set individual rate and burst for the key of a slot; its tokens are kept, cut to the burst.

    The present parameters are at `own` (0: at `general`, those of the limit). Returns the offset of the new ones.
    """
    if own and floats[own + P_RATE] == rate and floats[own + P_BURST] == burst:
        return own
    first = layout.share_of(base)
    after = first + (layout.PARAMETER_WORDS if own == first else 0)
    write_parameters(floats, after, own or general, rate, burst, now)
    words[base + layout.B_PARAMETERS] = after
    return after


def level_at(floats: memoryview[float], parameters: int, now: float) -> float:
    """Return the level of a set of parameters at a time."""
    return floats[parameters + P_LEVEL] + (now - floats[parameters + P_TIME]) * floats[parameters + P_RATE]


def fill_of(floats: memoryview[float], own: float, parameters: int, now: float) -> float:
    """Return the tokens of a bucket whose own level is `own`."""
    level = level_at(floats, parameters, now)
    return min(level - own, level - floats[parameters + P_FLOOR], floats[parameters + P_BURST])


def clear_slot(memory: Memory, base: int, owner: int, *, counts: bool) -> None:
    """Initialize a slot except for its tag: a full bucket, or no requests in flight."""
    words = memory.words
    words[base + layout.S_OWNER] = owner
    words[base + layout.S_TAKEN] = words[base + layout.S_REFUSED] = 0
    if counts:
        words[base + layout.C_OWN_MAXIMUM] = layout.ALL_ONES
        for at in (layout.C_TOTAL, *range(layout.C_WAITING, memory.count_words)):
            words[base + at] = 0
    else:
        memory.floats[base + layout.B_LEVEL] = -math.inf
        words[base + layout.B_PARAMETERS] = 0


def tag_of(hashed: int, owner: int) -> int:
    """Return the tag of a key's slot; `hash_of` reverses this."""
    tag = (hashed + owner * 0x9E3779B97F4A7C15) & layout.ALL_ONES
    return tag if tag >= layout.FIRST_TAG else tag + layout.FIRST_TAG


def hash_of(tag: int, owner: int) -> int:
    """Return the 64 bits of the key of a slot."""
    return (tag - owner * 0x9E3779B97F4A7C15) & layout.ALL_ONES
