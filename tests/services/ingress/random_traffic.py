"""A whole proxy with an ingress under random load: clients and pods that die, freeze, reset and talk rubbish."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from h2.errors import ErrorCodes

from mcproxy.config import model
from mcproxy.config.model import (
    Affinity,
    BackendHealthCheck,
    BackendProtocol,
    HTTPProtocol,
    IngressPath,
    Strategy,
)
from mcproxy.services.ingress.endpoint_health import BackendEndpoint
from mcproxy.services.ingress.pod_pools import Pod
from tests.proxy.harness import Client, Upstream
from tests.proxy.http2_peers import H2Client, H2Upstream, PeerStream
from tests.services.ingress.config import backend, ingress, path, rule
from tests.services.ingress.random_pods import CHECK, SIZES, H2CPod, RandomPods, body, framed, x_length
from tests.services.ingress.test_http2 import client as http2_client
from tests.services.ingress.whole import HOST, Whole, ingress_config, tls_listener

CLIENT_FATES = ("abort", "close", "half-close", "reset", "goaway", "stop reading", "read on", "send rest")
"""What happens to a client's end; of HTTP/1.1 the first three, and the last."""
SERVICES = ("one", "two")  # of pods of HTTP/1.1, of HTTP/2
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n" % (
    b"dGhlIHNhbXBsZSBub25jZQ=="
)


@dataclass(eq=False)
class Asked:
    """A request as its client sees it."""

    client: Client | H2Client
    stream: PeerStream | None = None  # None: HTTP/1.1
    rest: bytes = b""  # of the request
    left: bool = False  # its client has ended it before its response

    @property
    def lost(self) -> bool:
        return self.client.lost is not None

    @property
    def status(self) -> int:
        if self.stream is not None:
            return self.stream.status
        return int(self._final[9:12]) if self._final.startswith(b"HTTP/1.1 ") else 0

    @property
    def _final(self) -> bytes:
        """What came of HTTP/1.1, without interim responses."""
        assert isinstance(self.client, Client)
        data = self.client.received
        while data.startswith(b"HTTP/1.1 10") and not data.startswith(b"HTTP/1.1 101"):
            data = data.partition(b"\r\n\r\n")[2]
        return data

    def answer(self) -> tuple[int | None, bytes] | None:
        """Return X-Length and body of a response that looks whole; None: it does not, or not yet."""
        if self.stream is not None:
            length = self.stream.fields.get(b"x-length")
            found = None if length is None else int(length), self.stream.data
            return found if self.stream.ended and self.status else None
        head, separator, rest = self._final.partition(b"\r\n\r\n")
        if not separator or self.status == 101:
            return None
        content, taken = framed(head, rest)
        return None if taken is None else (x_length(head), content)

    @property
    def over(self) -> bool:
        """Whether its client knows what became of it."""
        if self.lost or (self.stream is not None and self.stream.reset is not None):
            return True
        if isinstance(self.client, Client) and self.client.ended:
            return True
        return self.answer() is not None


class RandomIngressTraffic:
    """`step` does something at random, `finish` lets everything end and looks at what is left."""

    def __init__(self, whole: Whole, seed: int) -> None:
        self.whole = whole
        self.random = Random(seed)
        self.fates: Counter[tuple[str, str]] = Counter()
        self.statuses: Counter[int] = Counter()
        self.pods: dict[str, list[Upstream]] = {name: [] for name in SERVICES}
        self.behind = RandomPods(self.random, lambda version, fate: self.fates.update([(version, fate)]))
        self.asked: list[Asked] = []
        self.clients: list[H2Client] = []
        self._all: list[Client | H2Client] = []
        self._idle: list[Client] = []
        self._targets: set[Pod] = set()
        self._endpoints: set[BackendEndpoint] = set()

    # -- configurations and endpoints -------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Begin, or reload."""
        pick = self.random.choice
        names = dict(zip(SERVICES, (BackendProtocol.HTTP1, BackendProtocol.HTTP2), strict=True))

        def path_of(name: str) -> IngressPath:
            more: dict[str, Any] = {
                "protocol": names[name],
                "clusters": ("east", "west"),
                "weights": (("west", pick([0, 1, 3])),),
                "strategy": pick([Strategy.ROUND_ROBIN, Strategy.LEAST_REQUESTS, Strategy.CONSISTENT_HASH]),
                "affinity": pick(list(Affinity)),
                "slow_start": pick([0.0, 1.0]),
                "retries": pick([0, 1, 2]),
                "connect_timeout": 0.5,
                "response_timeout": 0.3,
                "read_timeout": 0.3,
                "health_check": pick([None, BackendHealthCheck(path=CHECK.decode(), interval=0.2, timeout=0.1)]),
            }
            return path(f"/{name}", backend(name, **more))

        await self.whole.serve(
            ingress_config(
                ingress("web", rule(HOST, *map(path_of, SERVICES))),
                listeners=(tls_listener(protocols=(HTTPProtocol.HTTP2, HTTPProtocol.HTTP1)),),
                daemon=model.DaemonConfig(drain_timeout=0.1),
            )
        )
        for name in SERVICES:
            while len(self.pods[name]) < 3:
                self._new_pod(name)
        self.tell()

    def _new_pod(self, name: str) -> None:
        if name == "one":
            pod = self.whole.upstream()
        else:
            pod = self.whole.add(H2CPod(self.whole.reactor))
        self.behind.follow(pod)
        self.pods[name].append(pod)

    def tell(self) -> None:
        """The clusters tell of the pods that there are."""
        for name, pods in self.pods.items():
            self.whole.endpoints(name, *pods[::2])
            self.whole.endpoints(name, *pods[1::2], cluster="west")
        self._note()

    def _note(self) -> None:
        runtime = self.whole.service.runtime
        assert runtime is not None
        assert runtime.ingresses is not None
        for member in runtime.ingresses.members.values():
            self._endpoints.update(member.endpoints)
        self._targets.update(each.target for each in self._endpoints if isinstance(each.target, Pod))

    async def pods_change(self) -> None:
        """A pod dies with all its connections, before or after its cluster knows of it; or freezes, or thaws."""
        name = self.random.choice(SERVICES)
        pod = self.random.choice(self.pods[name])
        what = self.random.choice(["dies", "leaves", "freezes", "thaws", "told"])
        self.fates["pod", what] += 1
        if what == "freezes":
            self.behind.frozen.add(pod)
        elif what == "thaws":
            self.behind.frozen.clear()
        elif what in ("dies", "leaves"):
            self.pods[name].remove(pod)
            self._new_pod(name)
            if what == "leaves":
                self.tell()
                await self.whole.turns(1)
            await pod.stop()
        else:
            self.tell()

    # -- what happens -----------------------------------------------------------------------------------------------

    async def step(self) -> None:
        steps = [self.arrive, self.clients_act, self.pods_act, self.pods_change, self.serve]
        await self.random.choices(steps, weights=[20, 8, 20, 2, 1])[0]()
        await self.whole.turns(1)
        self._note()

    async def pods_act(self) -> None:
        for _ in range(self.random.choice([1, 3, 9])):
            self.behind.act()
            if self.random.random() < 0.5:
                await self.whole.turns(1)

    async def arrive(self) -> None:
        """A request, or some at once on one connection."""
        if self.random.random() < 0.5:
            await self._arrive_by_http1()
            return
        self.clients = [client for client in self.clients if client.lost is None and not client.goaways]
        if not self.clients or (len(self.clients) < 3 and self.random.random() < 0.3):
            self.clients.append(await http2_client(self.whole))
            self._all.append(self.clients[-1])
        client = self.random.choice(self.clients)
        for _ in range(self.random.choice([1, 1, 5])):
            method, target, length = self._request()
            content = body(length) if length else b""
            stream = PeerStream(client, client.engine.get_next_available_stream_id())
            client.streams[stream.number] = stream
            fields = [(b":method", method), (b":scheme", b"https"), (b":authority", HOST.encode()), (b":path", target)]
            if length:
                fields.append((b"x-length", b"%d" % length))
            stream.head(fields, end=not length)
            cut = self._cut(length)
            if length:
                stream.send(content[:cut])
            if length and cut == length:
                stream.end(self.random.choice([None, [(b"x-sum", b"1")]]))
            self.asked.append(Asked(client, stream, content[cut:]))

    async def _arrive_by_http1(self) -> None:
        method, target, length = self._request()
        head = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method, target, HOST.encode())
        data = b""
        if self.random.random() < 0.25:
            head, length = b"GET /one/ws HTTP/1.1\r\nHost: %b\r\n%b" % (HOST.encode(), UPGRADE), 0
        elif length and self.random.random() < 0.5:
            head += b"X-Length: %d\r\nTransfer-Encoding: chunked\r\n" % length
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (length, body(length))
        elif length:
            head += b"X-Length: %d\r\nContent-Length: %d\r\n" % (length, length)
            data = body(length)
        cut = self._cut(len(data))
        self._idle = [each for each in self._idle if each.lost is None and not each.ended]
        if self._idle and self.random.random() < 0.5:
            client = self._idle.pop()
            client.received = b""
        else:
            client = await self.whole.client(HOST)
            self._all.append(client)
        client.send(head + b"\r\n" + data[:cut])
        self.asked.append(Asked(client, None, data[cut:]))

    def _request(self) -> tuple[bytes, bytes, int]:
        """Method, target, and length of the body."""
        target = b"/%b/x" % self.random.choice(SERVICES).encode()
        method = self.random.choice([b"GET", b"GET", b"DELETE", b"POST", b"PUT"])
        return method, target, self.random.choice(SIZES) if method in (b"POST", b"PUT") else 0

    def _cut(self, length: int) -> int:
        return self.random.randrange(length) if length and self.random.random() < 0.3 else length

    async def clients_act(self) -> None:
        """Something happens to a client; those whose responses are whole may ask again."""
        self._settle()
        there = [each for each in self.asked if not each.left]
        if not there:
            return
        asked = self.random.choice(there)
        # Streams of a connection fall together with it: that is to be the rarer case.
        weights = [1, 1, 1, 6, 1, 4, 4, 8] if asked.stream else [1, 1, 1, 0, 0, 0, 0, 4]
        fate = self.random.choices(CLIENT_FATES, weights)[0]
        self.fates["client", fate] += 1
        self._client_fate(asked, fate)

    def _client_fate(self, asked: Asked, fate: str) -> None:
        client, stream = asked.client, asked.stream
        if fate in ("abort", "close", "half-close"):
            for each in self.asked:
                each.left |= each.client is client and not each.over
            if fate == "half-close":
                client.transport.loseWriteConnection()  # type: ignore[union-attr]
            elif fate == "close":
                client.close()
            else:
                client.abort()
        elif fate == "send rest":
            self._send_rest(asked)
        elif stream is not None and isinstance(client, H2Client):
            if fate == "reset":
                asked.left = True
                stream.cancel(self.random.choice([ErrorCodes.CANCEL, ErrorCodes.INTERNAL_ERROR, ErrorCodes.NO_ERROR]))
            elif fate == "goaway":
                client.goaway(0)
                self.clients = [each for each in self.clients if each is not client]
            elif fate == "stop reading":
                stream.reads = False
            else:
                stream.read_on()

    @staticmethod
    def _send_rest(asked: Asked) -> None:
        rest, asked.rest = asked.rest, b""
        if not rest or asked.lost:
            return
        if asked.stream is not None:
            asked.stream.send(rest)
            asked.stream.end()
        else:
            asked.client.send(rest)  # type: ignore[union-attr]

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """A response that looks whole is whole; its client may ask again."""
        for asked in [each for each in self.asked if each.over]:
            self.asked.remove(asked)
            self.statuses[asked.status] += 1
            length, content = asked.answer() or (None, b"")
            if length is not None:
                assert content == body(length), f"{len(content)} of {length} bytes looked whole to {asked}"
                if isinstance(asked.client, Client) and not asked.rest and not asked.left:
                    self._idle.append(asked.client)

    async def finish(self) -> None:
        """Let everything end; nothing may be left."""
        whole = self.whole
        service = whole.service
        for asked in self.asked:
            if asked.stream is not None:
                asked.stream.read_on()
            if asked.rest and not asked.over:
                if self.random.random() < 0.5:
                    self._send_rest(asked)
                else:
                    self._client_fate(asked, "reset" if asked.stream else "abort")
        self.behind.frozen.clear()

        def ended() -> bool:
            for _ in range(9):
                self.behind.act()
            for client in self._all:
                if isinstance(client, Client) and client.received.startswith(b"HTTP/1.1 101"):
                    client.close()  # a tunnel whose pod has half-closed lasts as long as its client
            return not service.running

        await whole.until(ended, "no request is in flight")
        await whole.until(
            lambda: all(asked.over or asked.left for asked in self.asked),
            "each client knows what became of its requests",
        )
        self._settle()
        assert self.behind.wrong == []
        for client in self._all:
            client.abort()
        await whole.until(lambda: not any(live.factory.connections for live in service.listeners), "clients are gone")
        self._check_problems()
        for name in SERVICES:
            for cluster in ("east", "west"):
                whole.endpoints(name, cluster=cluster)
        await whole.until(
            lambda: not any(busy or open_ for each in self._targets for open_, busy in each.counts().values()),
            "connections to pods are closed",
        )
        assert [each for each in self._targets if each.in_flight] == []
        assert [each for each in self._endpoints if each._timer is not None] == []
        # A pod's end that has half-closed stays open until it closes, too.
        ends: list[Any] = [end for pod in whole._upstreams for end in pod._ends if end.transport is not None]
        await whole.until(lambda: all(end.over for end in ends), "the proxy has ended its connections to pods")
        for end in ends:
            end.abort()

    def _check_problems(self) -> None:
        """The peers of HTTP/2 say what was wrong with the proxy's frames, and the log."""
        pods = [pod for pods in self.pods.values() for pod in pods if isinstance(pod, H2Upstream)]
        clients = [each for each in self._all if isinstance(each, H2Client)]
        problems = [repr(peer.problem) for peer in (*(end for pod in pods for end in pod.h2), *clients) if peer.problem]
        assert problems == []
