"""The clusters that discovery is made from, as far as this package needs to know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from mcproxy.kube.discovery import APIGroupDiscovery
    from mcproxy.kube.resource import APIResource, GroupVersionResource
    from mcproxy.upstream.control import ControlResponse


class SourceDiscovery(Protocol):
    """The discovery documents of a cluster (`reflector.MemberDiscovery`)."""

    @property
    def groups(self) -> tuple[APIGroupDiscovery, ...]:
        """Its groups, the core group first; the last known ones if it cannot be reached."""

    @property
    def resources(self) -> Mapping[GroupVersionResource, APIResource]:
        """The same by name."""

    @property
    def fresh(self) -> bool:
        """Whether the newest poll was answered."""

    @property
    def known(self) -> bool:
        """Whether a poll was ever answered."""

    def subscribe(self, notify: Callable[[Any], None]) -> Callable[[], None]:
        """Subscribe to changes; the result unsubscribes."""

    def refresh(self) -> Deferred[None]:
        """Read the documents now; fires when that is done, well or not."""


class Source(Protocol):
    """A member, or a primary that is none (`reflector.Member`)."""

    @property
    def name(self) -> str: ...

    @property
    def unavailable_since(self) -> float | None:
        """Seconds since 1970; None while it can be reached."""

    @property
    def unavailable_cause(self) -> str: ...

    @property
    def discovery(self) -> SourceDiscovery: ...

    async def get(self, path: str, *, headers: tuple[tuple[str, str], ...] = (), max_body: int) -> ControlResponse:
        """GET `path` with the proxy's credential; return the answer, of any status. Raises MemberError."""
