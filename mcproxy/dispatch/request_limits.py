"""The limits on a request, every flow control that applies to it in order, and the permit of an admitted request.

Most requests have no limit, or one. Those have their own `acquire`; the general case is `RequestLimits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twisted.internet.defer import CancelledError, Deferred

from mcproxy.dispatch.flow_controller import FlowController, InFlightController, TokenBucketController
from mcproxy.dispatch.limiter import Limiter, WaitResult


class Limit(Protocol):
    """The limit of a permit."""

    def release(self, key: str) -> None: ...


class Permit:
    """Counts its request as in flight until it is released; a second release does nothing."""

    __slots__ = ("_key", "_limit", "_next")

    def __init__(self, limit: Limit | None, key: str, next_permit: Permit | None = None) -> None:
        """`next_permit` is released together with this one."""
        self._limit = limit
        self._key = key
        self._next = next_permit

    def joined(self, other: Permit) -> Permit:
        """Return a permit whose release releases both; use only this one from now on."""
        if self._limit is None:
            return other
        last = self
        while last._next is not None:
            last = last._next
        last._next = None if other._limit is None else other
        return self

    def release(self) -> None:
        """Stop counting the request, however it ended."""
        limit = self._limit
        if limit is None:
            return
        self._limit = None
        limit.release(self._key)
        if self._next is not None:
            self._next.release()


#: The permit of requests that no limit counts in flight: those with token buckets only, or without limits.
EMPTY_PERMIT = Permit(None, "")


class RequestLimits:
    """The limits on requests of one policy to one cluster.

    `user_name` is the user's after impersonation; `long_running` and `resource` are those of the request info.
    `resource` is compared with "events" only: give it for the groups "" and events.k8s.io.
    """

    __slots__ = ("_cluster_name", "_controls")

    def __init__(self, controls: Sequence[FlowController], cluster_name: str) -> None:
        self._cluster_name = cluster_name
        self._controls = tuple((control, control.key(cluster_name)) for control in controls)

    def acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | Deferred[Permit]:
        """Return a permit, which must be released when the request has ended, at once or after waiting for one.

        Raises StatusError (429). Permits of earlier limits are released if a later one does not admit the request.
        The Deferred fails with StatusError (429) after a queue's timeout, or when the request had to make room in a
        queue. Cancel it if the client has gone away, or the permit would never be released; that releases everything.
        """
        taken: list[tuple[Limiter, str]] = []
        for control, fixed_key in self._controls:
            limiter = control.long if long_running else control.short
            key = user_name if fixed_key is None else fixed_key
            if not limiter.take(key):
                _release_all(taken)
                self._refuse_unless_may_wait(control, limiter, key, user_name, resource)
                return self._wait(user_name, long_running, resource)
            taken.append((limiter, key))
        return _permit(taken)

    def _wait(self, user_name: str, long_running: bool, resource: str) -> Deferred[Permit]:
        return Deferred.fromCoroutine(self._acquired(user_name, long_running, resource))

    async def _acquired(self, user_name: str, long_running: bool, resource: str) -> Permit:
        """Return a permit, after waiting for one limit after the other where necessary."""
        taken: list[tuple[Limiter, str]] = []
        try:
            for control, fixed_key in self._controls:
                limiter = control.long if long_running else control.short
                key = user_name if fixed_key is None else fixed_key
                if not limiter.take(key):
                    self._refuse_unless_may_wait(control, limiter, key, user_name, resource)
                    # Read before the wait: a reload may change the queue meanwhile.
                    timeout = limiter.queue.timeout if limiter.queue is not None else 0.0
                    begun = limiter.seconds()
                    try:
                        result = await limiter.wait(key, user_name)
                    except CancelledError:
                        control.waited(limiter.seconds() - begun, "left")
                        raise
                    admitted = result is WaitResult.ADMITTED
                    control.waited(limiter.seconds() - begun, "admitted" if admitted else "refused")
                    if not admitted:
                        waited = timeout if result is WaitResult.TIMED_OUT else None
                        raise control.too_many_requests(self._cluster_name, resource, waited)
                taken.append((limiter, key))
        except BaseException:
            _release_all(taken)
            raise
        return _permit(taken)

    def switch_to_long_running(self, permit: Permit, user_name: str) -> Permit:
        """Return a permit of the long-running budgets in exchange for `permit` of the short ones.

        For a request that turned out to be a tunnel. Raises StatusError (429), without waiting, if a budget is
        exhausted; `permit` then stays valid. Token buckets have one budget for all requests and take nothing again.
        """
        taken: list[tuple[Limiter, str]] = []
        for control, fixed_key in self._controls:
            limiter = control.long
            if limiter is control.short:
                continue
            key = user_name if fixed_key is None else fixed_key
            if not limiter.take(key):
                limiter.refused += 1
                _release_all(taken)
                raise control.too_many_requests(self._cluster_name, "")
            taken.append((limiter, key))
        permit.release()
        return _permit(taken)

    def _refuse_unless_may_wait(
        self, control: FlowController, limiter: Limiter, key: str, user_name: str, resource: str
    ) -> None:
        """Return if the request may wait, else raise the refusal."""
        if not limiter.may_wait(key, user_name):
            limiter.refused += 1
            raise control.too_many_requests(self._cluster_name, resource)


class _Unlimited(RequestLimits):
    __slots__ = ()

    def acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | Deferred[Permit]:
        return EMPTY_PERMIT


class _OneBucket(RequestLimits):
    __slots__ = ("_control", "_key", "_take")

    def __init__(self, control: TokenBucketController, cluster_name: str) -> None:
        super().__init__((control,), cluster_name)
        self._control = control
        self._key = control.key(cluster_name)
        self._take = control.short.take

    def acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | Deferred[Permit]:
        key = user_name if self._key is None else self._key
        if self._take(key):
            return EMPTY_PERMIT
        self._refuse_unless_may_wait(self._control, self._control.short, key, user_name, resource)
        return self._wait(user_name, long_running, resource)


class _OneMaximum(RequestLimits):
    __slots__ = ("_control", "_key", "_long", "_short")

    def __init__(self, control: InFlightController, cluster_name: str) -> None:
        super().__init__((control,), cluster_name)
        self._control = control
        self._key = control.key(cluster_name)
        self._short, self._long = control.short, control.long

    def acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | Deferred[Permit]:
        limiter = self._long if long_running else self._short
        key = user_name if self._key is None else self._key
        if limiter.take(key):
            return Permit(limiter, key)
        self._refuse_unless_may_wait(self._control, limiter, key, user_name, resource)
        return self._wait(user_name, long_running, resource)


#: For requests without a limit.
UNLIMITED: RequestLimits = _Unlimited((), "")


def make_limits(controls: Sequence[FlowController], cluster_name: str) -> RequestLimits:
    """Return the limits of `controls`, in their order."""
    if not controls:
        return UNLIMITED
    only = controls[0] if len(controls) == 1 else None
    if isinstance(only, TokenBucketController):
        return _OneBucket(only, cluster_name)
    if isinstance(only, InFlightController):
        return _OneMaximum(only, cluster_name)
    return RequestLimits(controls, cluster_name)


def _permit(taken: list[tuple[Limiter, str]]) -> Permit:
    permit: Permit | None = None
    for limiter, key in taken:
        if limiter.holds:
            permit = Permit(limiter, key, permit)
    return EMPTY_PERMIT if permit is None else permit


def _release_all(taken: list[tuple[Limiter, str]]) -> None:
    for limiter, key in taken:
        limiter.release(key)
