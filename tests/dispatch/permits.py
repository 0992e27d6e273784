"""What `RequestLimits.acquire` returns, for tests that do not wait."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from mcproxy.dispatch.request_limits import Permit, RequestLimits


def at_once(found: Permit | Deferred[Permit]) -> Permit | None:
    """The permit, None for a request that would wait: it goes away."""
    if isinstance(found, Permit):
        return found
    found.addErrback(lambda _: None)
    found.cancel()
    return None


def deferred(limits: RequestLimits, user_name: str, long_running: bool, resource: str = "") -> Deferred[Permit]:
    """The permit or its refusal, whether it is there at once or not."""

    async def permit() -> Permit:
        found = limits.acquire(user_name, long_running, resource)
        return found if isinstance(found, Permit) else await found

    return Deferred.fromCoroutine(permit())
