"""Reviews of tokens and of rights: how many wait and run, and how many results are cached."""

from __future__ import annotations

from collections.abc import Iterable

from mcproxy.daemon.figures import Figures
from mcproxy.identity.singleflight import ReviewLoad

_CACHES = {"tokens": "tokens", "access": "decisions"}


def of_reviews(loads: Iterable[tuple[str, str, ReviewLoad]]) -> Figures:
    """Return the figures `reviews` and `caches`, from ``(kind, name, load)`` of each reviewer.

    `name` is the set of authenticators whose tokens are reviewed (kind "tokens"), or the cluster that is asked whether
    a request is allowed ("access").
    """
    reviewers: dict[tuple[str, str], Figures] = {}
    caches = dict.fromkeys(_CACHES.values(), 0)
    for kind, name, load in loads:
        entry = reviewers.setdefault(
            (kind, name), {"kind": kind, "name": name, "waiting": 0, "running": 0, "cached": 0}
        )
        for key in ("waiting", "running", "cached"):
            entry[key] += getattr(load, key)
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
