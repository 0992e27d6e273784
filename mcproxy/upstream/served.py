"""Which endpoint answered a user's last list or watch of a collection, so that the next watch of it goes there too.

An informer lists, then watches from the resource version that it was given. An API server whose own cache is behind
that version makes it wait or refuses ("Too large resource version"); the one that gave the version never does. This is
a preference, not a promise: what is forgotten, or out, is picked by turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcproxy.upstream.endpoint import Endpoint

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo

_MOST = 4096  # collections that are remembered: below 2 MiB with names of usual length
_LONGEST_NAME = 512  # of a user

#: A watch that goes on from a version. Only a hint is lost by a query that spells this in another way.
_RESUMES = re.compile(rb"[?&]resourceVersion=(?!0?(?:&|\Z))")

_Key = tuple[str, str, str, str]


class Served:
    """The newest endpoint for each user and collection; the least recently used are forgotten first."""

    __slots__ = ("_last",)

    def __init__(self, endpoints: Sequence[Endpoint], previous: Served | None = None) -> None:
        """Keep of `previous` what is about one of `endpoints`."""
        known = {} if previous is None else previous._last
        self._last: dict[_Key, Endpoint] = {key: endpoint for key, endpoint in known.items() if endpoint in endpoints}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, user: str, info: RequestInfo, endpoint: Endpoint) -> None:
        """Remember that `endpoint` was picked for this list or watch."""
        if len(user) > _LONGEST_NAME:
            return
        last, key = self._last, _key(user, info)
        if last.pop(key, None) is None and len(last) >= _MOST:
            del last[next(iter(last))]
        last[key] = endpoint

    def preferred(self, user: str, info: RequestInfo, target: bytes) -> Endpoint | None:
        """Return where this request belongs: a watch from a version, to where the version came from."""
        if info.verb != "watch" or not _RESUMES.search(target):
            return None
        last, key = self._last, _key(user, info)
        endpoint = last.pop(key, None)
        if endpoint is not None:
            last[key] = endpoint
        return endpoint


def _key(user: str, info: RequestInfo) -> _Key:
    return user, info.group, info.resource, info.namespace
