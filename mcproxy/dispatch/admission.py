"""Whether a request may go on now: all the flow controls that hold for it, asked in order.

Most requests have no limit, or one. Those have an `at_once` of their own; the rest is told once, in `Admission`.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred, succeed

from mcproxy.dispatch.control import BucketControl, Control, InFlightControl
from mcproxy.dispatch.gate import Gate
from mcproxy.dispatch.permit import NOTHING, Permit


class Admission:
    """The limits on requests of one kind to one cluster.

    `user_name` is that of the user after impersonation; `long_running` and `resource` those of the request's info.
    `resource` is looked at for "events" only: give it for those of the groups "" and events.k8s.io.
    """

    __slots__ = ("_cluster_name", "_controls")

    def __init__(self, controls: Sequence[Control], cluster_name: str) -> None:
        self._cluster_name = cluster_name
        self._controls = tuple((control, control.key(cluster_name)) for control in controls)

    def at_once(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        """Return the leave to go on, which must be released when the request has ended; None: `wait` for it.

        Raises StatusError (429). What the first limits gave is given back when a later one does not let it through.
        """
        taken: list[tuple[Gate, str]] = []
        for control, fixed_key in self._controls:
            gate = control.long if long_running else control.short
            key = user_name if fixed_key is None else fixed_key
            if not gate.take(key):
                _give_back(taken)
                self._may_wait(control, gate, key, resource)
                return None
            taken.append((gate, key))
        return _permit(taken)

    def wait(self, user_name: str, long_running: bool, resource: str = "") -> Deferred[Permit]:
        """Wait where it must, for one limit after the other, holding what the earlier ones gave.

        Fails with StatusError (429) after a queue's timeout. Whoever cancels holds nothing.
        """
        return Deferred.fromCoroutine(self._wait(user_name, long_running, resource))

    async def _wait(self, user_name: str, long_running: bool, resource: str) -> Permit:
        taken: list[tuple[Gate, str]] = []
        try:
            for control, fixed_key in self._controls:
                gate = control.long if long_running else control.short
                key = user_name if fixed_key is None else fixed_key
                if not gate.take(key):
                    self._may_wait(control, gate, key, resource)
                    # A reload may change the queue meanwhile; this is the one that it waits in.
                    timeout = gate.queue.timeout if gate.queue is not None else 0.0
                    if not await gate.wait(key, user_name):
                        raise control.refusal(self._cluster_name, resource, timeout)
                taken.append((gate, key))
        except BaseException:
            _give_back(taken)
            raise
        return _permit(taken)

    def _may_wait(self, control: Control, gate: Gate, key: str, resource: str) -> None:
        """Return if it may wait, else raise the refusal."""
        if not gate.has_room(key):
            gate.refused += 1
            raise control.refusal(self._cluster_name, resource)


class _Unlimited(Admission):
    __slots__ = ()

    def at_once(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        return NOTHING

    def wait(self, user_name: str, long_running: bool, resource: str = "") -> Deferred[Permit]:
        return succeed(NOTHING)


class _OneBucket(Admission):
    __slots__ = ("_control", "_key", "_take")

    def __init__(self, control: BucketControl, cluster_name: str) -> None:
        super().__init__((control,), cluster_name)
        self._control = control
        self._key = control.key(cluster_name)
        self._take = control.short.take

    def at_once(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        key = user_name if self._key is None else self._key
        if self._take(key):
            return NOTHING
        self._may_wait(self._control, self._control.short, key, resource)
        return None


class _OneMaximum(Admission):
    __slots__ = ("_control", "_key", "_long", "_short")

    def __init__(self, control: InFlightControl, cluster_name: str) -> None:
        super().__init__((control,), cluster_name)
        self._control = control
        self._key = control.key(cluster_name)
        self._short, self._long = control.short, control.long

    def at_once(self, user_name: str, long_running: bool, resource: str = "") -> Permit | None:
        gate = self._long if long_running else self._short
        key = user_name if self._key is None else self._key
        if gate.take(key):
            return Permit(gate, key)
        self._may_wait(self._control, gate, key, resource)
        return None


#: For requests without a limit.
UNLIMITED: Admission = _Unlimited((), "")


def admission(controls: Sequence[Control], cluster_name: str) -> Admission:
    """Return the admission of these limits, in their order."""
    if not controls:
        return UNLIMITED
    only = controls[0] if len(controls) == 1 else None
    if isinstance(only, BucketControl):
        return _OneBucket(only, cluster_name)
    if isinstance(only, InFlightControl):
        return _OneMaximum(only, cluster_name)
    return Admission(controls, cluster_name)


def _permit(taken: list[tuple[Gate, str]]) -> Permit:
    permit: Permit | None = None
    for gate, key in taken:
        if gate.holds:
            permit = Permit(gate, key, permit)
    return NOTHING if permit is None else permit


def _give_back(taken: list[tuple[Gate, str]]) -> None:
    for gate, key in taken:
        gate.give_back(key)
