"""Runs coroutines that rarely wait with little overhead, and awaits several coroutines at the same time.

`Deferred.fromCoroutine` makes a Deferred, a context copy and a cancellation record for every call, which takes 2.1 µs.
`start` takes 0.7 µs. Most requests find a connection at once and need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.python.failure import Failure

T = TypeVar("T")

OrPending: TypeAlias = T | Coroutine[Deferred[Any], Any, T]
"""A value, in nearly all cases, or a coroutine that has not started and returns the value.

So one function serves both kinds of callers: callers that can wait await the coroutine (`settled`), and callers that
cannot wait close it (`known`)."""


InThread = Callable[..., "Deferred[Any]"]
"""Runs a function in a thread of the reactor's pool (`deferToThread`)."""


def known(found: OrPending[T]) -> T | None:
    """Return the value. If `found` is a coroutine, close it and return None."""
    if isinstance(found, Coroutine):
        found.close()
        return None
    return found


async def settled(found: OrPending[T]) -> T:
    """Return the value. If `found` is a coroutine, await it and return its result."""
    return await found if isinstance(found, Coroutine) else found


def start(coroutine: Coroutine[Deferred[Any], Any, None]) -> None:
    """Run a coroutine until its first real wait, and continue it after each wait. It must handle all its exceptions."""
    # `next` with a default ends without an exception, which `send` would raise for each request.
    waiting = next(coroutine.__await__(), None)
    if waiting is not None:
        waiting.addBoth(_go_on, coroutine)


def _go_on(result: object, coroutine: Coroutine[Deferred[Any], Any, None]) -> None:
    # A result is not sent into the coroutine: the awaited Deferred returns it when the coroutine is resumed. A failure
    # must be thrown into it: during callbacks the Deferred lacks the `_debugInfo` that `Deferred.__await__` asserts.
    if not isinstance(result, Failure):
        start(coroutine)
        return
    assert result.value is not None
    try:
        waiting = coroutine.throw(result.value)
    except StopIteration:
        return
    waiting.addBoth(_go_on, coroutine)


async def gather(work: Iterable[Coroutine[Deferred[Any], Any, T]]) -> list[T]:
    """Await all coroutines at the same time; return their results in order.

    Raises the first exception of any of them, without Twisted's FirstError around it; the others then continue. If the
    caller is cancelled, all coroutines are cancelled, and the caller gets CancelledError.
    """
    try:
        return list(await gatherResults([Deferred.fromCoroutine(each) for each in work], consumeErrors=True))
    except FirstError as first:
        error = first.subFailure.value
        assert error is not None
        raise error from None
