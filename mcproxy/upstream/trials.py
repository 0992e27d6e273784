"""Limits the requests that try an endpoint although it is out (`Cluster.last_resort`)."""

from __future__ import annotations

from typing import Protocol

TRIAL_SECONDS = 1.0
"""Timeout in seconds for the connection of a trial, so that the request is refused soon if no endpoint serves."""
AT_A_TIME = 4
"""Maximum of trials at an endpoint that has not responded to any, so that few requests wait and add load."""
_PROVEN_SECONDS = 5.0  # seconds for which a response proves that the endpoint serves, and all requests can try it


class Trial(Protocol):
    """The part of a request (`proxy.request.Request`) that shows whether the endpoint serves."""

    upstream_status: int
    """The status code of the response; 0 until there is one."""
    ended_at: float
    """The time of the request's end, however it ended; 0 before."""


class Trials:
    """The requests to one endpoint that is out; at most AT_A_TIME are remembered."""

    __slots__ = ("_logged_for", "_proven_until", "_running")

    def __init__(self) -> None:
        self._running: list[Trial] = []
        self._proven_until = float("-inf")
        self._logged_for = float("-inf")  # the beginning of the last logged outage

    def admit(self, now: float) -> bool:
        """Return whether a further request can try the endpoint; `now` in seconds."""
        if any(trial.upstream_status for trial in self._running):
            self._proven_until = now + _PROVEN_SECONDS
        self._running = [trial for trial in self._running if not trial.upstream_status and not trial.ended_at]
        return now < self._proven_until or len(self._running) < AT_A_TIME

    def add(self, trial: Trial) -> None:
        """Remember a request that tries the endpoint."""
        if len(self._running) < AT_A_TIME:
            self._running.append(trial)

    def is_new_outage(self, began: float) -> bool:
        """Return whether the outage with this beginning was not logged yet; from now on it counts as logged."""
        new, self._logged_for = began != self._logged_for, began
        return new
