"""The figures of several processes as those of one.

Every process tells what it has; one that has none of something (the keeper has no listeners), or starts, counts as
nothing. Numbers are added, but for those that are a fact which all processes know (a limit, a time). Of such facts the
first process that knows them is believed: callers put the leader first, who checks health and rights for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcproxy.daemon.figures import Figures

_IDENTITY: Mapping[str, tuple[str, ...]] = {
    "listeners": ("name", "bind"),
    "servers": ("name",),
    "clusters": ("name",),
    "endpoints": ("url",),
    "aggregates": ("name",),
    "reflectors": ("cluster", "resource", "version", "namespace"),
    "flowControls": ("name",),
    "reviewers": ("kind", "name"),
    "certificates": ("kind", "name"),
}
"""The lists of objects that several processes have, and by which keys an object is the same in each."""

_ANY = frozenset({"accepting"})
"""True if it is true in one process."""

_FACTS = frozenset({"ready", "limits", "latencySeconds", "lagSeconds", "lastEventSeconds", "tokens", "daysLeft"})
"""Numbers and objects that are the same in each process, or that one process alone knows."""


def summed(processes: Sequence[Figures]) -> Figures:
    """Return the sums of the figures of processes: each listener, server, cluster … once.

    Nothing that is given is changed. The lists that always are in the status document are there, if empty.
    """
    total: Figures = {"listeners": [], "clusters": []}
    for process in processes:
        total = _object(total, process)
    return total


def _object(one: Mapping[str, Any], other: Mapping[str, Any]) -> Figures:
    """Sum two objects, key by key; a key that one of both has alone stays as it is."""
    found = dict(one)
    for key, value in other.items():
        found[key] = _value(key, one[key], value) if key in one else value
    return found


def _value(key: str, one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if key in _ANY:
        return one or other
    if key in _FACTS or type(one) is bool:
        return one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _object(one, other)
    if isinstance(one, list):
        return _list(key, one, other) if key in _IDENTITY else one
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    return one


def _list(key: str, one: Sequence[Figures], other: Sequence[Figures]) -> list[Figures]:
    """Put two lists of objects together: those with the same identity are summed."""
    identity = _IDENTITY[key]
    found: dict[tuple[Any, ...], Figures] = {}
    for entry in (*one, *other):
        name = tuple(entry.get(part) for part in identity)
        found[name] = _object(found[name], entry) if name in found else entry
    return list(found.values())
