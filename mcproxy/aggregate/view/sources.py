"""What views are made from, as far as this package needs to know it; `aggregate.reflector` implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.kube.resource import APIResource, GroupVersionResource


class Discovery(Protocol):
    """What a member is known to have (`reflector.MemberDiscovery`)."""

    @property
    def groups(self) -> tuple[Any, ...]:
        """Its discovery documents; empty while it was never reached."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether that is its present state; False: the last known one."""
        ...

    @property
    def resources(self) -> Mapping[GroupVersionResource, APIResource]: ...

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change, until the returned function is called."""
        ...


class ClusterMember(Protocol):
    """A member cluster (`reflector.Member`)."""

    @property
    def name(self) -> str: ...

    @property
    def discovery(self) -> Discovery: ...


class StoreProvider(Protocol):
    """The owner of the stores (`reflector.Reflectors`), which counts their uses."""

    def acquire(self, member: str, resource: APIResource, namespace: str, options: Any) -> Store: ...

    def release(self, store: Store) -> None: ...
