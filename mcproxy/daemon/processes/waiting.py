"""Waiting for several coroutines at once."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure


async def outcomes(work: Iterable[Coroutine[Deferred[Any], Any, Any]]) -> list[Any]:
    """Await all, and return the result of each, or the exception that it raised."""
    results: list[tuple[bool, Any]] = await DeferredList(
        [Deferred.fromCoroutine(each) for each in work], consumeErrors=True
    )
    return [result.value if isinstance(result, Failure) else result for _, result in results]
