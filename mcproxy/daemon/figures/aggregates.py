"""Aggregates: how each cache of a member's resource is followed, and who watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mcproxy.daemon.figures import Figures

if TYPE_CHECKING:
    from mcproxy.aggregate.aggregates import Aggregates
    from mcproxy.aggregate.cache.store import Store

MAX_REFLECTORS = 2000
"""Entries of one aggregate; more than that are counted only: 500 members have 50,000 caches."""

_STATES = ("unavailable", "syncing", "stale", "synced")
"""From the worst on: never listed and not followed; being listed; listed but not followed now; followed."""


def of_aggregates(owner: Aggregates) -> list[Figures]:
    """Return the figures of all aggregates; of each, what is worst comes first."""
    return [
        {
            "name": name,
            **_of_stores(live.stores, owner.now),
            "watchers": live.watchers,
            "queuedBytes": live.queued_bytes,
        }
        for name, live in owner.live.items()
    ]


def _of_stores(stores: Iterable[Store], now: float) -> Figures:
    entries = [_of_store(store, now) for store in stores]
    entries.sort(key=lambda entry: _STATES.index(entry["state"]))
    return {
        "reflectors": entries[:MAX_REFLECTORS],
        "reflectorCounts": dict(Counter(entry["state"] for entry in entries)),
        "objects": sum(entry["objects"] for entry in entries),
        "bytes": sum(entry["bytes"] for entry in entries),
    }


def _of_store(store: Store, now: float) -> Figures:
    """Return the figures of one cache.

    `lagSeconds` is the time since the last event, bookmark or list: a member that is followed gives one each minute.
    """
    away = store.unavailable_since is not None
    state = ("stale" if away else "synced") if store.synced else ("unavailable" if away else "syncing")
    changed, gvr = store.last_event, store.resource.gvr
    return {
        "cluster": store.member,
        "resource": str(gvr),
        "version": gvr.version,
        "namespace": store.namespace,
        "state": state,
        "objects": len(store),
        "bytes": store.size,
        "lists": store.lists,
        "lagSeconds": round(now - store.last_sign, 1) if store.last_sign else None,
        "lastEventSeconds": None if changed is None else round(now - changed, 1),
        "cause": store.unavailable_cause,
    }
