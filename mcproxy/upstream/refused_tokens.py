"""The tokens of clients that a cluster has just refused: their requests go over connections apart (`Use.APART`)."""

from __future__ import annotations

from collections import OrderedDict

_SECONDS = 60.0  # since the last refusal
_MOST = 1024


class RefusedTokens:
    """Of one cluster. Only hashes are kept; two tokens with one hash would merely share connections."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: OrderedDict[int, float] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._until)

    def note(self, token: bytes, now: float) -> None:
        """The cluster has answered 401 to a request with `token`; `now` in seconds."""
        key = hash(token)
        self._until[key] = now + _SECONDS
        self._until.move_to_end(key)
        if len(self._until) > _MOST:
            self._until.popitem(last=False)

    def has(self, token: bytes, now: float) -> bool:
        """Return whether that was within the last minute."""
        key = hash(token)
        until = self._until.get(key)
        if until is None:
            return False
        if now >= until:
            del self._until[key]
            return False
        return True
