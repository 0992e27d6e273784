"""The worker's connection to the keeper, which can be interrupted while the keeper is replaced.

During an interruption, a limited number of requests wait for the next keeper for a limited time. Then they get 503.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime

from mcproxy.http.h1.framing import encode_chunk
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.net.failures import failure
from mcproxy.proxy.keeper import wire
from mcproxy.proxy.keeper.keeper_frames import FrameError, FrameType, decode_shared
from mcproxy.proxy.keeper.link import Link
from mcproxy.requests.coroutines import OrPending

if TYPE_CHECKING:
    from mcproxy.identity.authorization.attributes import Attributes
    from mcproxy.kube.user import UserInfo

PATIENCE = 30.0
"""Maximum seconds that a request waits for the keeper: enough to kill a hanging keeper and to start another."""
MAX_WAITING = 1000
"""Maximum number of requests of one worker that wait for a keeper that is absent or does not read."""
_USERS = 2048  # maximum number of cached users
_TURN_WRITES = 256  # writes of shared data after which other work gets a turn
_RETRY_AFTER = 5


class KeeperLost(Exception):
    """The keeper has ended before it answered."""


class KeeperStream(Protocol):
    """A worker's request (`worker_relay.Relay`) or review that is under way with the keeper."""

    def frame(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the keeper. Raises FrameError."""

    def shared(self, data: bytes, chunk: bytes) -> None:
        """Handle data for several streams; `chunk` is `data` as an HTTP/1.1 chunk."""

    def batch_ended(self) -> None:
        """All arrived frames were handled; called if this stream got DATA."""

    def unblocked(self) -> None:
        """The keeper reads again."""

    def keeper_lost(self) -> None:
        """The keeper has ended; the stream is over."""


class KeeperClient:
    """The connection of this worker to the present keeper process."""

    def __init__(self, clock: IReactorTime, *, patience: float = PATIENCE) -> None:
        """`patience`: seconds for which a request waits for a keeper."""
        self.clock = clock
        self.patience = patience
        self.user_bytes: Callable[[UserInfo], bytes] = lru_cache(_USERS)(wire.encode_user)
        self._link: KeeperLink | None = None
        self._waiting: list[Deferred[KeeperLink]] = []
        self._closed = False

    def link(self) -> KeeperLink:
        """Return the protocol for a connection to a new keeper, which replaces the earlier connection."""
        return KeeperLink(self)

    def serving(self, link: KeeperLink) -> None:
        """The keeper of a connection has a configuration: send requests to it from now on."""
        self._link = link  # the earlier connection is still read to its end
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(link)

    def gone(self, link: KeeperLink) -> None:
        """A connection has ended."""
        if self._link is link:
            self._link = None

    def close(self) -> None:
        """End the connection, since there are no more requests."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            link.close()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.errback(failure(_unavailable()))

    async def ready(self, until: float) -> KeeperLink:
        """Wait for the connection and return it. Raises StatusError (503) if there is none at `until`."""
        link = self._link
        if link is not None and not (link.blocked and link.unanswered >= MAX_WAITING):
            return link
        now = self.clock.seconds()
        if link is not None or len(self._waiting) >= MAX_WAITING or now >= until or self._closed:
            raise _unavailable()
        waiting: Deferred[KeeperLink] = Deferred(self._given_up)
        self._waiting.append(waiting)
        try:
            return await waiting.addTimeout(until - now, self.clock)
        except DeferredTimeoutError:
            raise _unavailable() from None

    def _given_up(self, waiting: Deferred[KeeperLink]) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    async def review(self, server: str, cluster: str, user: UserInfo, attributes: Attributes) -> Decision:
        """Return whether a member of a server's aggregate allows a user's read. Raises ReviewUnavailable."""
        until = self.clock.seconds() + self.patience
        question = wire.Review(server, cluster, self.user_bytes(user), wire.encode_attributes(attributes))
        while True:
            try:
                link = await self.ready(until)
                return wire.decision_of(await _Review(link, wire.encode(question)).answer, cluster)
            except KeeperLost:
                continue  # a review has no effect, so it can be sent to the next keeper
            except ReviewUnavailable:
                raise
            except StatusError:
                raise ReviewUnavailable(cluster, unreachable=False) from None


def _unavailable() -> StatusError:
    return retry_after(503, "the process that has the caches of the aggregate is being started", _RETRY_AFTER)


class KeeperLink(Link):
    """A connection to the keeper, and its streams."""

    def __init__(self, client: KeeperClient) -> None:
        super().__init__()
        self._client = client
        self._streams: dict[int, KeeperStream] = {}
        self._last = 0
        self._written: dict[KeeperStream, None] = {}  # streams to whose clients DATA was written since the last flush
        self._shared_writes = 0  # since the last turn of other work
        self.unanswered = 0

    # -- streams ------------------------------------------------------------------------------------------------

    def begin(self, stream: KeeperStream) -> int:
        """Register a new stream for its frames, and return its number."""
        self._last += 1
        self._streams[self._last] = stream
        return self._last

    def over(self, number: int) -> None:
        """A stream has ended: later frames for it are dropped."""
        self._streams.pop(number, None)

    def written(self, stream: KeeperStream) -> None:
        """Call `batch_ended` of the stream when all arrived frames have been handled."""
        self._written[stream] = None

    # -- Link ---------------------------------------------------------------------------------------------------

    def frame(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == FrameType.SHARED:
            self._hand_out(payload)
            return
        if kind == FrameType.SERVING:
            self._client.serving(self)
            return
        known = self._streams.get(stream)
        if known is not None:  # otherwise its client has disconnected
            known.frame(kind, payload)

    def _hand_out(self, payload: bytes) -> None:
        numbers, data = decode_shared(payload)
        chunk = encode_chunk(data)
        streams = self._streams
        self._shared_writes += len(numbers)
        for number in numbers:
            known = streams.get(number)
            if known is not None:
                known.shared(data, chunk)

    def batch_ended(self) -> None:
        written, self._written = self._written, {}
        for stream in written:
            stream.batch_ended()
        if self._shared_writes > _TURN_WRITES and not self.lost:
            self._shared_writes = 0
            self.transport.pauseProducing()
            self._client.clock.callLater(0, self._next_turn)

    def _next_turn(self) -> None:
        if not self.lost:
            self.transport.resumeProducing()

    def unblocked(self) -> None:
        for stream in list(self._streams.values()):
            stream.unblocked()

    def ended(self) -> None:
        self._client.gone(self)
        streams, self._streams = self._streams, {}
        self._written = {}
        for stream in streams.values():
            stream.keeper_lost()


class _Review:
    """A review whether a member allows a user's read."""

    __slots__ = ("_link", "_number", "answer")

    def __init__(self, link: KeeperLink, question: bytes) -> None:
        self._link = link
        self._number = link.begin(self)
        self.answer: Deferred[wire.Reviewed] = Deferred(self._cancelled)
        link.send(FrameType.REVIEW, self._number, question)

    def _cancelled(self, _: object) -> None:
        self._link.over(self._number)
        self._link.send(FrameType.CANCEL, self._number)

    def frame(self, kind: int, payload: bytes) -> None:
        if kind != FrameType.REVIEWED:
            raise FrameError(f"a frame of kind {kind} for a review")
        self._link.over(self._number)
        self.answer.callback(_REVIEWED(payload))

    def shared(self, data: bytes, chunk: bytes) -> None:
        raise FrameError("bytes for a review")

    def batch_ended(self) -> None:
        """Do nothing: a review writes no data."""

    def unblocked(self) -> None:
        """Do nothing: a review holds no data back."""

    def keeper_lost(self) -> None:
        self.answer.errback(failure(KeeperLost()))


_REVIEWED = wire.decoder(wire.Reviewed)


class KeeperReviewer:
    """Gets a member's decision, or its last decision, from the keeper (`access_review.Reviewer`). The worker caches
    nothing, so that a decision is cached in only one place for its lifetime.
    """

    def __init__(self, client: KeeperClient, server: str, cluster: str) -> None:
        """`server` has the aggregate; `cluster` is a member, or the cluster that reviews for all members."""
        self._client = client
        self._server = server
        self._cluster = cluster

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        """Return the keeper's answer, the member's decision (`Reviewer`)."""
        return self._client.review(self._server, self._cluster, user, attributes)
