"""Reviews of tokens and of rights: how many wait and run, and how many results are cached."""

from __future__ import annotations

from collections.abc import Iterable

from mcproxy.daemon.status import Figures
from mcproxy.identity.singleflight import ReviewLoad

_NUMBERS = {
    **{name: name for name in ("waiting", "running", "cached", "places")},
    "largestShare": "largest_share",
}
"""Keys, and the attributes of `ReviewLoad`. A share is that of the client or user with the most places."""

_CACHES = {"tokens": "tokens", "access": "decisions"}


def of_reviews(loads: Iterable[tuple[str, str, ReviewLoad]]) -> Figures:
    """Return the figures `reviews` and `caches`, from ``(kind, name, load)`` of each reviewer.

    `name` is the set of authenticators whose tokens are reviewed (kind "tokens"), or the cluster that is asked whether
    a request is allowed ("access").
    """
    reviewers: dict[tuple[str, str], Figures] = {}
    caches = dict.fromkeys(_CACHES.values(), 0)
    for kind, name, load in loads:
        entry = reviewers.setdefault((kind, name), {"kind": kind, "name": name, **dict.fromkeys(_NUMBERS, 0)})
        for key, attribute in _NUMBERS.items():
            entry[key] += getattr(load, attribute)
        caches[_CACHES[kind]] += load.cached
    found = list(reviewers.values())
    return {
        "reviews": {
            "waiting": sum(entry["waiting"] for entry in found),
            "running": sum(entry["running"] for entry in found),
            "reviewers": found,
        },
        "caches": caches,
    }
