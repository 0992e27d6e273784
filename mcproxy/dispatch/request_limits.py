"""Whether a request may go on now: all the flow controls that hold for it, asked in order.

Most requests have no limit, or one. Those have their own `try_acquire`; the general case is `RequestLimits`.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred, succeed

from mcproxy.dispatch.flow_control import FlowController, InFlightController, TokenBucketController
from mcproxy.dispatch.limiter import Limiter
from mcproxy.dispatch.permit import EMPTY_PERMIT, Permit


class RequestLimits:
    """The limits on requests of one kind to one cluster.

    `user_name` is that of the user after impersonation; `long_running` and `resource` those of the request's info.
    `resource` is looked at for "events" only: give it for those of the groups "" and events.k8s.io.
    """

    __slots__ = ("_cluster_name", "_controls")

    def __init__(self, controls: Sequence[FlowController], cluster_name: str) -> None:
        self._cluster_name = cluster_name
        self._controls = tuple((control, control.key(cluster_name)) for control in controls)

    def try_acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        """Return the leave to go on, which must be released when the request has ended; None: `wait` for it.

        Raises StatusError (429). What the first limits gave is given back when a later one does not let it through.
        """
        taken: list[tuple[Limiter, str]] = []
        for control, fixed_key in self._controls:
            limiter = control.long if long_running else control.short
            key = user_name if fixed_key is None else fixed_key
            if not limiter.take(key):
                _release_all(taken)
                self._may_wait(control, limiter, key, resource)
                return None
            taken.append((limiter, key))
        return _permit(taken)

    def acquire(self, user_name: str, long_running: bool, resource: str = "") -> Deferred[Permit]:
        """Wait where it must, for one limit after the other, holding what the earlier ones gave.

        Fails with StatusError (429) after a queue's timeout. Whoever cancels holds nothing; for a request that has gone
        away it must be cancelled, or the permit that comes would never be released.
        """
        return Deferred.fromCoroutine(self._acquire(user_name, long_running, resource))

    async def _acquire(self, user_name: str, long_running: bool, resource: str) -> Permit:
        taken: list[tuple[Limiter, str]] = []
        try:
            for control, fixed_key in self._controls:
                limiter = control.long if long_running else control.short
                key = user_name if fixed_key is None else fixed_key
                if not limiter.take(key):
                    self._may_wait(control, limiter, key, resource)
                    # A reload may change the queue meanwhile; this is the one that it waits in.
                    timeout = limiter.queue.timeout if limiter.queue is not None else 0.0
                    if not await limiter.wait(key, user_name):
                        raise control.refusal(self._cluster_name, resource, timeout)
                taken.append((limiter, key))
        except BaseException:
            _release_all(taken)
            raise
        return _permit(taken)

    def _may_wait(self, control: FlowController, limiter: Limiter, key: str, resource: str) -> None:
        """Return if it may wait, else raise the refusal."""
        if not limiter.has_room(key):
            limiter.refused += 1
            raise control.refusal(self._cluster_name, resource)


class _Unlimited(RequestLimits):
    __slots__ = ()

    def try_acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        return EMPTY_PERMIT

    def acquire(self, user_name: str, long_running: bool, resource: str = "") -> Deferred[Permit]:
        return succeed(EMPTY_PERMIT)


class _OneBucket(RequestLimits):
    __slots__ = ("_control", "_key", "_take")

    def __init__(self, control: TokenBucketController, cluster_name: str) -> None:
        super().__init__((control,), cluster_name)
        self._control = control
        self._key = control.key(cluster_name)
        self._take = control.short.take

    def try_acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        key = user_name if self._key is None else self._key
        if self._take(key):
            return EMPTY_PERMIT
        self._may_wait(self._control, self._control.short, key, resource)
        return None


class _OneMaximum(RequestLimits):
    __slots__ = ("_control", "_key", "_long", "_short")

    def __init__(self, control: InFlightController, cluster_name: str) -> None:
        super().__init__((control,), cluster_name)
        self._control = control
        self._key = control.key(cluster_name)
        self._short, self._long = control.short, control.long

    def try_acquire(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        limiter = self._long if long_running else self._short
        key = user_name if self._key is None else self._key
        if limiter.take(key):
            return Permit(limiter, key)
        self._may_wait(self._control, limiter, key, resource)
        return None


#: For requests without a limit.
UNLIMITED: RequestLimits = _Unlimited((), "")


def make_limits(controls: Sequence[FlowController], cluster_name: str) -> RequestLimits:
    """Return the limits of these limits, in their order."""
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
