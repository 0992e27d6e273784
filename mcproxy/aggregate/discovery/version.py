"""/version of an aggregate: the primary's, else that of the reachable member with the lowest version.

Clients choose features by it, so it must not be higher than any member's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.discovery.last_read import LastRead
from mcproxy.aggregate.reflector.member import Member
from mcproxy.kube.discovery import DiscoveryError
from mcproxy.kube.status import retry_after

_LIFETIME = 60.0  # seconds for which an answer counts as current
_PATIENCE = 3.0  # seconds to wait for a cluster
_MAX_BODY = 64 * 1024
_RETRY_AFTER = 5  # seconds
_NUMBERS = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?")


class _Info(msgspec.Struct, rename="camel"):
    git_version: str


class Version(NamedTuple):
    """The answer of a cluster, and the numbers of its gitVersion."""

    body: bytes
    numbers: tuple[int, ...]


class Versions:
    """The versions of the clusters of one aggregate, as last read."""

    def __init__(self, clock: IReactorTime) -> None:
        self._versions = LastRead("the version", clock, _read, lifetime=_LIFETIME, patience=_PATIENCE)

    async def current(self, primary: Member | None, members: Sequence[Member]) -> bytes:
        """Return the document of /version. Raises StatusError 503 if no cluster has ever told its version."""
        for group in ((primary,) if primary is not None else (), members):
            await self._versions.refresh(group, wait_for_old=False)
            for reachable in (True, False):
                found = [
                    version
                    for source in group
                    if (source.unavailable_since is None) == reachable
                    and (version := self._versions.known(source.name)) is not None
                ]
                if found:
                    return min(found, key=lambda version: version.numbers).body
        raise retry_after(503, "no cluster has told its version yet", _RETRY_AFTER)


async def _read(source: Member, _: Version | None) -> Version:
    response = await source.get("/version", headers=(("accept", "application/json"),), max_body=_MAX_BODY)
    if response.status != 200:
        raise DiscoveryError(f"the cluster answered {response.status} on /version")
    try:
        match = _NUMBERS.match(msgspec.json.decode(response.body, type=_Info).git_version)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        match = None
    if match is None:
        raise DiscoveryError("not a version document")
    return Version(response.body, tuple(int(number or 0) for number in match.groups()))
