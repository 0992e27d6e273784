"""The last decision of each member about each read of a user, which holds while the member cannot be asked.

Source: reference "list-watch", Who may read (`staleDecisions`). Users and attributes are kept as digests, so the size
of an entry does not depend on the client, and the file under `stateDir` has no names of users.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from mcproxy.aggregate import state_file
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.user import UserInfo

_KIND, _VERSION = "decisions", 1
_MAX = 65_536  # entries, some 200 bytes each
_MAX_PER_USER = 4096  # a user who sends ever new selectors displaces only that user's entries
_CLOCK_STEP = 60.0  # seconds by which an entry may be in the future: a clock that was set back


class _Last(NamedTuple):
    uid: str  # of the member's cluster when it decided; "" if it was not known
    allowed: bool
    at: float  # seconds since 1970


class LastDecisions:
    """A bounded table, one for the process; `seconds` returns the wall clock's time, since 1970."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._users: OrderedDict[bytes, OrderedDict[bytes, _Last]] = OrderedDict()  # the last recorded user is last
        self._count = 0
        self.changed = False  # since `load` or `save`

    def __len__(self) -> int:
        return self._count

    def record(self, member: str, uid: str, user: UserInfo, attributes: Attributes, *, allowed: bool) -> None:
        """Note what a member has just decided; `uid` is that of its cluster, "" if it is not known."""
        self._put(_digest(user), _key(member, attributes), _Last(uid, allowed, self._seconds()))
        self.changed = True

    def find(self, member: str, uid: str, user: UserInfo, attributes: Attributes, max_age: float) -> bool | None:
        """Return whether the member allowed it when it last decided; None: not known, or longer ago than `max_age` s.

        A decision of another cluster of the same name does not count.
        """
        known = self._users.get(_digest(user))
        last = None if known is None else known.get(_key(member, attributes))
        if last is None or (uid and last.uid and uid != last.uid):
            return None
        age = self._seconds() - last.at
        return last.allowed if -_CLOCK_STEP <= age <= max_age else None

    def _put(self, user: bytes, key: bytes, last: _Last) -> None:
        entries = self._users.get(user)
        if entries is None:
            entries = self._users[user] = OrderedDict()
        if key not in entries:
            self._count += 1
        entries[key] = last
        entries.move_to_end(key)
        self._users.move_to_end(user)
        if len(entries) > _MAX_PER_USER:
            entries.popitem(last=False)
            self._count -= 1
        while self._count > _MAX:
            oldest = next(iter(self._users))
            self._users[oldest].popitem(last=False)
            self._count -= 1
            if not self._users[oldest]:
                del self._users[oldest]

    # -- stateDir -----------------------------------------------------------------------------------------------

    def writer(self, path: Path, max_age: float) -> Callable[[], None]:
        """Return what writes the entries that are no older than `max_age` seconds, as of now; it may run in a thread.

        It raises OSError.
        """
        payload = self._encoded(max_age)
        self.changed = False

        def write() -> None:
            try:
                state_file.write(path, _KIND, _VERSION, payload)
            except OSError:
                self.changed = True
                raise

        return write

    def _encoded(self, max_age: float) -> bytes:
        """Return the payload of the file, the oldest users first."""
        limit = self._seconds() - max_age
        entries = [
            (user, key, last) for user, known in self._users.items() for key, last in known.items() if last.at >= limit
        ]
        return msgspec.msgpack.encode(entries)

    def load(self, path: Path) -> None:
        """Take the entries of a file over, if there is one that can be read."""
        payload = state_file.read(path, _KIND, _VERSION)
        if payload is None:
            return
        try:
            entries = msgspec.msgpack.decode(payload, type=list[tuple[bytes, bytes, _Last]])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            state_file.put_aside(path, f"its contents have another form: {error}")
            return
        for user, key, last in entries:
            self._put(user, key, last)


def _digest(user: UserInfo) -> bytes:
    return _hash((user.name, user.groups, user.uid, user.extra))


def _key(member: str, attributes: Attributes) -> bytes:
    return _hash((member, *attributes))


def _hash(fields: tuple[object, ...]) -> bytes:
    # repr is unambiguous for tuples of strings and escapes what UTF-8 cannot hold
    return hashlib.blake2b(repr(fields).encode(), digest_size=20).digest()
