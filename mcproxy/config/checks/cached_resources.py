"""Entries of an aggregate's scope (`cache.resources`) that add nothing."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.context import Context
from mcproxy.config.model import CachedResource
from mcproxy.config.names import suggest
from mcproxy.config.reading.nodes import Place
from mcproxy.kube.core_resources import CORE_RESOURCES


def check_cached_resources(context: Context, places: Sequence[Place], entries: Sequence[CachedResource]) -> None:
    """Warn of each entry that another one has already, and of what the core group does not have.

    `places` are those of the entries. Entries that overlap in part add up. Entries with errors are passed over.
    """
    good = [(place, entry) for place, entry in zip(places, entries, strict=True) if _is_good(place)]
    for number, (place, entry) in enumerate(good):
        for other, (other_place, wider) in enumerate(good):
            # Of two that are the same the first counts.
            if other != number and has_all(wider, entry) and not (other > number and has_all(entry, wider)):
                what = f"adds nothing: {other_place.key} ({other_place.mark}) has all of it"
                context.warn(place, "no-effect", what, "keep one of the two")
                break
        written = place.get("resource")
        is_core = entry.group == "" and entry.version == "v1" and entry.resource != "*"
        if is_core and written is not None and entry.resource not in CORE_RESOURCES:
            what = f"the core group has no resource {written.shown} that can be listed"
            context.warn(written, "matches-nothing", what, suggest(entry.resource, CORE_RESOURCES))


def _is_good(place: Place) -> bool:
    return not place.is_broken and all(place.has(key) for key in ("group", "version", "resource"))


def has_all(wider: CachedResource, entry: CachedResource) -> bool:
    """Whether an entry has everything that another one has, whatever resources, namespaces and members there are."""
    return (
        wider.version == entry.version
        and wider.names(entry.group, entry.resource)
        and _all_of(wider.namespaces, entry.namespaces)
        and _all_of(wider.clusters, entry.clusters)
    )


def _all_of(wider: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a list has all names of another; an empty list has all names there are."""
    return not wider or (bool(names) and set(names) <= set(wider))
