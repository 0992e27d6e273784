"""Acquires the permit of a request from all flow controls that limit it, in order.

Most requests have no limit, or one limit. These cases have their own `acquire`; `RequestLimits` is the general case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twisted.internet.defer import CancelledError, Deferred

from mcproxy.dispatch.flow_controller import FlowController, InFlightController, TokenBucketController
from mcproxy.dispatch.limiter import Limiter, WaitResult


class Limit(Protocol):
    """The interface of a limit for its permits."""

    def release(self, key: str) -> None: ...


class Permit:
    """Counts its request as in flight until it is released; a second release does nothing."""

    __slots__ = ("_key", "_limit", "_next")

    def __init__(self, limit: Limit | None, key: str, next_permit: Permit | None = None) -> None:
        """`next_permit`: a permit that is released together with this one."""
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
        """Stop counting the request. Callers call this for every request, however it ended."""
        limit = self._limit
        if limit is None:
            return
        self._limit = None
        limit.release(self._key)
        if self._next is not None:
            self._next.release()


#: The permit of requests that no limit counts in flight: requests with only token buckets, or without limits.
EMPTY_PERMIT = Permit(None, "")


class RequestLimits:
    """The limits on requests of one policy to one cluster.

    `user_name`: the user's name after impersonation. `long_running` and `resource`: the values of the request info.
    `resource` is only compared with "events", so it is needed only for the groups "" and events.k8s.io.
    """

    __slots__ = ("_cluster_name", "_controls")

    def __init__(self, controls: Sequence[FlowController], cluster_name: str) -> None:
        self._cluster_name = cluster_name
        self._controls = tuple((control, control.key(cluster_name)) for control in controls)

    def acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | Deferred[Permit]:
        """Return a permit at once or after waiting; the caller must release it when the request has ended.

        Raises StatusError (429). If a limit does not admit the request, the permits of earlier limits are released.
        The Deferred fails with StatusError (429) after a queue's timeout, or when the request had to make room in a
        queue. Cancel it if the client has gone away, to release all permits. Otherwise they would never be released.
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
        """Return a permit, after waiting for each limit in turn if necessary."""
        taken: list[tuple[Limiter, str]] = []
        try:
            for control, fixed_key in self._controls:
                limiter = control.long if long_running else control.short
                key = user_name if fixed_key is None else fixed_key
                if not limiter.take(key):
                    self._refuse_unless_may_wait(control, limiter, key, user_name, resource)
                    # Read before the wait, because a reload can change the queue meanwhile.
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
        """Exchange `permit`, which counts as short, for a permit that counts as long-running.

        Called for a request that has become a tunnel. Raises StatusError (429), without waiting, if a budget is
        exhausted; `permit` then stays valid. Token buckets have one budget for all requests and take no second token.
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
        """Raise the refusal unless the request may wait."""
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
