"""Polls a member's discovery documents, and keeps the last known ones while the member is unreachable.

A poll requests the aggregated documents of /api and /apis (KEP-3352) with the ETag of the known ones, so the usual
answer is a 304. If a member has only the legacy documents (before 1.26), it requests each group-version, less often.

If the member's groups have to be sorted among others (`want_priorities`), each poll also requests its APIServices. If
the member does not return them, the constant priorities of a kube-apiserver apply (`discovery.merge`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Annotated, Protocol

import msgspec
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.reflector.member_calls import CoalescedCall, InterruptibleSleep, MemberError
from mcproxy.kube import discovery
from mcproxy.kube.discovery import APIGroupDiscovery, APIVersionDiscovery
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.log_once import LogOnce
from mcproxy.upstream.control import ControlResponse
from mcproxy.upstream.remedies import remedy

log = Logger(__name__)

POLL = 30.0  # seconds between two polls, with a jitter
POLL_LEGACY = 120.0  # seconds between two polls that need a request for each group-version
_JITTER = 0.1
_FIRST_RETRY, _MAX_RETRY = 1.0, 30.0
_MIN_GAP = 1.0  # minimum seconds between two reads, however often they are requested
_LEGACY_GAP = 10.0  # minimum gap after a read of many requests, as a multiple of its duration
_MAX_DOCUMENT = 32 * 1024 * 1024
_MAX_GROUP_VERSIONS = 2_000  # maximum for a member with only legacy documents
_PRIORITIES = "/apis/apiregistration.k8s.io/v1/apiservices"
_MAX_PRIORITIES = 16 * 1024 * 1024

_ROOTS = ("/api", "/apis")
_ACCEPT = ("accept", discovery.AGGREGATED_ACCEPT)
_ACCEPT_LEGACY = (("accept", "application/json"),)


class Asker(Protocol):
    """The type of `Member.get`, which sends a GET request to a member."""

    async def __call__(self, path: str, *, headers: tuple[tuple[str, str], ...], max_body: int) -> ControlResponse: ...


_Number = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Priority(msgspec.Struct, frozen=True, rename="camel"):
    """The priorities by which a member's APIService is sorted among others."""

    group: str
    version: str
    group_priority_minimum: _Number
    version_priority: _Number


class _APIService(msgspec.Struct):
    spec: Priority


class _APIServices(msgspec.Struct):
    items: Annotated[list[_APIService], msgspec.Meta(max_length=_MAX_GROUP_VERSIONS)]


@dataclass(slots=True)
class _Root:
    """The last known document of /api or /apis."""

    groups: tuple[APIGroupDiscovery, ...] = ()
    etag: str = ""
    legacy: bool = False


class MemberDiscovery:
    """The discovery documents of one member.

    `groups` are the groups as the member describes them, the core group first; `resources` are their resources by name.
    `fresh`: the newest poll was answered. `known`: documents were read or restored. `priorities` has group and version.
    """

    def __init__(self, member: str, ask: Asker, clock: IReactorTime, random: Callable[[], float]) -> None:
        """`random` returns a float in [0, 1)."""
        self.groups: tuple[APIGroupDiscovery, ...] = ()
        self.resources: Mapping[GroupVersionResource, APIResource] = MappingProxyType({})
        self.fresh = False
        self.known = False
        self.priorities: Mapping[tuple[str, str], Priority] = MappingProxyType({})
        self._wants_priorities = False
        self._member = member
        self._ask = ask
        self._clock = clock
        self._random = random
        self._roots = {root: _Root() for root in _ROOTS}
        self._listeners: list[Callable[..., None]] = []
        self._sleepers = InterruptibleSleep(clock)
        self._gaps = InterruptibleSleep(clock)  # separate, since nothing may end these waits early
        self._reads = CoalescedCall(self._read)
        self._polling: Deferred[None] | None = None
        self._stopped = False
        self._read_at = 0.0
        self._gap = _MIN_GAP
        self._once = LogOnce(inf)

    def subscribe(self, notify: Callable[..., None]) -> Callable[[], None]:
        """Subscribe to changes of `groups`, `fresh` and `known`; the result unsubscribes."""
        self._listeners.append(notify)

        def unsubscribe() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return unsubscribe

    def restore(self, groups: tuple[APIGroupDiscovery, ...]) -> None:
        """Restore documents that were read before the process started."""
        self.known = True
        for path, root in self._roots.items():
            root.groups = tuple(group for group in groups if bool(group.metadata.name) == (path == "/apis"))
        self.groups = groups
        self.resources = MappingProxyType(discovery.api_resources(groups))

    def start(self) -> None:
        """Begin to poll."""
        if self._polling is None:
            self._polling = Deferred.fromCoroutine(self._poll())
            self._polling.addErrback(self._ended)

    def stop(self) -> None:
        """End polling; the known documents stay."""
        self._stopped = True
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
        self._reads.stop()
        self._sleepers.wake()

    def refresh(self) -> Deferred[None]:
        """Read the documents now, e.g. after an unexpected 404; fires when the read is done, successfully or not."""
        return self._reads.join()

    def renew(self, age: float) -> Deferred[None]:
        """Read the documents if the newest read began more than `age` seconds ago; fires as `refresh` does."""
        if self.fresh and not self._reads.running and self._clock.seconds() - self._read_at < age:
            return succeed(None)
        return self._reads.share()

    def want_priorities(self) -> None:
        """Include `priorities` in this and all later polls."""
        if not self._wants_priorities:
            self._wants_priorities = True
            self.poll_soon()

    def poll_soon(self) -> None:
        """Poll immediately, since the member is reachable again."""
        self._sleepers.wake()

    async def _poll(self) -> None:
        retry = _FIRST_RETRY
        while not self._stopped:
            await self._reads.join()
            if self._wants_priorities and self.fresh:  # do not wait twice for a member that hangs
                await self._read_priorities()
            if bool(self._stopped):  # meanwhile: bool() makes mypy forget what it was
                return
            if self.fresh:
                retry = _FIRST_RETRY
                wait = POLL_LEGACY if any(root.legacy for root in self._roots.values()) else POLL
                wait *= 1 + _JITTER * (2 * self._random() - 1)
            else:
                wait = retry * (0.5 + self._random() / 2)
                retry = min(2 * retry, _MAX_RETRY)
            await self._sleepers.sleep(wait)

    def _ended(self, failure: Failure) -> None:
        """Polling was stopped; any other end is a bug."""
        if not isinstance(failure.value, CancelledError):
            log.failure(
                "reading the discovery of a cluster failed unexpectedly",
                failure,
                event="internal_error",
                cluster=self._member,
            )

    async def _read(self) -> None:
        """Read both documents, one after the other; errors are logged and remembered."""
        wait = self._read_at + self._gap - self._clock.seconds()
        if self._read_at and wait > 0:
            await self._gaps.sleep(wait)
        began = self._read_at = self._clock.seconds()
        cause = ""
        changed = False
        for path in _ROOTS:
            try:
                changed = await self._read_root(path) or changed
            except MemberError as error:
                cause = error.cause
            except discovery.DiscoveryError as error:
                cause = f"{path}: {error}"
        self._gap = _MIN_GAP
        if any(root.legacy for root in self._roots.values()):
            self._gap = max(_MIN_GAP, _LEGACY_GAP * (self._clock.seconds() - began))
        self._log(cause)
        before = self.fresh, self.known
        self.fresh = not cause
        self.known = self.known or self.fresh
        if changed:
            self.groups = tuple(group for path in _ROOTS for group in self._roots[path].groups)
            self.resources = MappingProxyType(discovery.api_resources(self.groups))
        if changed or before != (self.fresh, self.known):
            self._notify()

    async def _read_priorities(self) -> None:
        """Read the priorities of the member's APIServices. If the member does not answer, the last known priorities
        stay. If it refuses to return them, there are no priorities.
        """
        try:
            response = await self._ask(_PRIORITIES, headers=_ACCEPT_LEGACY, max_body=_MAX_PRIORITIES)
        except MemberError:
            return
        found: dict[tuple[str, str], Priority] = {}
        if response.status == 200:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                items = msgspec.json.decode(response.body, type=_APIServices).items
                found = {(each.spec.group, each.spec.version): each.spec for each in items}
        elif response.status not in (401, 403, 404):
            return
        if found != self.priorities:
            self.priorities = MappingProxyType(found)
            self._notify()

    def _notify(self) -> None:
        for notify in tuple(self._listeners):
            notify()

    async def _read_root(self, path: str) -> bool:
        """Read one document; return whether it has changed. Raises MemberError and DiscoveryError."""
        root = self._roots[path]
        condition = (("if-none-match", root.etag),) if root.etag else ()
        response = await self._ask(path, headers=(_ACCEPT, *condition), max_body=_MAX_DOCUMENT)
        if response.status == 304 and root.etag:
            return False
        if response.status == 404:  # an API server without a core group, or without others
            groups: tuple[APIGroupDiscovery, ...] = ()
            root.etag, root.legacy = "", False
        elif response.status != 200:
            raise MemberError(f"the cluster answered {response.status} on {path}")
        elif b"APIGroupDiscoveryList" in response.header(b"content-type"):
            groups = discovery.read_aggregated(response.body)
            root.etag, root.legacy = response.etag, False
        else:
            root.etag, root.legacy = "", True
            groups = await self._read_legacy(path, response.body)
        groups = tuple(_with_last_known(group, root.groups) for group in groups)
        changed, root.groups = groups != root.groups, groups
        return changed

    async def _read_legacy(self, path: str, body: bytes) -> tuple[APIGroupDiscovery, ...]:
        """Read each group-version of a legacy document, one after the other."""
        if path == "/api":
            found = [("", discovery.read_core_versions(body))]
        else:
            found = list(discovery.read_groups(body))
        if sum(len(versions) for _, versions in found) > _MAX_GROUP_VERSIONS:
            raise discovery.DiscoveryError(f"more than {_MAX_GROUP_VERSIONS} group-versions")
        groups = []
        for group, versions in found:
            read = tuple([await self._read_version(group, version) for version in versions])
            groups.append(APIGroupDiscovery(discovery.ObjectMeta(group), read))
        return tuple(groups)

    async def _read_version(self, group: str, version: str) -> APIVersionDiscovery:
        """Read one group-version; it is stale if it is not served now (its API service is unavailable)."""
        path = GroupVersionResource(group, version, "").group_version_path
        response = await self._ask(path, headers=_ACCEPT_LEGACY, max_body=_MAX_DOCUMENT)
        if response.status != 200:
            return APIVersionDiscovery(version, (), discovery.STALE)
        try:
            return discovery.read_resources(response.body, group, version)
        except discovery.DiscoveryError:
            return APIVersionDiscovery(version, (), discovery.STALE)

    def _log(self, cause: str) -> None:
        """Log each new cause once. Another module logs that the member is unreachable."""
        if not cause:
            self._once.ends()
        elif self._once.allows(state=cause) and not cause.startswith("no endpoint"):
            log.warn(
                "the discovery of a cluster cannot be read",
                event="discovery_unreadable",
                cluster=self._member,
                cause=cause,
                todo=remedy(
                    cause, default="see that system:discovery is bound to the proxy's user, and the API server's log"
                ),
            )


def _with_last_known(group: APIGroupDiscovery, known: tuple[APIGroupDiscovery, ...]) -> APIGroupDiscovery:
    """Return `group` with the last known resources of its stale and empty versions (API service unavailable)."""
    if not any(version.freshness == discovery.STALE and not version.resources for version in group.versions):
        return group
    before = {
        version.version: version.resources
        for old in known
        if old.metadata.name == group.metadata.name
        for version in old.versions
    }
    versions = tuple(
        msgspec.structs.replace(version, resources=before.get(version.version, ()))
        if version.freshness == discovery.STALE and not version.resources
        else version
        for version in group.versions
    )
    return msgspec.structs.replace(group, versions=versions)
