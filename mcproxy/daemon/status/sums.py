"""The figures of several processes as those of one.

Every process reports its figures; a missing figure (the keeper has no listeners, or a process starts) counts as zero.
Numbers are added, except for facts that all processes know (a limit, a time). For such facts the first process that
knows them wins: callers put the leader first, which checks health and rights for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mcproxy.daemon.status import Figures
from mcproxy.observe.senders import KINDS as SENDERS

_IDENTITY: Mapping[str, tuple[str, ...]] = {
    "listeners": ("name", "bind"),
    "servers": ("name",),
    "clusters": ("name",),
    "endpoints": ("url",),
    "aggregates": ("name",),
    "apiServices": ("name", "cluster"),
    "serviceEndpoints": ("cluster",),
    "ingresses": ("name",),
    "ingressServices": ("service", "port", "cluster", "via"),
    "outEndpoints": ("endpoint",),
    "reflectors": ("cluster", "resource", "version", "namespace"),
    "flowControls": ("name",),
    "reviewers": ("kind", "name"),
    "certificates": ("kind", "name"),
    **dict.fromkeys(SENDERS, ("name",)),
}
"""The lists of objects that several processes have, and the keys that identify an object in all of them."""

_ANY = frozenset({"accepting", "refused"})
"""True if it is true in one process."""

_FACTS = frozenset(
    {
        "ready",
        "terminating",
        "limits",
        "latencySeconds",
        "lagSeconds",
        "lastEventSeconds",
        "tokens",
        "daysLeft",
        "windowSeconds",
    }
)
"""Numbers and objects that are the same in each process, or that one process alone knows."""


def summed(processes: Iterable[Figures]) -> Figures:
    """Return the sums of the figures of processes: each listener, server, cluster … once.

    The objects are taken over and changed: 500 clusters of four processes are summed in a few milliseconds. The lists
    that always are in the status document are there, if empty.
    """
    total: Figures = {"listeners": [], "clusters": []}
    for process in processes:
        _add(total, process)
    return total


def _add(total: Figures, other: Figures) -> None:
    """Add an object to another, key by key; a key that one of both has alone stays as it is."""
    for key, value in other.items():
        one = total.get(key)
        kind = type(value)  # of JSON: there are no subclasses
        if one is None:
            total[key] = value
        elif kind is str or value is None or key in _FACTS:
            continue
        elif kind is int or kind is float:
            total[key] = one + value
        elif kind is dict:
            _add(one, value)
        elif kind is list and key in _IDENTITY:
            _add_all(one, value, _IDENTITY[key])
        elif kind is bool and key in _ANY:
            total[key] = one or value


def _add_all(total: list[Figures], others: list[Figures], identity: tuple[str, ...]) -> None:
    """Add a list of objects to another: those with the same identity are summed."""
    if not total:
        total += others
        return
    known = {tuple(map(entry.get, identity)): entry for entry in total}
    for other in others:
        name = tuple(map(other.get, identity))
        entry = known.get(name)
        if entry is None:
            known[name] = other
            total.append(other)
        else:
            _add(entry, other)
