"""Aggregates: the state of each cache of a member's resource, and the watches."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from mcproxy.daemon.status import Figures

if TYPE_CHECKING:
    from mcproxy.aggregate.aggregates import Aggregates
    from mcproxy.aggregate.cache.store import Store

MAX_REFLECTORS = 1000
"""Caches that are listed, of all aggregates together; more are counted only: 500 members have 50,000."""
_LEAST = 50  # of each aggregate

_STATES = ("unavailable", "syncing", "stale", "synced")
"""From the worst on: never listed and not followed; being listed; listed but not followed now; followed."""


def of_aggregates(owner: Aggregates) -> list[Figures]:
    """Return the figures of all aggregates; of each, what is worst comes first."""
    most = max(_LEAST, MAX_REFLECTORS // max(1, len(owner.live)))
    return [
        {
            "name": name,
            **of_stores(live.stores, owner.now, most),
            "leftOut": [
                {"resource": str(each.gvr), "version": each.gvr.version, "cluster": each.member, "cause": each.why}
                for each in islice(live.left_out, most)
            ],
            "watchers": live.watchers,
            "queuedBytes": live.queued_bytes,
        }
        for name, live in owner.live.items()
    ]


def of_stores(stores: Iterable[Store], now: float, most: int) -> Figures:
    """Return the figures of caches; all are counted, and `most` are listed, the worst first."""
    by_state: dict[str, list[Store]] = {state: [] for state in _STATES}
    objects = size = 0
    for store in stores:
        by_state[_state(store)].append(store)
        objects += len(store)
        size += store.size
    shown = islice((store for state in _STATES for store in by_state[state]), most)
    return {
        "reflectors": [_of_store(store, now) for store in shown],
        "reflectorCounts": {state: len(found) for state, found in by_state.items() if found},
        "objects": objects,
        "bytes": size,
    }


def _state(store: Store) -> str:
    if store.unavailable_since is None:
        return "synced" if store.synced else "syncing"
    return "stale" if store.synced else "unavailable"


def _of_store(store: Store, now: float) -> Figures:
    """Return the figures of one cache.

    `lagSeconds` is the time since the last event, bookmark or list: a member that is followed gives one each minute.
    """
    changed, gvr = store.last_event, store.resource.gvr
    return {
        "cluster": store.member,
        "resource": str(gvr),
        "version": gvr.version,
        "namespace": store.namespace,
        "state": _state(store),
        "objects": len(store),
        "bytes": store.size,
        "lists": store.lists,
        "lagSeconds": round(now - store.last_sign, 1) if store.last_sign else None,
        "lastEventSeconds": None if changed is None else round(now - changed, 1),
        "cause": store.unavailable_cause,
    }
