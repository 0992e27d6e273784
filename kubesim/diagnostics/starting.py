"""Endpoints that have just started: their ports are open, and they have not read the RBAC roles yet.

A kube-apiserver authorizes from the caches of its informers. Until these have synced, about a second after its port is
open, RBAC refuses every request, /readyz included, with the ordinary 403. Only members of system:masters are allowed,
for whom no role is looked up; the health checks answer 500 to them, because the post-start hooks have not finished.
"""

from __future__ import annotations

__all__ = ["StartingEndpoints"]


class StartingEndpoints:
    """The endpoints of a cluster that are starting. Times are Unix seconds."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def begin(self, endpoint: int, until: float) -> None:
        """The endpoint has no roles until then, or until `finish`."""
        self._until[endpoint] = until

    def finish(self, endpoint: int) -> None:
        """The endpoint has read the roles."""
        self._until.pop(endpoint, None)

    def includes(self, endpoint: int, now: float) -> bool:
        """Return whether the endpoint is starting."""
        until = self._until.get(endpoint)
        if until is None:
            return False
        if now >= until:
            self.finish(endpoint)
            return False
        return True
