"""The owner of the caches of the process: members, their reflectors and stores, and their saved state.

Aggregates and services are its readers. Each reader names the clusters that it uses; a cluster is a member as long as a
reader uses it, and a store is followed as long as a reader has acquired it, so a resource with several readers is
listed and watched once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from mcproxy.aggregate.reflector.reflectors import Reflectors, StoreOptions
from mcproxy.aggregate.saved_state import InThread, SavedState

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.resource_version.layout import LayoutHistory
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


class MemberCaches:
    """Members and caches; they outlive every reload."""

    def __init__(self, shared: UpstreamContext, in_thread: InThread, wall: Callable[[], float]) -> None:
        """`in_thread` calls a function with arguments in a thread; `wall` returns seconds since 1970."""
        self.clock = shared.reactor
        self.saved = SavedState(self, shared.reactor, in_thread, wall)
        self.reflectors = Reflectors(shared, saved=self.saved)
        self.layouts: Callable[[], Mapping[str, LayoutHistory]] = dict
        """Returns the layouts of each aggregate, by its name; they are saved with the caches."""
        self._used: dict[str, tuple[str, ...]] = {}  # by reader
        self._max_ages: dict[str, float] = {}  # likewise

    def use(
        self,
        reader: str,
        names: Iterable[str],
        clusters: Mapping[str, Cluster],
        state_dir: str | None,
        *,
        max_age: float = 0.0,
    ) -> None:
        """Follow a configuration with `clusters` in force: `reader` uses those of `names`, in place of those before.

        To be called before stores of new members are acquired, and before those of former ones are released: these stay
        until they are. `max_age`: of members' decisions that are saved, in seconds.
        """
        self._used[reader] = tuple(dict.fromkeys(names))
        self._max_ages[reader] = max_age
        used = dict.fromkeys(name for each in self._used.values() for name in each if name in clusters)
        self.saved.use(state_dir if used else None, max(self._max_ages.values()))
        self.reflectors.update({name: clusters[name] for name in used})

    @property
    def now(self) -> float:
        """The time by the clock of the caches, seconds."""
        return self.clock.seconds()

    async def save(self) -> None:
        """Save everything that has changed since it was last saved (at a shutdown)."""
        await self.saved.save()

    def stop(self) -> None:
        """End everything at once; to be called when the readers have ended."""
        self.saved.stop()
        self.reflectors.stop()

    # -- saved_state.LiveState ------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        """All members, by name."""
        return self.reflectors.members

    @property
    def stores(self) -> Iterable[tuple[Store, StoreOptions]]:
        """All stores, with their options."""
        return self.reflectors.stores

    @property
    def histories(self) -> Mapping[str, LayoutHistory]:
        """The layouts of each aggregate, by its name."""
        return self.layouts()

    @property
    def complete(self) -> bool:
        """Whether every member's resources are known, so that what is not there now is not needed."""
        return all(member.discovery.known for member in self.members.values())
