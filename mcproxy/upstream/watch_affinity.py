"""Watch affinity: the endpoint that answered a user's last list or watch of a collection gets the next watch of it.

An informer lists, then watches from the resource version of the list. A kube-apiserver whose watch cache is behind that
version makes the watch wait or refuses it ("Too large resource version"); the one that returned the version never does.
It is a preference: when the entry was evicted or the endpoint is out, the strategy picks as for any request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcproxy.upstream.endpoint import Endpoint

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo

_MAX_COLLECTIONS = 4096  # entries; less than 2 MiB with names of usual length
_MAX_USER_LENGTH = 512  # of a user

#: A watch that resumes from a resource version. A query with another spelling only loses the preference.
_RESUMES = re.compile(rb"[?&]resourceVersion=(?!0?(?:&|\Z))")

_Key = tuple[str, str, str, str]


class WatchAffinity:
    """The most recent endpoint for each user and collection, in an LRU table."""

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


def _key(user: str, info: RequestInfo) -> _Key:
    return user, info.group, info.resource, info.namespace
