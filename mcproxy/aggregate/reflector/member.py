"""A member cluster of aggregates: one object for each cluster, shared by all aggregates and kept over reloads.

A member sends the proxy's own requests to any usable endpoint of the cluster. Requests on an endpoint that becomes
unavailable fail immediately. The member records the cluster's identity and whether the cluster is reachable, else since
when and why it is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from weakref import WeakSet

import msgspec
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.reflector.member_calls import CoalescedCall, InterruptibleSleep, MemberError, MemberUnreachable
from mcproxy.aggregate.reflector.member_discovery import MemberDiscovery
from mcproxy.kube.discovery import APIGroupDiscovery
from mcproxy.net.connect_errors import ConnectError
from mcproxy.net.wall_time import WallSeconds, wall_seconds
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError, ControlResponse, Use
from mcproxy.upstream.control_stream import BodyTooLarge, ControlStream
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.upstream_context import UpstreamContext

log = Logger(__name__)

HEAD_TIMEOUT = 30.0  # maximum seconds until the head of an answer
BODY_TIMEOUT = 30.0  # maximum seconds for the body of a small answer
_IDENTITY = "/api/v1/namespaces/kube-system"
_IDENTITY_LASTS = 600.0  # seconds after which the identity is requested again when a watch is resumed
_MAX_IDENTITY = 1024 * 1024
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")


class _Metadata(msgspec.Struct):
    uid: str


class _Namespace(msgspec.Struct):
    metadata: _Metadata


class Member:
    """One member cluster.

    `unavailable_since` (seconds since 1970) is None while the cluster can be reached; `unavailable_cause` is a
    sentence. `uid` is the UID of the namespace kube-system, "" while unknown or if the proxy may not read it. `epoch`
    counts the events after which the member can be another cluster: broken connections, lost endpoints, reloads.
    `source` stays equal while the configuration has the same endpoint URLs and the same CA.
    """

    def __init__(self, cluster: Cluster, shared: UpstreamContext) -> None:
        self.name = cluster.name
        self.cluster = cluster
        self.uid = ""
        self.unavailable_since: WallSeconds | None = None
        self.unavailable_cause = ""
        self.epoch = 0
        self._stopped = False
        self.source = _source(cluster)
        self._clock = shared.reactor
        self._identified = -1  # the epoch in which the cluster was last identified
        self._identified_at = 0.0
        self._identities = CoalescedCall(self._ask_identity)
        self._sleepers = InterruptibleSleep(shared.reactor)
        self._streams: dict[Endpoint, WeakSet[ControlStream]] = {}
        self._opening: dict[Endpoint, list[Deferred[ControlStream]]] = {}
        self._unsubscribe: list[Callable[[], None]] = []
        self._listeners: list[Callable[..., None]] = []
        self.discovery = MemberDiscovery(cluster.name, self.get, shared.reactor, shared.random)
        self._follow()

    def start(self) -> None:
        """Begin to poll discovery."""
        self.discovery.start()

    def restore(self, uid: str, groups: tuple[APIGroupDiscovery, ...]) -> None:
        """Restore the UID and resources that were saved by an earlier process. Call it before `start`."""
        self.uid = uid
        self.discovery.restore(groups)

    def use(self, cluster: Cluster) -> None:
        """Apply a reload. Requests on removed endpoints end; their callers repeat them on other endpoints."""
        if cluster is self.cluster:
            return
        self.cluster = cluster
        self.source = _source(cluster)
        self.epoch += 1
        self._follow()
        for endpoint in (*self._streams, *self._opening):
            if endpoint not in cluster.endpoints:
                self._drop(
                    endpoint, f"{endpoint.name} is no longer an endpoint of the cluster, or its settings changed"
                )
        self._wake()

    def stop(self) -> None:
        """End all requests; the cluster is not a member any more."""
        self._stopped = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        self.discovery.stop()
        self._identities.stop()
        for endpoint in (*self._streams, *self._opening):
            self._drop(endpoint, "the cluster is no member any more")

    def subscribe(self, notify: Callable[..., None]) -> Callable[[], None]:
        """Subscribe to changes of `unavailable_since` and `uid`; the result unsubscribes."""
        self._listeners.append(notify)

        def unsubscribe() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return unsubscribe

    def sleep(self, seconds: float) -> Deferred[None]:
        """Wait before the next attempt; the wait ends early when the member is reachable again or after a reload."""
        return self._sleepers.sleep(seconds)

    # -- requests --------------------------------------------------------------------------------------------

    async def open(
        self,
        path: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        use: Use = Use.SHORT,
        beside: ControlStream | None = None,
    ) -> ControlStream:
        """GET `path` at the first endpoint that accepts it; return when the head of the answer, of any status, arrives.

        `use` selects the connections. `beside`: prefer the connection of that stream if it is HTTP/2 and has room for
        another stream, else prefer its endpoint if that is ready. The caller closes the returned stream. The stream
        fails when its endpoint becomes unavailable or is removed. Raises MemberError.
        """
        if self._stopped:
            raise MemberUnreachable(f"cluster {self.name} is no member any more")
        cause = ""
        tried: list[Endpoint] = []
        prefer = None if beside is None else beside.endpoint
        if prefer is not None and not (prefer.ready and prefer in self.cluster.endpoints):
            prefer = beside = None
        while (endpoint := prefer or self.cluster.balancer.pick(tried)) is not None:
            prefer = None
            tried.append(endpoint)
            cluster = self.cluster
            try:
                stream = await self._open_at(endpoint, path, headers, use, beside)
            except ConnectError as error:
                endpoint.request_check()
                cause = error.cause
                beside = None
                continue
            except ControlError as error:
                self.epoch += 1
                raise MemberError(error.cause) from None
            except CredentialError as error:
                raise MemberError(error.cause) from None
            if not _is_usable(endpoint) or (cluster is not self.cluster and endpoint not in self.cluster.endpoints):
                stream.close()
                beside = None
                continue
            self._streams.setdefault(endpoint, WeakSet()).add(stream)
            self._set_available()
            return stream
        cause = cause or self.cluster.unavailable_message(times=False)
        self._set_unavailable(cause)
        raise MemberUnreachable(cause)

    async def get(
        self,
        path: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        max_body: int,
        beside: ControlStream | None = None,
    ) -> ControlResponse:
        """GET `path`; return the whole answer, of any status. `beside` is as for `open`. Raises MemberError."""
        stream = await self.open(path, headers=headers, beside=beside)
        timer = self._clock.callLater(
            BODY_TIMEOUT, stream.close, f"no whole answer on {path} within {BODY_TIMEOUT:g} s"
        )
        try:
            body = await stream.read_all(max_body)
        except ControlError as error:
            self.epoch += 1
            raise MemberError(error.cause) from None
        except BodyTooLarge:
            raise MemberError(f"the cluster answered with more than {max_body} bytes on {path}") from None
        finally:
            if timer.active():
                timer.cancel()
            stream.close()
        return ControlResponse(stream.status, stream.headers, body)

    async def _open_at(
        self,
        endpoint: Endpoint,
        path: str,
        headers: tuple[tuple[str, str], ...],
        use: Use,
        beside: ControlStream | None,
    ) -> ControlStream:
        """Open a stream at one endpoint. Raises ControlError if the endpoint becomes unavailable meanwhile."""
        work = Deferred.fromCoroutine(
            self.cluster.control.stream(
                endpoint, path, headers=headers, head_timeout=HEAD_TIMEOUT, use=use, beside=beside
            )
        )
        opening = self._opening.setdefault(endpoint, [])
        opening.append(work)
        try:
            return await work
        except Exception:
            if work not in opening:  # `_drop` has cancelled it
                raise ControlError(endpoint.state_cause) from None
            raise
        finally:
            if work in opening:
                opening.remove(work)

    # -- identity of the cluster -----------------------------------------------------------------------------

    async def identify(self) -> str:
        """Return `uid`; request it again if the member may have become another cluster. Raises MemberError."""
        if self._identified != self.epoch or self._clock.seconds() - self._identified_at > _IDENTITY_LASTS:
            await self._identities.join()
        return self.uid

    async def _ask_identity(self) -> None:
        epoch = self.epoch
        if self._identified == epoch and self._clock.seconds() - self._identified_at <= _IDENTITY_LASTS:
            return
        response = await self.get(_IDENTITY, headers=(("accept", "application/json"),), max_body=_MAX_IDENTITY)
        if response.status >= 500 or response.status in (401, 429):
            raise MemberError(f"the cluster answered {response.status} on {_IDENTITY}", status=response.status)
        uid = _uid_of(response.body) if response.status == 200 else ""
        self._identified, self._identified_at = epoch, self._clock.seconds()
        if uid == self.uid:
            return
        if self.uid and uid:
            log.warn(
                "the endpoints lead to another cluster than before: its caches are dropped",
                event="cluster_replaced",
                cluster=self.name,
                cause=f"the uid of its namespace kube-system was {self.uid} and is {uid}",
            )
        self.uid = uid or self.uid  # without the right to read it, the last UID stays
        self._notify()

    # -- availability ----------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Subscribe to the endpoints of the cluster in force."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = [endpoint.subscribe(self._endpoint_changed) for endpoint in self.cluster.endpoints]

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        if endpoint.ready:
            self._set_available()
        elif not any(_is_usable(other) for other in self.cluster.endpoints):
            self._set_unavailable(self.cluster.unavailable_message(times=False))
        if not _is_usable(endpoint):
            self.epoch += 1
            self._drop(endpoint, f"{endpoint.name}: {endpoint.state_cause}")

    def _drop(self, endpoint: Endpoint, cause: str) -> None:
        """End the requests on an endpoint, so that their callers repeat them on other endpoints."""
        opening = self._opening.pop(endpoint, [])
        dropped = tuple(opening)
        opening.clear()  # tells `_open_at` that its caller did not cancel it
        for work in dropped:
            work.cancel()
        for stream in tuple(self._streams.pop(endpoint, ())):
            stream.close(cause)

    def _set_available(self) -> None:
        if self.unavailable_since is not None:
            self.unavailable_since, self.unavailable_cause = None, ""
            self._notify()
            self._wake()

    def _set_unavailable(self, cause: str) -> None:
        self.unavailable_cause = cause
        if self.unavailable_since is None:
            self.epoch += 1
            self.unavailable_since = wall_seconds(self._clock)
            self._notify()

    def _wake(self) -> None:
        self._sleepers.wake()
        self.discovery.poll_soon()

    def _notify(self) -> None:
        for notify in tuple(self._listeners):
            notify()

    def __repr__(self) -> str:
        return f"<Member {self.name}>"


def _is_usable(endpoint: Endpoint) -> bool:
    return endpoint.ready or endpoint.unchecked


def _source(cluster: Cluster) -> object:
    return frozenset(endpoint.url for endpoint in cluster.config.endpoints), cluster.config.tls.ca


def _uid_of(body: bytes) -> str:
    """Return the uid of a namespace, "" for anything else."""
    try:
        uid = msgspec.json.decode(body, type=_Namespace).metadata.uid
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return uid if _UID.fullmatch(uid) else ""


# -- reading discovery again ----------------------------------------------------------------------------------
#
# Reads members' discovery again when a client requests a resource that may just have been installed in a member.
#
# A member's documents are read at most once a second (`member_discovery.MemberDiscovery`), and all waiting requests
# share this read. So requests for unknown resource names cause no more reads than that.


REDISCOVERY_WAIT = 3.0
"""Maximum seconds that a request waits for the members' documents."""
_RENEWAL_WAIT = 1.0  # maximum seconds of a wait if the last known documents are good enough
_RENEWAL_AGE = 1.0  # seconds


async def rediscover(members: Sequence[Member], clock: IReactorTime) -> list[str]:
    """Read the members' present resources; return the names of the members whose read fails."""
    results = await _which_are_done([member.discovery.refresh() for member in members], REDISCOVERY_WAIT, clock)
    return [
        member.name
        for member, read in zip(members, results, strict=True)
        if not read or not member.discovery.fresh or member.unavailable_since is not None
    ]


async def renew(members: Sequence[Member], clock: IReactorTime) -> None:
    """Ensure that the documents of reachable members are at most about a second old."""
    asked = [member for member in members if member.discovery.fresh and member.unavailable_since is None]
    await _which_are_done([member.discovery.renew(_RENEWAL_AGE) for member in asked], _RENEWAL_WAIT, clock)


async def _which_are_done(reads: Sequence[Deferred[None]], wait: float, clock: IReactorTime) -> list[bool]:
    """Wait at most `wait` seconds for all reads; return which are done. Raises CancelledError if the client is gone."""
    if not reads:
        return []
    for read in reads:
        read.addTimeout(wait, clock)
    together = DeferredList(reads, consumeErrors=True)
    done: Deferred[list[bool]] = Deferred()  # not the DeferredList: it has a result even if it is cancelled

    def all_done(results: list[tuple[bool, None]]) -> None:
        if not done.called:
            done.callback([each for each, _ in results])

    together.addCallback(all_done)
    try:
        return await done
    finally:
        together.cancel()
