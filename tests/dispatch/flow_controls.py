"""Flow controls for tests, and whoever waits for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from mcproxy.config.model import FlowControl, FlowControlType, Queue
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.request_limits import Permit, RequestLimits
from tests.dispatch.permits import deferred
from tests.support.clock import Clock

QUEUE = Queue(size=100, timeout=5.0)


def bucket(name: str = "bulk", qps: float = 50, burst: int = 100, **more: Any) -> FlowControl:
    return FlowControl(name=name, type=FlowControlType.TOKEN_BUCKET, qps=qps, burst=burst, **more)


def inflight(name: str = "interactive", max: int | None = 2, **more: Any) -> FlowControl:
    return FlowControl(name=name, type=FlowControlType.MAX_REQUESTS_INFLIGHT, max=max, **more)


def exempt(name: str = "unlimited") -> FlowControl:
    return FlowControl(name=name, type=FlowControlType.EXEMPT)


def admit(*controls: FlowControl, clock: Clock | None = None, cluster: str = "east") -> RequestLimits:
    """The limits of all these controls."""
    flows = FlowControls.build(controls, clock or Clock())
    return flows.limits_for([control.name for control in controls], cluster)


class Waiting:
    """One request in a queue, and what became of it."""

    def __init__(
        self, limits: RequestLimits, user: str = "alice", long_running: bool = False, resource: str = ""
    ) -> None:
        self.permit: Permit | None = None
        self.error: BaseException | None = None
        self.then: Callable[[], None] = lambda: None
        """Called when it is admitted."""
        self._deferred: Deferred[Permit] = deferred(limits, user, long_running, resource)
        self._deferred.addCallbacks(self._admitted, self._failed)

    @property
    def over(self) -> bool:
        return self.permit is not None or self.error is not None

    def cancel(self) -> None:
        self._deferred.cancel()

    def _admitted(self, permit: Permit) -> None:
        self.permit = permit
        self.then()

    def _failed(self, failure: Failure) -> None:
        self.error = failure.value


def held(permit: Permit | None) -> Permit:
    """A permit that was given at once."""
    assert permit is not None
    return permit
