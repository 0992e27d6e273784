"""Typed access to Twisted's Failure, whose own methods have no annotations."""

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
    """Return whether we aborted the connection."""
    return isinstance(reason.value, ConnectionAborted)
