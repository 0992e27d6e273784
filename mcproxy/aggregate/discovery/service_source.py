"""Polls the discovery of one API server for its registered group-versions, and keeps the last known resources.

The source requests the aggregated document of /apis with the ETag of the known one, so the usual answer is a 304. For
each group-version that the aggregated document lacks or marks as stale, it requests the legacy document. Groups that
are not registered, and a core group, are ignored. kube-aggregator's discovery manager does the same, except that it
treats a group-version that is missing in the document as one without resources.

The server may be hostile. So bytes, time, the number of resources and the size of the merged document are bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.discovery.api_services import NEVER_READ, GroupVersion, ServiceDocument
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import CoalescedCall, InterruptibleSleep, MemberError
from mcproxy.kube import discovery
from mcproxy.kube.discovery import APIVersionDiscovery, DiscoveryError
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.requests.coroutines import InThread
from mcproxy.upstream.control import ControlResponse
from mcproxy.upstream.remedies import remedy

log = Logger(__name__)

POLL = 30.0  # seconds between two polls without requests, with a jitter; availability is probed separately
_JITTER = 0.1
_FIRST_RETRY, _MAX_RETRY = 1.0, 30.0
TIMEOUT = 5.0  # seconds for one answer
_MIN_GAP = 1.0  # seconds between two reads
_GAP_OF_MANY = 10.0  # gap after a read of many requests, as a multiple of its duration
_GAP_OF_LARGE = (
    20.0  # gap as a multiple of the seconds in which large documents were decoded, since the thread shares a core
)
_MAX_GAP = 30.0
_MAX_DOCUMENT = 4 * 1024 * 1024
_MAX_LEGACY = 1024 * 1024  # bytes for one group-version
_SMALL = 64 * 1024  # bytes up to which a document is decoded in the reactor thread
_FEW = 3  # maximum requests of a read that counts as small
_MAX_RESOURCES = 1_000  # in one group-version; the largest known group-versions have some hundred
_MAX_ENTRY = 256 * 1024  # bytes of one group-version in the merged document

_ACCEPT = ("accept", discovery.AGGREGATED_ACCEPT)
_ACCEPT_LEGACY = (("accept", "application/json"),)


class ServiceSource:
    """The documents of one API server."""

    def __init__(
        self,
        member: Member,
        clock: IReactorTime,
        random: Callable[[], float],
        in_thread: InThread,
        refuses: Callable[[GroupVersion], bool] = lambda _: False,
    ) -> None:
        """`random` returns a float in [0, 1); `in_thread` decodes large documents.

        `refuses` returns whether requests for a group-version are refused because it is unavailable.
        """
        self._refuses = refuses
        self.member = member
        self.origin = member.source
        self._clock = clock
        self._random = random
        self._in_thread = in_thread
        self._wanted: frozenset[GroupVersion] = frozenset()
        self._documents: dict[GroupVersion, ServiceDocument] = {}
        self._etag = ""
        self._listeners: list[Callable[[], None]] = []
        self._sleepers = InterruptibleSleep(clock)
        self._gaps = InterruptibleSleep(clock)  # separate, since nothing may end this wait early
        self._reads = CoalescedCall(self._read)
        self._polling: Deferred[None] | None = None
        self._read_at: float | None = None
        self._wanted_at = 0.0  # when the current read was requested: it may wait for its turn before it begins
        self._gap = _MIN_GAP
        self._requests = 0  # number of requests in the current read
        self._decoding = 0.0  # seconds of decoding in the current read
        self._stopped = False
        self._fresh = False
        self._logged: type[Exception] | None = None
        self._unsubscribe = member.subscribe(self._member_changed)

    @property
    def name(self) -> str:
        """The name of the cluster entry."""
        return self.member.name

    @property
    def fresh(self) -> bool:
        """Whether the newest read returned all registered group-versions."""
        return self._fresh

    def document(self, group_version: GroupVersion) -> ServiceDocument:
        """Return the known resources of the API server in a group-version."""
        known = self._documents.get(group_version, NEVER_READ)
        if self.member.unavailable_since is None and not self._refuses(group_version):
            return known
        return known._replace(fresh=False)

    def want(self, group_versions: Collection[GroupVersion]) -> None:
        """Set the group-versions to read; others are forgotten."""
        wanted = frozenset(group_versions)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._documents = {key: kept for key, kept in self._documents.items() if key in wanted}
        self._etag = ""
        if self._polling is None:
            self._polling = Deferred.fromCoroutine(self._poll())
            self._polling.addErrback(self._ended)
        else:
            self._sleepers.wake()

    def availability_changed(self) -> None:
        """Handle that a group-version has become available or unavailable."""
        self._notify()
        if not self._fresh:
            self._sleepers.wake()

    def moved(self) -> None:
        """Handle that the cluster entry names another API server now; its answer replaces the known documents."""
        self.origin = self.member.source
        self._etag = ""
        self._sleepers.wake()

    def stop(self) -> None:
        """End polling; known documents stay."""
        self._stopped = True
        self._unsubscribe()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
        self._reads.stop()
        self._sleepers.wake()

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to changes of documents; the result unsubscribes."""
        self._listeners.append(notify)

        def unsubscribe() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return unsubscribe

    def renew(self, age: float) -> Deferred[None]:
        """Read the documents if the newest read began more than `age` seconds ago; fires when the read is done."""
        if self._read_at is not None and not self._reads.running and self._clock.seconds() - self._read_at < age:
            return succeed(None)
        return self._reads.share()

    def is_recent(self, age: float) -> bool:
        """Whether the newest read is done, and began less than `age` seconds ago."""
        return not self._reads.running and self._read_at is not None and self._clock.seconds() - self._read_at < age

    def is_waited_for(self, seconds: float) -> bool:
        """Whether the running read was requested at least `seconds` ago, so that no further request waits for it."""
        return self._reads.running and self._clock.seconds() - self._wanted_at >= seconds

    # -- reading -----------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        retry = _FIRST_RETRY
        while not self._stopped:
            await self._reads.join()
            if self._fresh:
                retry = _FIRST_RETRY
                wait = POLL * (1 + _JITTER * (2 * self._random() - 1))
            else:
                wait = retry * (0.5 + self._random() / 2)
                retry = min(2 * retry, _MAX_RETRY)
            if bool(self._stopped):  # stopped meanwhile; bool() keeps mypy from assuming the earlier value
                return
            await self._sleepers.sleep(wait)

    def _ended(self, failure: Failure) -> None:
        """Ignore a cancellation by `stop`; log any other end of polling, which is a bug."""
        if not isinstance(failure.value, CancelledError):
            log.failure("reading the discovery of an API server failed unexpectedly", failure, event="internal_error")

    def _member_changed(self) -> None:
        """Handle that the member has become reachable or unreachable."""
        self._notify()
        if self.member.unavailable_since is None:
            self._sleepers.wake()

    async def _read(self) -> None:
        self._wanted_at = self._clock.seconds()
        wait = 0.0 if self._read_at is None else self._read_at + self._gap - self._clock.seconds()
        if wait > 0:
            await self._gaps.sleep(wait)
        began = self._read_at = self._clock.seconds()
        before = dict(self._documents)
        wanted = self._wanted
        self._requests, self._decoding = 0, 0.0
        cause = ""
        kind: type[Exception] = DiscoveryError
        try:
            cause = await self._read_all(wanted)
        except MemberError as error:
            cause, kind = error.cause, MemberError
        except DiscoveryError as error:
            cause = str(error)
        if cause:
            self._etag = ""
        self._fresh = not cause
        self._gap = _MIN_GAP
        if self._requests > _FEW:
            self._gap = min(_MAX_GAP, max(_MIN_GAP, _GAP_OF_MANY * (self._clock.seconds() - began)))
        self._gap = min(_MAX_GAP, max(self._gap, _GAP_OF_LARGE * self._decoding))
        self._log(cause, kind)
        if self._documents != before:
            self._notify()

    async def _read_all(self, wanted: frozenset[GroupVersion]) -> str:
        """Read the wanted documents; return the cause of a failure, or "". Raises as `_ask` does."""
        try:
            found = await self._read_aggregated(wanted)
        except (MemberError, DiscoveryError):
            self._all_stale(wanted)
            raise
        if found is None:
            return ""
        cause = ""
        for key in sorted(wanted):
            version = found.get(key)
            try:
                if version is None or version.freshness == discovery.STALE:
                    version = await self._read_legacy(*key)
                else:
                    check_size(version, "/".join(key))
                self._documents[key] = ServiceDocument(version.resources, fresh=True)
            except DiscoveryError as error:
                self._stale(key)
                cause = str(error)
            except MemberError:
                self._all_stale(wanted)  # the server does not answer: do not wait for the other documents
                raise
        return cause

    async def _read_aggregated(self, wanted: frozenset[GroupVersion]) -> dict[GroupVersion, APIVersionDiscovery] | None:
        """Return the wanted group-versions of the aggregated document; None if it has not changed. Raises as `_ask`."""
        condition = (("if-none-match", self._etag),) if self._etag else ()
        response = await self._ask("/apis", (_ACCEPT, *condition))
        if response.status == 304 and self._etag:
            return None
        self._etag = ""
        if response.status != 200 or b"APIGroupDiscoveryList" not in response.header(b"content-type"):
            return {}
        found: dict[GroupVersion, APIVersionDiscovery] = await self._decoded(_decode_aggregated, response.body, wanted)
        if all(key in found and found[key].freshness != discovery.STALE for key in wanted):
            self._etag = response.etag
        return found

    async def _read_legacy(self, group: str, version: str) -> APIVersionDiscovery:
        """Return the resources in the legacy document of a group-version. Raises as `_ask`, and DiscoveryError."""
        path = GroupVersionResource(group, version, "").group_version_path
        response = await self._ask(path, _ACCEPT_LEGACY, _MAX_LEGACY)
        if response.status != 200:
            raise DiscoveryError(f"{path}: the API server answered {response.status}")
        try:
            found: APIVersionDiscovery = await self._decoded(_decode_legacy, response.body, group, version)
        except DiscoveryError as error:
            raise DiscoveryError(f"{path}: {error}") from None
        return found

    async def _decoded(self, read: Callable[..., Any], body: bytes, *more: object) -> Any:
        """Decode a body with `read`, in a thread if it is large. Raises DiscoveryError."""
        if len(body) <= _SMALL:
            return read(body, *more)
        found, seconds = await self._in_thread(timed, read, body, *more)
        self._decoding += seconds
        if isinstance(found, DiscoveryError):
            raise found
        return found

    async def _ask(
        self, path: str, headers: tuple[tuple[str, str], ...], max_body: int = _MAX_DOCUMENT
    ) -> ControlResponse:
        """Send a request with a timeout. Raises MemberError."""
        self._requests += 1
        work = Deferred.fromCoroutine(self.member.get(path, headers=headers, max_body=max_body))
        try:
            return await work.addTimeout(TIMEOUT, self._clock)
        except DeferredTimeoutError:
            raise MemberError(f"no whole answer on {path} within {TIMEOUT:g} s") from None

    def _stale(self, key: GroupVersion) -> None:
        self._documents[key] = self._documents.get(key, NEVER_READ)._replace(fresh=False)

    def _all_stale(self, keys: Collection[GroupVersion]) -> None:
        for key in keys:
            self._stale(key)

    def _notify(self) -> None:
        for notify in tuple(self._listeners):
            notify()

    def _log(self, cause: str, kind: type[Exception]) -> None:
        """Log the first failure; after requests without an answer, also log the first invalid answer. Another module
        logs that the API server is unreachable.
        """
        if not cause:
            self._logged = None
        elif kind is not self._logged and self._logged is not DiscoveryError:
            if kind is MemberError and cause.startswith("no endpoint"):
                return
            self._logged = kind
            log.warn(
                "the discovery of an API server cannot be read",
                event="api_service_discovery_unreadable",
                cluster=self.name,
                cause=cause,
                todo=remedy(cause, default="see that the proxy may read /apis there, and the API server's log"),
            )


def timed(read: Callable[..., Any], *arguments: object) -> tuple[Any, float]:
    """Return the result of `read`, or the DiscoveryError that it raises, and the seconds of CPU time that it took."""
    began = time.thread_time()
    found: Any
    try:
        found = read(*arguments)
    except DiscoveryError as error:
        found = error
    return found, time.thread_time() - began


def _decode_aggregated(body: bytes, wanted: Collection[GroupVersion]) -> dict[GroupVersion, APIVersionDiscovery]:
    """Return the wanted group-versions of an aggregated document. Raises DiscoveryError."""
    return {
        key: version
        for group in discovery.read_aggregated(body)
        for version in group.versions
        if (key := (group.metadata.name, version.version)) in wanted
    }


def _decode_legacy(body: bytes, group: str, version: str) -> APIVersionDiscovery:
    """Return the resources in a group-version's legacy document. Raises DiscoveryError, also if it is too large."""
    found = discovery.read_resources(body, group, version)
    check_size(found, f"{group}/{version}")
    return found


def check_size(version: APIVersionDiscovery, name: str) -> None:
    """Raise DiscoveryError for a group-version that is too large for the merged document."""
    if len(version.resources) > _MAX_RESOURCES:
        raise DiscoveryError(f"{name} has more than {_MAX_RESOURCES} resources")
    if len(msgspec.json.encode(version)) > _MAX_ENTRY:
        raise DiscoveryError(f"{name} takes more than {_MAX_ENTRY // 1024} KiB in a discovery document")
