"""Typed use of Twisted's Failure, whose own methods carry no types."""

from __future__ import annotations

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.python.failure import Failure


def failure(error: BaseException) -> Failure:
    """Wrap an exception that was not raised here."""
    return Failure(error)  # type: ignore[no-untyped-call]


def is_done(reason: Failure) -> bool:
    """Whether the reason is an orderly end."""
    return isinstance(reason.value, ConnectionDone)


def is_aborted(reason: Failure) -> bool:
    """Whether the reason is our own abrupt end."""
    return isinstance(reason.value, ConnectionAborted)
