"""The last writes of this process to one cluster that its cache may not show yet. No I/O.

The answer to a write comes before its event. Whoever compares the cache with the desired state in between would write
the same again; with this, the next write goes over what the last one made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcproxy.services.exports.object_keys import ObjectKey

PATIENCE = 10.0
"""Seconds for which an answer counts for more than a cache that shows something older, or nothing.

Whoever writes looks again after it: the cache may have shown the object, and its deletion by somebody else, at once."""


@dataclass(frozen=True, slots=True)
class Written:
    """The state of an object after a write of ours."""

    uid: str
    version: int
    digest: str
    gone: bool
    at: float


class MutationCache:
    """The last write of each object that was written."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: the reactor's seconds."""
        self._now = now
        self._written: dict[ObjectKey, Written] = {}
        self._settled: dict[ObjectKey, tuple[str, int, str]] = {}

    def wrote(self, place: ObjectKey, uid: str, version: int, digest: str) -> None:
        """An apply has succeeded, and the object has this version since."""
        self._written[place] = Written(uid, version, digest, False, self._now())
        self.settle(place, uid, version, digest)

    def settle(self, place: ObjectKey, uid: str, version: int, digest: str) -> None:
        """This version of an object is what comes out when that is applied."""
        self._settled[place] = (uid, version, digest)

    def removed(self, place: ObjectKey, uid: str) -> None:
        """A deletion has succeeded."""
        self._written[place] = Written(uid, 0, "", True, self._now())
        self._settled.pop(place, None)

    def ahead_of(self, place: ObjectKey, seen: tuple[str, int] | None) -> Written | None:
        """Return what was written if the cache does not show it yet: it has `seen` (uid, version), or nothing.

        Forgets it otherwise, and after `PATIENCE`: what is written then over an older version is refused.
        """
        written = self._written.get(place)
        if written is None:
            return None
        if written.gone:
            behind = seen is not None and seen[0] == written.uid
        else:
            behind = seen is None or (seen[0] == written.uid and seen[1] < written.version)
        if behind and self._now() - written.at < PATIENCE:
            return written
        del self._written[place]
        return None

    def is_settled(self, place: ObjectKey, uid: str, version: int, digest: str) -> bool:
        """Whether exactly this comes out when exactly that is applied: to apply it would change nothing.

        What an API server or a webhook there makes of an object may differ from what was applied.
        """
        return self._settled.get(place) == (uid, version, digest)

    def forget(self, place: ObjectKey) -> None:
        """Nothing is known of an object any more: a write was refused."""
        self._written.pop(place, None)

    def prune(self, present: Callable[[ObjectKey], bool]) -> None:
        """Forget what is about objects that are not there any more."""
        for place in [place for place in self._settled if not present(place)]:
            del self._settled[place]
        for place in [each for each, written in self._written.items() if self._now() - written.at >= PATIENCE]:
            del self._written[place]
