"""One endpoint of a backend: how many requests it has, and whether it takes more.

An endpoint that its cluster calls ready can be out for two reasons:

*Passive health* (`out_by_requests`). A failure is what nginx always counts as one (`proxy_next_upstream error timeout
invalid_header`): no connection, a connection that ends before the head of the response, no head in time, a malformed
head. A status that the pod answers with is none, 502, 503 and 504 included, unless `retryOn` names it: nginx does the
same, and the load of an application that sheds load with 503 would move to its neighbours. Three failures in a row put
the endpoint out for 10 s, each time in a row for twice as long, at most 60 s. Then its trial begins: the first failure
puts it out again, the first response ends the trial.

*Active health* (`out_by_checks`), where the backend has a `healthCheck`: the endpoint is out after `unhealthyAfter`
failed checks in a row, until `healthyAfter` successful ones in a row.

If all ready endpoints are out, all of them are used (`endpoint_balancer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.services.endpoint_table import EndpointState, PodEndpoint

if TYPE_CHECKING:
    from mcproxy.services.ingress.forward_target import Target

MAX_FAILURES = 3
"""Failures in a row that put an endpoint out."""
FIRST_OUT = 10.0
"""Seconds for which it is out the first time."""
LONGEST_OUT = 60.0
"""Seconds for which it is out at most."""


class BackendEndpoint:
    """An endpoint in one cluster; of one backend, or of several that differ only in how they choose."""

    __slots__ = (
        "_clock",
        "_failures",
        "_gone",
        "_outs",
        "_timer",
        "changed",
        "cluster",
        "failures_total",
        "name",
        "out_by_checks",
        "out_by_requests",
        "pod",
        "problem",
        "since",
        "target",
        "went_out",
    )

    def __init__(
        self, cluster: str, pod: PodEndpoint, target: Target, clock: IReactorTime, since: float = -math.inf
    ) -> None:
        """`target` is how it is reached (`pod_pools`); `since` is when it came, or came back, by the clock."""
        self.cluster = cluster
        self.pod = pod
        self.target = target
        self.since = since
        address = f"[{pod.address}]" if ":" in pod.address else pod.address
        self.name = f"{address}:{pod.port}" if pod.port else address  # none of an API server, which chooses the pod
        self.out_by_requests = False
        self.out_by_checks = False
        self.problem = ""  # why it is out, for an operator
        self.failures_total = 0
        self.changed: Callable[[], None] = _nothing  # called when `usable` may be another one
        # Called when failed requests have put it out; for how many seconds.
        self.went_out: Callable[[BackendEndpoint, float], None] = _ignored
        self._clock = clock
        self._failures = 0  # in a row
        self._gone = False
        self._outs = 0  # in a row
        self._timer: IDelayedCall | None = None

    @property
    def in_flight(self) -> int:
        """The requests at the endpoint, of all backends."""
        return self.target.in_flight

    @property
    def ready(self) -> bool:
        """Whether its cluster calls it ready."""
        return self.pod.state is EndpointState.READY

    @property
    def usable(self) -> bool:
        """Whether it takes requests as long as there is such an endpoint."""
        return not self.out_by_requests and not self.out_by_checks

    def succeeded(self) -> None:
        """The head of a response has arrived."""
        if self._failures:
            self._failures = self._outs = 0

    def failed(self, problem: str) -> None:
        """Count a failure."""
        self.failures_total += 1
        self._failures += 1
        if self._failures < MAX_FAILURES or self.out_by_requests or self._gone:
            return
        self.out_by_requests = True
        self.problem = problem
        seconds = min(LONGEST_OUT, FIRST_OUT * 2 ** min(self._outs, 10))
        self._outs += 1
        self._timer = self._clock.callLater(seconds, self._begin_trial)
        self.changed()
        self.went_out(self, seconds)

    def _begin_trial(self) -> None:
        self._timer = None
        self.out_by_requests = False
        self._failures = MAX_FAILURES - 1  # on trial
        self._came_back()

    def checked(self, failing: bool, problem: str = "") -> None:
        """Active checks have decided."""
        if failing is not self.out_by_checks:
            self.out_by_checks = failing
            if failing:
                self.problem = problem
                self.changed()
            else:
                self._came_back()

    def _came_back(self) -> None:
        """One of the reasons why it was out is gone; without any it starts as slowly as one that has come."""
        if self.usable:
            self.since = self._clock.seconds()
        self.changed()

    def stop(self) -> None:
        """It is gone: end its timer; what runs there and fails begins none."""
        self._gone = True
        self.changed, self.went_out = _nothing, _ignored
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing() -> None:
    """Do nothing."""


def _ignored(endpoint: BackendEndpoint, seconds: float) -> None:
    """Do nothing."""
