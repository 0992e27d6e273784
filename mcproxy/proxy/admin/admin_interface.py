"""The interface through which Admin listeners get their data from the daemon: in this process, or over the channel to
the supervisor."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from mcproxy.kube.healthz import Check


class AdminSource(Protocol):
    """The daemon's interface for an Admin listener; all data covers all processes of the daemon.

    Each method raises StatusError (503) if a needed process does not answer.
    """

    def status(self) -> Coroutine[Deferred[Any], Any, dict[str, Any]]:
        """Return the status document, in the form of the control command `status`."""

    def metrics(self, openmetrics: bool) -> Coroutine[Deferred[Any], Any, list[bytes]]:
        """Return the body of /metrics, in pieces."""

    async def requests(self) -> dict[str, Any]:
        """Return the requests in flight: ``{"total": int, "requests": [...], "missing": [process, …]}``.

        `requests` are the results of `request_list.described`, the oldest first; there can be fewer than `total`.
        """

    async def config(self) -> str:
        """Return the configuration in force as YAML, secrets masked, as `mcproxy dump` prints it."""

    def checks(self) -> Coroutine[Deferred[Any], Any, Sequence[Check]]:
        """Return the checks of /readyz that need the whole daemon: its last reload and its caches."""
