"""The caches of aggregates and services in the status document, and their checks of /readyz."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.daemon.status import Figures
from mcproxy.kube.healthz import Check
from mcproxy.services.endpoint_table import EndpointState, EndpointTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcproxy.aggregate.aggregates import Aggregates
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.live_aggregate import LiveAggregate
    from mcproxy.services.live_services import LiveServices


MAX_REFLECTORS = 1000
"""Limit of listed caches of all aggregates together. Others are only counted, as 500 members have 50,000 caches."""
_LEAST = 50  # number of caches that each aggregate can list, even if there are many aggregates
_STATES = ("unavailable", "syncing", "stale", "synced")
"""From worst to best: never listed and not watched; being listed; listed but not watched now; watched."""
MAX_PROBLEMS = 20
"""Limit of the backends of a cluster whose problem is shown; all are counted."""


def of_aggregates(owner: Aggregates) -> list[Figures]:
    """Return the figures of all aggregates, the worst caches of each first."""
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
    """Return the figures of caches: all are counted, and at most `most` are listed, the worst first."""
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

    `lagSeconds` is the time since the last event, bookmark or list. A watched member sends one of these each minute.
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


def of_services(owner: LiveServices) -> Figures:
    """Return the figures of services.

    The figures include all caches that services read. If an aggregate also reads a cache, its objects count in both.
    """
    return {
        "serviceCaches": of_stores(owner.caches.stores, owner.now, MAX_REFLECTORS),
        "serviceEndpoints": of_endpoints(owner.endpoints),
        **({} if owner.exports is None else owner.exports.figures()),
    }


def of_endpoints(table: EndpointTable) -> list[Figures]:
    """Return for each cluster the numbers of its backends, its unknown and stale backends, and their endpoints."""
    clusters: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        found = clusters.setdefault(
            key.cluster,
            {
                "cluster": key.cluster,
                "backends": 0,
                "unknown": 0,
                "stale": 0,
                "ready": 0,
                "terminating": 0,
                "problems": 0,
                "problemBackends": [],
            },
        )
        ready = sum(endpoint.state is EndpointState.READY for endpoint in value.endpoints)
        found["backends"] += 1
        found["unknown"] += not value.known
        found["stale"] += value.stale
        found["ready"] += ready
        found["terminating"] += len(value.endpoints) - ready
        if value.problem:
            found["problems"] += 1
            if len(found["problemBackends"]) < MAX_PROBLEMS:
                found["problemBackends"].append(
                    {"service": f"{key.namespace}/{key.service}", "port": str(key.port), "cause": value.problem}
                )
    return [clusters[name] for name in sorted(clusters)]


def cache_checks(aggregates: Mapping[str, LiveAggregate], now: float) -> Iterator[Check]:
    """Yield a check for each aggregate; `now` is by the clock of `initial_sync_ends`.

    Caches that are not in sync fail readiness while reads wait for them (`initialSyncTimeout`). Later they fail it only
    if the aggregate needs them: with `unavailable: Fail`, or if no cache is in sync.
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
            cause = f"{stale} of {len(stores)} caches are not being watched"
        begins = bool(unknown or never) and (now < aggregate.initial_sync_ends or never == len(stores))
        yield Check(f"aggregate/{name}", cause, needed=begins or aggregate.unavailable is UnavailableMembers.FAIL)
