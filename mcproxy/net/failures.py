"""Typed wrappers of Twisted's Failure, whose methods have no annotations."""

from __future__ import annotations

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.python.failure import Failure


def failure(error: BaseException) -> Failure:
    """Wrap an exception that was created, not raised."""
    return Failure(error)  # type: ignore[no-untyped-call]


def is_done(reason: Failure) -> bool:
    """Return whether the connection was closed in an orderly way."""
    return isinstance(reason.value, ConnectionDone)


def is_aborted(reason: Failure) -> bool:
    """Return whether the connection was aborted by this side."""
    return isinstance(reason.value, ConnectionAborted)
