"""The base of strategies that rotate: a watch that resumes from a list prefers the endpoint that answered the list.

The table of preferred endpoints is `watch_affinity`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.watch_affinity import WatchAffinity

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo


class RotatingBalancer:
    """A rotating strategy. A watch that goes to the endpoint of its list does not advance the rotation."""

    __slots__ = ("_affinity", "endpoints")

    def __init__(self, endpoints: Sequence[Endpoint], previous: RotatingBalancer | None) -> None:
        self.endpoints = tuple(endpoints)
        self._affinity: WatchAffinity = WatchAffinity(self.endpoints, None if previous is None else previous._affinity)

    def pick(
        self,
        exclude: Collection[Endpoint] = (),
        user: str = "",
        info: RequestInfo | None = None,
        target: bytes = b"",
    ) -> Endpoint | None:
        """See `balancer.Balancer.pick`."""
        if info is None or (info.verb != "list" and info.verb != "watch"):
            return self._next_endpoint(exclude)
        preferred = self._affinity.preferred(user, info, target)
        if (
            preferred is not None
            and preferred.ready
            and preferred not in exclude
            and self._may_prefer(preferred, exclude)
        ):
            return preferred
        endpoint = self._next_endpoint(exclude)
        if endpoint is not None:
            self._affinity.record(user, info, endpoint)
        return endpoint

    def _next_endpoint(self, exclude: Collection[Endpoint]) -> Endpoint | None:
        """Return the next endpoint of the rotation, or None if none is available."""
        raise NotImplementedError

    def _may_prefer(self, endpoint: Endpoint, exclude: Collection[Endpoint]) -> bool:
        """Return whether the strategy allows a ready endpoint to be preferred over the next of the rotation."""
        raise NotImplementedError
