"""Warnings about a reload that changes the places of members in resource versions.

Versions with another order or set of members are not comparable with older ones, unless members were only appended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcproxy.config.loaded import Loaded
from mcproxy.config.model import Config, ResourceVersions
from mcproxy.config.problem import Problem

_CONSEQUENCE = "so later versions do not compare with those from before"
_MAX_NAMES = 8


def layouts_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the names whose places the resource versions of each aggregate have, by its name."""
    return {aggregate.name: aggregate.layout for aggregate in config.aggregates}


def layout_warnings(before: Mapping[str, Sequence[str]], loaded: Loaded) -> tuple[Problem, ...]:
    """Return a warning for each aggregate of `before`, as `layouts_of`, whose members lose or change their places."""
    found = []
    for aggregate in loaded.config.aggregates:
        old, new = tuple(before.get(aggregate.name, ())), aggregate.layout
        if new[: len(old)] == old or aggregate.resource_versions is ResourceVersions.KARMADA:
            continue
        gone = [name for name in old if name not in new]
        if gone:
            what = f"a reload would take {_named(gone)} out of resource versions, {_CONSEQUENCE}"
            right = f"keep {_named(gone)} in clusters, where it was, and add formerMembers: [{_named(gone)}]"
        else:
            what = f"a reload would change the places of members in resource versions ({_named(old)}), {_CONSEQUENCE}"
            right = "keep that order, and add members at the end"
        key = "clusters" if ("aggregates", aggregate.name, "clusters") in loaded.locations else "clusterSelector"
        place = loaded.location("aggregates", aggregate.name, key)
        found.append(Problem(place.mark if place else None, place.key if place else "", what, right))
    return tuple(found)


def _named(names: Sequence[str]) -> str:
    return ", ".join((*names[:_MAX_NAMES], *(("…",) if len(names) > _MAX_NAMES else ())))
