"""The base class of rotating strategies: a watch that resumes from a list goes to the endpoint that served the list.

An informer lists, then watches from the resource version of the list. A kube-apiserver whose watch cache is older than
that version delays the watch or refuses it ("Too large resource version"). The kube-apiserver that returned the version
never does. This is only a preference: if the entry was evicted or the endpoint is out, the strategy picks as usual.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from mcproxy.upstream.endpoint import Endpoint

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo

_MAX_COLLECTIONS = 4096  # maximum of entries; less than 2 MiB with names of usual length
_MAX_USER_LENGTH = 512  # maximum of characters of a user's name

#: Matches a watch that resumes from a resource version. A query with another spelling only loses the preference.
_RESUMES = re.compile(rb"[?&]resourceVersion=(?!0?(?:&|\Z))")

_Key = tuple[str, str, str, str]


class WatchAffinity:
    """An LRU table of the endpoints that last served each user's lists and watches of a collection."""

    __slots__ = ("_last",)

    def __init__(self, endpoints: Sequence[Endpoint], previous: WatchAffinity | None = None) -> None:
        """Keep the entries of `previous` that name one of `endpoints`."""
        known = {} if previous is None else previous._last
        self._last: dict[_Key, Endpoint] = {key: endpoint for key, endpoint in known.items() if endpoint in endpoints}

    def __len__(self) -> int:
        return len(self._last)

    def record(self, user: str, info: RequestInfo, endpoint: Endpoint) -> None:
        """Record that `endpoint` was picked for this list or watch."""
        if len(user) > _MAX_USER_LENGTH:
            return
        last, key = self._last, _key(user, info)
        if last.pop(key, None) is None and len(last) >= _MAX_COLLECTIONS:
            del last[next(iter(last))]
        last[key] = endpoint

    def preferred(self, user: str, info: RequestInfo, target: bytes) -> Endpoint | None:
        """Return the preferred endpoint of a watch that resumes from a resource version; None for other requests."""
        if info.verb != "watch" or not _RESUMES.search(target):
            return None
        last, key = self._last, _key(user, info)
        endpoint = last.pop(key, None)
        if endpoint is not None:
            last[key] = endpoint
        return endpoint


class AffinityBalancer:
    """A rotating strategy. A watch that goes to the endpoint of its list does not advance the rotation."""

    __slots__ = ("_affinity", "_next", "endpoints")

    def __init__(self, endpoints: Sequence[Endpoint], previous: AffinityBalancer | None) -> None:
        """Start at the first endpoint or, after a reload, at the next remaining one in `previous`'s rotation."""
        self.endpoints = tuple(endpoints)
        self._affinity: WatchAffinity = WatchAffinity(self.endpoints, None if previous is None else previous._affinity)
        self._next: int = 0 if previous is None else _resume_index(previous.endpoints, previous._next, self.endpoints)

    def pick(
        self,
        exclude: Collection[Endpoint] = (),
        user: str = "",
        info: RequestInfo | None = None,
        target: bytes = b"",
    ) -> Endpoint | None:
        """Implement `balancer.Balancer.pick`."""
        if info is None or (info.verb != "list" and info.verb != "watch"):
            return self._next_endpoint(exclude)
        preferred = self._affinity.preferred(user, info, target)
        if (
            preferred is not None
            and preferred.ready
            and preferred not in exclude
            and self._may_prefer(preferred, exclude)
        ):
            return preferred
        endpoint = self._next_endpoint(exclude)
        if endpoint is not None:
            self._affinity.record(user, info, endpoint)
        return endpoint

    def _next_endpoint(self, exclude: Collection[Endpoint]) -> Endpoint | None:
        """Return the next endpoint of the rotation, or None if none is available."""
        raise NotImplementedError

    def _may_prefer(self, endpoint: Endpoint, exclude: Collection[Endpoint]) -> bool:
        """Return whether the strategy allows a watch to use a ready endpoint instead of the next one in rotation."""
        raise NotImplementedError


def _key(user: str, info: RequestInfo) -> _Key:
    return user, info.group, info.resource, info.namespace


def _resume_index(before: Sequence[Endpoint], position: int, now: Sequence[Endpoint]) -> int:
    """Return the index in `now` of the next endpoint, if `before[position]` was next before the reload.

    Removed endpoints are skipped. Returns 0 if no endpoint of `before` remains.
    """
    order = (*before[position:], *before[:position])
    return next((now.index(endpoint) for endpoint in order if endpoint in now), 0)
