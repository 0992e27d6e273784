"""A proxy under random load over both versions of HTTP on both sides: whatever becomes of streams and connections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from h2 import events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, Queue
from mcproxy.http.h2.h2_client import EXTRA_WINDOWS, H2ClientConnection
from mcproxy.proxy.request import Request
from mcproxy.upstream.endpoint import Endpoint
from tests.proxy.harness import OK, Client, Harness, UpstreamEnd, cluster, config, get
from tests.proxy.http2_peers import H2_TLS, H2Client, H2Upstream, H2UpstreamEnd, PeerStream, h2_client, http2_listener
from tests.proxy.random_load import EVERYTHING, STREAM, RandomLoad

BIG = 400_000
"""Bytes of a body that is more than any window."""
CODES = (ErrorCodes.CANCEL, ErrorCodes.INTERNAL_ERROR, ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.NO_ERROR)
JSON = [(b":status", b"200"), (b"content-type", b"application/json")]

#: Where a request may be when something happens to it.
STATES = {"queueing", "connecting", "sent", "answering"}
#: What happens to the clients' ends, and to the clusters'; of HTTP/1.1 only the first two of each.
CLIENT_FATES = ("abort", "close", "reset", "goaway", "stop reading", "read on")
CLUSTER_FATES = ("break", "whole", "reset", "refuse", "goaway", "big", "answer early", "reset after begin")


def state_of(request: Request) -> str:
    """Where a request is that the proxy has not done with."""
    if request.exchange.responded:
        return "answering"
    if request.endpoint is not None:
        return "sent"
    return "connecting" if request.permit is not None else "queueing"


@dataclass(eq=False)
class Asked:
    """A request as its client sees it."""

    client: Client | H2Client
    stream: PeerStream | None  # None: HTTP/1.1

    @property
    def version(self) -> str:
        return "h1" if self.stream is None else "h2"

    @property
    def over(self) -> bool:
        if isinstance(self.client, Client) or self.stream is None:
            return self.client.lost is not None
        return self.stream.over or self.stream.ended

    @property
    def status(self) -> int:
        if self.stream is not None:
            return self.stream.status
        assert isinstance(self.client, Client)
        return int(self.client.received[9:12]) if self.client.received.startswith(b"HTTP/1.1 ") else 0


@dataclass(eq=False)
class Pending:
    """A request as its cluster sees it."""

    end: UpstreamEnd | None
    stream: PeerStream | None
    whole: bool = True  # with all its body
    begun: bool = False

    @property
    def version(self) -> str:
        return "h1" if self.stream is None else "h2"

    @property
    def alive(self) -> bool:
        if self.stream is not None:
            return self.stream.reset is None and not self.stream.finished and self.stream.peer.lost is None
        return self.end is not None and self.end.lost is None


class RandomHTTP2Traffic(RandomLoad):
    """`step` does something at random, `finish` lets everything end and looks at what is left."""

    def __init__(self, harness: Harness, random: Random) -> None:
        super().__init__(harness, random)
        self.two = [harness.add(H2Upstream(harness.reactor)) for _ in range(2)]
        self.one = harness.upstream()
        for upstream in self.two:
            upstream.stream_event = self._on_stream
            upstream.settings = {SettingCodes.MAX_CONCURRENT_STREAMS: random.choice([1, 3, 100])}
        self.one.reply = self._received
        self.pending: list[Pending] = []
        self.asked: list[Asked] = []
        self.clients: list[H2Client] = []
        self.fates: Counter[tuple[str, str]] = Counter()
        self.left_in: Counter[tuple[str, str]] = Counter()
        self._by_target: dict[bytes, Asked] = {}

    # -- configurations -----------------------------------------------------------------------------------------

    def config(self) -> model.Config:
        pick = self.random.choice
        queue = Queue(size=pick([2, 6]), timeout=pick([0.05, 0.5]))
        whole = FlowControl(
            name="whole",
            type=FlowControlType.MAX_REQUESTS_INFLIGHT,
            max=pick([3, 6, 12]),
            max_long_running=pick([2, 6]),
            queue=queue,
        )
        a, b = (each.endpoint(name) for each, name in zip(self.two, "ab", strict=True))
        connections = model.Connections(
            protocol=pick([model.UpstreamProtocol.HTTP2, model.UpstreamProtocol.AUTO]), max_connections=pick([0, 1, 2])
        )
        clusters = [
            cluster(*pick([(a, b), (a,), (b,)]), name="two", tls=H2_TLS, connections=connections),
            cluster(self.one.endpoint("c"), name="one", connections=model.Connections(max_connections=pick([0, 2]))),
        ]
        server = model.Server(
            name=pick(["main", "main", "other"]),
            listeners=("tls",),
            default=True,
            backend=model.ClustersBackend(("two", "one")),
            dispatch=(
                model.Policy(name="all", rules=EVERYTHING, flow_control="whole", strategy=pick(list(model.Strategy))),
            ),
        )
        return config(
            clusters,
            servers=[server],
            listeners=[http2_listener()],
            daemon=model.DaemonConfig(drain_timeout=0.1),
            flow_controls=(whole,),
        )

    # -- what happens -------------------------------------------------------------------------------------------

    async def step(self) -> None:
        steps = [self.arrive, self.clients_act, self.clusters_act, self.serve, self.harness.turns]
        await self.random.choices(steps, weights=[12, 8, 10, 1, 1])[0]()
        await self.harness.turns(1)

    async def arrive(self) -> None:
        """A request, or some at once on one connection."""
        if self.random.random() < 0.3:
            await self._arrive_by_http1()
            return
        self.clients = [client for client in self.clients if client.lost is None and not client.goaways]
        if not self.clients or (len(self.clients) < 3 and self.random.random() < 0.3):
            self.clients.append(await h2_client(self.harness))
        client = self.random.choice(self.clients)
        for _ in range(self.random.choice([1, 1, 5])):
            method, target, body, whole = self._request()
            stream = client.ask(method, target, end=not body)
            if body:
                stream.send(body)
            if body and whole:
                stream.end(self.random.choice([None, [(b"x-sum", b"1")]]))
            self._add(target, Asked(client, stream))

    async def _arrive_by_http1(self) -> None:
        method, target, body, whole = self._request()
        fields = (b"Content-Length: %d" % (len(body) + (not whole)),) if body else ()
        client = await self.harness.asks(get(target, *fields, method=method) + body)
        self._add(target, Asked(client, None))

    def _add(self, target: bytes, asked: Asked) -> None:
        self.asked.append(asked)
        self._by_target[target] = asked

    def _request(self) -> tuple[bytes, bytes, bytes, bool]:
        """Method, target, body, and whether that is all of the body."""
        self._serial += 1
        name = self.random.choice([b"two", b"two", b"one"])
        target = b"/clusters/%b/api/v1/namespaces/a/pods/p%d" % (name, self._serial)
        watch = b"/clusters/%b/api/v1/namespaces/n%d/pods?watch=1" % (name, self._serial)
        return self.random.choice(
            [
                (b"GET", target, b"", True),
                (b"GET", watch, b"", True),
                (b"DELETE", target, b"", True),
                (b"POST", target, b"body", True),
                (b"PUT", target, b"bo", False),
                (b"PUT", target, bytes(BIG), True),
            ]
        )

    async def clients_act(self) -> None:
        """Something happens to a client: each state of its requests is as likely as any other."""
        there: dict[str, list[Asked]] = {}
        for request in self.harness.service.requests:
            asked = self._by_target.get(request.exchange.head.target)
            if asked is not None and not asked.over:
                there.setdefault(state_of(request), []).append(asked)
        if not there:
            return
        state = self.random.choice(sorted(there))
        asked = self.random.choice(there[state])
        # Streams of a connection fall together with it: that is to be the rarer case.
        weights = [1, 1, 8, 1, 4, 4] if asked.stream else [1, 1]
        fate = self.random.choices(CLIENT_FATES[: len(weights)], weights)[0]
        self.fates[asked.version, fate] += 1
        if fate not in ("stop reading", "read on", "goaway"):
            self.left_in[asked.version, state] += 1
        self._client_fate(asked, fate)

    def _client_fate(self, asked: Asked, fate: str) -> None:
        stream = asked.stream
        if fate == "abort":
            asked.client.abort()
        elif fate == "close":
            asked.client.close()
        elif stream is None or not isinstance(asked.client, H2Client):
            raise AssertionError(fate)
        elif fate == "reset":
            stream.cancel(self.random.choice(CODES))
        elif fate == "goaway":
            asked.client.goaway(0)
            self.clients.remove(asked.client) if asked.client in self.clients else None
        elif fate == "stop reading":
            stream.reads = False
        else:
            stream.read_on()

    async def clusters_act(self) -> None:
        for _ in range(self.random.choice([1, 3, 9])):
            self.pending = [pending for pending in self.pending if pending.alive]
            if self.pending:
                pending = self.random.choice(self.pending)
                if pending.stream is not None:
                    self._h2_act(pending, pending.stream)
                elif pending.end is not None:
                    self._h1_act(pending, pending.end)
            if self.random.random() < 0.5:
                await self.harness.turns(1)

    def _h2_act(self, pending: Pending, stream: PeerStream) -> None:
        weights = [1, 8, 2, 3, 2, 3, 2, 0] if not pending.begun else [1, 0, 0, 0, 2, 3, 0, 3]
        fate = self.random.choices(CLUSTER_FATES, weights)[0]
        if pending.begun and self.random.random() < 0.5:
            stream.end(self.random.choice([None, [(b"x-done", b"1")]]))
            return
        if fate == "whole" and self.random.random() < 0.4:
            pending.begun = True
            stream.head(JSON)
            stream.send(b"{}\n")
            return
        self.fates["cluster", fate] += 1
        peer = stream.peer
        if fate == "break":
            peer.abort()
        elif fate == "whole":
            stream.head([*JSON, (b"content-length", b"2")])
            stream.send(b"{}")
            stream.end()
        elif fate in ("reset", "reset after begin"):
            stream.cancel(self.random.choice(CODES))
        elif fate == "refuse":
            stream.cancel(ErrorCodes.REFUSED_STREAM)
        elif fate == "goaway":
            last = self.random.choice([0, max(0, stream.number - 2), stream.number, max(peer.streams)])
            peer.goaway(last, self.random.choice([ErrorCodes.NO_ERROR, ErrorCodes.ENHANCE_YOUR_CALM]))
            for each in peer.streams.values():
                each.finished |= each.number > last  # nobody answers those
            if not last or self.random.random() < 0.2:
                peer.close()
        elif fate == "big":
            if not pending.begun:
                pending.begun = True
                stream.head(JSON)
            stream.send(bytes(BIG))
        else:  # answer early: before the request's body is complete
            stream.head([*JSON, (b"content-length", b"2")])
            stream.send(b"{}")
            stream.end()
            if not stream.ended:
                stream.cancel(ErrorCodes.NO_ERROR)

    def _h1_act(self, pending: Pending, end: UpstreamEnd) -> None:
        if self.random.random() < 0.1:
            end.abort()
        elif pending.begun:
            last = self.random.random() < 0.5
            end.send(b"0\r\n\r\n" if last else b"3\r\n{}\n\r\n")
            if self.random.random() < 0.3:
                end.abort()
            if last:
                self.pending.remove(pending)
        elif self.random.random() < 0.5:
            pending.begun = True
            end.send(STREAM)
        else:
            self.pending.remove(pending)
            end.send(OK)

    def _on_stream(self, stream: PeerStream, event: Any) -> None:
        if isinstance(event, events.RequestReceived):
            stream.reads = self.random.random() < 0.7
            self.pending.append(Pending(None, stream))

    def _received(self, end: UpstreamEnd) -> None:
        """Take note of each whole request of HTTP/1.1; one without all of its body is never answered."""
        self.pending += [Pending(end, None) for _, _, whole in self.unread_requests(end) if whole]

    # -- what must hold -----------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Let everything end; nothing may be left."""
        service = self.harness.service
        for asked in self.asked:
            if asked.stream is not None:
                asked.stream.read_on()
            elif self.random.random() < 0.5:
                asked.client.abort()
        for _ in range(4000):
            if not service.requests:
                break
            for pending in self.pending:
                if pending.stream is not None and pending.alive:
                    pending.stream.cancel(ErrorCodes.INTERNAL_ERROR)
                elif pending.end is not None:
                    pending.end.abort()
            self.pending.clear()
            for asked in self.asked:
                if not asked.over and not asked.status and self.random.random() < 0.05:
                    asked.client.abort()
            await self.harness.turns(2)
        assert not service.requests, Counter(map(state_of, service.requests))
        for asked in self.asked:
            self.statuses[asked.status] += 1
            asked.client.abort()
        for client in self.clients:
            client.abort()
        listeners = self.harness.service.listeners
        await self.harness.until(lambda: not any(live.factory.connections for live in listeners), "clients are gone")
        # Health checks share connections, and may wait for one, or for their own frames to be sent, at any moment; a
        # connection that is out of its pool is closed when its last stream has ended.
        await self.harness.until(
            lambda: (
                not self._busy
                and not self._waits
                and not any(connection.sender.queued or connection.sender.ready for connection in self._kept)
                and len(self._kept) == sum(end.lost is None for end in self._ends)
            ),
            "no streams are left, nor requests that wait for one, nor connections out of their pools",
        )
        ends = self._ends
        clients = {asked.client for asked in self.asked if isinstance(asked.client, H2Client)}
        assert sum(end.over_limit for end in ends) == 0
        problems = [repr(peer.problem) for peer in (*ends, *clients) if peer.problem is not None]
        assert problems == [], problems
        self.check_counts()
        assert self._busy == []
        self._check_connections()

    @property
    def _busy(self) -> list[Endpoint]:
        """The endpoints whose connections carry requests."""
        return [each for each in self.endpoints if any(busy for _, busy in each.pool.counts().values())]

    @property
    def _waits(self) -> bool:
        """Whether a request waits for a stream on a connection that is being opened."""
        return any(http2.waits for each in self.endpoints for http2 in each.pool._all_h2)

    @property
    def _ends(self) -> list[H2UpstreamEnd]:
        return [end for upstream in self.two for end in upstream.h2 if end.transport is not None]

    @property
    def _kept(self) -> list[H2ClientConnection]:
        return [connection for each in self.endpoints for connection in each.pool._h2_connections]

    def _check_connections(self) -> None:
        """What connections count: streams, what waits to be sent, what is held for who does not read."""
        kept = self._kept
        assert not self._waits
        for upstream in kept:
            assert (upstream.lasting, upstream.stalled, upstream._extra) == (0, 0, EXTRA_WINDOWS)
        for connection in kept:
            assert (
                len(connection.streams),
                connection.sender.queued,
                connection.table.held,
                len(connection.sender.ready),
            ) == (0,) * 4
