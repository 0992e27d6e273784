"""How long a watch lasts, what it sends beside changes, and how its user's rights are asked for again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


class Undecided(Exception):
    """A reload has added a member that the request was not decided for: it must be made anew."""


Recheck = Callable[[], Awaitable[frozenset[str]]]
"""Returns the members whose objects the user may still read; raises StatusError if there is none, or Undecided."""


@dataclass(frozen=True, slots=True)
class WatchTerms:
    """How long a watch lasts and what it sends beside changes. Times are seconds.

    `initial_end`: a bookmark ends the initial events, as soon as every member that can be reached is in; one of which
    nothing is known yet is waited for at most `initial_sync_timeout`. `recheck` is called every `recheck_interval`.
    """

    timeout: float
    bookmarks: bool = False
    initial_end: bool = False
    initial_sync_timeout: float = 10.0
    recheck: Recheck | None = None
    recheck_interval: float = 30.0
    spread: float = 0.5
    """A random number from 0 to 1."""
