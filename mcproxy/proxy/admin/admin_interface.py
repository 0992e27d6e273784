"""Where an Admin listener has its answers from: the daemon, in this process or over the channel to the supervisor."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from mcproxy.kube.healthz import Check


class AdminSource(Protocol):
    """The daemon, as an Admin listener sees it: everything is of all its processes.

    Each raises StatusError (503) if what it needs does not answer.
    """

    def status(self) -> Coroutine[Deferred[Any], Any, dict[str, Any]]:
        """Return the status document, as the control command `status` answers it."""

    def metrics(self, openmetrics: bool) -> Coroutine[Deferred[Any], Any, list[bytes]]:
        """Return the text of /metrics, in pieces."""

    async def requests(self) -> dict[str, Any]:
        """Return the requests in flight: ``{"total": int, "requests": [...], "missing": [process, …]}``.

        `requests` are those of `request_list.described`, the oldest first; there may be fewer than `total`.
        """

    async def config(self) -> str:
        """Return the configuration in force as YAML, secrets masked, as `mcproxy dump` prints it."""

    def checks(self) -> Coroutine[Deferred[Any], Any, Sequence[Check]]:
        """Return the checks of /readyz that only the whole daemon knows: its last reload, its caches."""
