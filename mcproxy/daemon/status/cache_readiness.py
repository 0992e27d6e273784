"""The checks of /readyz for aggregates: whether their caches are in sync, made where the caches are. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from mcproxy.config.model.aggregates import Unavailable
from mcproxy.kube.healthz import Check

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class Cache(Protocol):
    """One cache (`aggregate.cache.store.Store`)."""

    @property
    def synced(self) -> bool:
        """Whether it has a complete state, however old."""

    @property
    def unavailable_since(self) -> float | None:
        """Since when it is not followed; None while it is."""


class Aggregate(Protocol):
    """One aggregate (`aggregate.live_aggregate.LiveAggregate`)."""

    @property
    def stores(self) -> Collection[Cache]: ...
    @property
    def undiscovered(self) -> Collection[object]: ...
    @property
    def initial_sync_ends(self) -> float: ...
    @property
    def unavailable(self) -> Unavailable: ...


def cache_checks(aggregates: Mapping[str, Aggregate], now: float) -> Iterator[Check]:
    """Yield a check for each aggregate; `now` is by the clock of `initial_sync_ends`.

    Caches that are not in sync fail the whole as long as reads wait for them (`initialSyncTimeout`), and behind that
    where the aggregate is not served without them: with `unavailable: Fail`, or if none is in sync.
    """
    for name, aggregate in aggregates.items():
        stores, unknown = aggregate.stores, len(aggregate.undiscovered)
        never = sum(not store.synced for store in stores)
        stale = sum(store.synced and store.unavailable_since is not None for store in stores)
        cause = ""
        if unknown:
            cause = f"what {unknown} of its clusters have is not known yet"
        elif never:
            cause = f"{never} of {len(stores)} caches are not in sync yet"
        elif stale:
            cause = f"{stale} of {len(stores)} caches are not followed"
        begins = bool(unknown or never) and (now < aggregate.initial_sync_ends or never == len(stores))
        yield Check(f"aggregate/{name}", cause, needed=begins or aggregate.unavailable is Unavailable.FAIL)
