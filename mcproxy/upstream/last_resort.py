"""Requests to an endpoint that is out, where no endpoint of the cluster is ready but this one may serve all the same.

An overloaded kube-apiserver answers requests while its /readyz is late, or fails for a reason that concerns few; its
clients would have no service for as long as every check fails. So, as Envoy does in panic mode and k3s' balancer with
nothing better, a request tries an endpoint that was ready and to which no connection has failed since
(`HealthState.may_serve`). One that was never ready is not tried: an API server that starts answers 403 and 404 before
it has read its roles and custom resources, and clients would take that for the truth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

if TYPE_CHECKING:
    from mcproxy.upstream.endpoint import Endpoint

log = Logger(__name__)

SECONDS = 1.0
"""For how long a request tries to get a connection, so that it is refused soon where nothing serves."""
AT_A_TIME = 4
"""Requests that an endpoint has without having answered one, so that they neither wait in masses nor add load."""
_PROVEN_SECONDS = 5.0  # for which an answer shows that it serves; meanwhile all requests may come


class Trial(Protocol):
    """A request (`proxy.request.Request`), as far as it shows whether the endpoint serves."""

    upstream_status: int
    """Of the response, 0 until there is one."""
    ended_at: float
    """When it was over, however it ended; 0 before."""


class Trials:
    """Some of the requests to one endpoint that is out: at most AT_A_TIME are remembered."""

    __slots__ = ("_logged_for", "_proven_until", "_running")

    def __init__(self) -> None:
        self._running: list[Trial] = []
        self._proven_until = float("-inf")
        self._logged_for = float("-inf")  # the outage that the log has named, by its beginning

    def admit(self, now: float) -> bool:
        """Return whether the endpoint may have a further request; `now` in seconds."""
        if any(trial.upstream_status for trial in self._running):
            self._proven_until = now + _PROVEN_SECONDS
        self._running = [trial for trial in self._running if not trial.upstream_status and not trial.ended_at]
        return now < self._proven_until or len(self._running) < AT_A_TIME

    def add(self, trial: Trial) -> None:
        """Remember a request that tries the endpoint."""
        if len(self._running) < AT_A_TIME:
            self._running.append(trial)

    def is_new_outage(self, began: float) -> bool:
        """Return whether the log has not named the outage that began then; it will have."""
        new, self._logged_for = began != self._logged_for, began
        return new


def choose(
    cluster: str, endpoints: Sequence[Endpoint], exclude: Collection[Endpoint], now: float, trial: Trial | None
) -> Endpoint | None:
    """Return the endpoint that a request tries for want of a ready one, the one with the least load; None if none.

    `trial` is the request of a client; None for one of the proxy's own.
    """
    able = [each for each in endpoints if each.may_be_tried and each not in exclude and each.trials.admit(now)]
    if not able:
        return None
    chosen = min(able, key=lambda each: each.load)
    if trial is not None:
        chosen.trials.add(trial)
    if [each for each in able if each.trials.is_new_outage(each.changed_at)]:
        log.warn(
            "no endpoint is ready: requests try those that were, and still take connections",
            event="cluster_last_resort",
            cluster=cluster,
            endpoint=", ".join(each.name for each in able),
            cause=chosen.health.cause,
            todo="see why the checks fail while the API server serves; healthCheck.path and .timeout say what they ask",
            log_subject=("last resort", cluster),
            log_state=chosen.health.cause,
        )
    return chosen
