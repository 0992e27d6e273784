"""An ingress without rules: a listener whose requests go to pods that the test names, over real sockets.

`Front` is what is tested: engine, `IngressForward`, `PodPools`. `PodServer` is a pod of our own engine, which speaks
HTTP/1.1 and HTTP/2 and does what the test says; pods that are not our own code are in `real_servers`.
`Client` asks the front.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from mcproxy.config.model import Limits, TCPBind, UpstreamProtocol
from mcproxy.http.client_stream import ClientStream
from mcproxy.http.connection_pool import ConnectionPool
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange
from mcproxy.http.h2.frames import HEADERS
from mcproxy.http.messages import CHUNKED, Header, RequestHead, ResponseHead
from mcproxy.http.server_factory import ServerFactory
from mcproxy.net.connect import connect
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.services.ingress.forward_target import AttemptOutcome, Failure, Target
from mcproxy.services.ingress.ingress_forward import IngressForward
from mcproxy.services.ingress.pod_pools import Pod, PodConnections, PodKey, PodPools, PodTLS
from mcproxy.services.ingress.port_forward import PortForwarder
from mcproxy.upstream.tls import ClientContexts
from tests.http.h1.harness import Answer
from tests.http.h2 import raw
from tests.net.peers import CA, client_tls, reactor, speaking, until

H2C = PodConnections(protocol=UpstreamProtocol.HTTP2)
HTTP1 = PodConnections()
TLS = PodConnections(protocol=UpstreamProtocol.AUTO, tls=PodTLS(CA.cert_pem.bytes(), "localhost"))


def real_connect(host: str, port: int, protocol: Any, **settings: Any) -> Any:
    return connect(reactor(), host, port, protocol, **settings)


class Asked:
    """One request at the front, and what became of it."""

    def __init__(self, front: Front, exchange: Exchange) -> None:
        self.front = front
        self.exchange = exchange
        self.outcomes: list[AttemptOutcome] = []
        self.chosen: list[Target] = []
        self.failure: Failure | None = None
        self.problem: Exception | None = None
        self.broke: Exception | None = None
        self.done = False
        exchange.on_done = self
        head = exchange.head
        self.forward = IngressForward(
            self,
            (head.target, head.host, (head.fields,)),
            response_timeout=front.response_timeout,
            read_timeout=front.read_timeout,
            retries=front.retries,
            retry_on=front.retry_on,
        )
        self.forward.start()

    def choose(self, tried: Sequence[Target]) -> Target | None:
        target = next((pod for pod in self.front.pods if pod.takes_requests and pod not in tried), None)
        if target is not None:
            self.chosen.append(target)
        return target

    def attempt_ended(self, target: Target, outcome: AttemptOutcome) -> None:
        self.outcomes.append(outcome)

    def response_fields(self, head: ResponseHead, target: Target) -> bytes:
        return head.fields

    def broken(self, problem: Exception) -> None:
        self.broke = problem

    def refuse(self, failure: Failure, problem: Exception | None) -> None:
        self.failure, self.problem = failure, problem
        self.exchange.answer(failure.status, b"", failure.reason.encode())

    def fail(self) -> None:
        self.front.bugs += 1
        self.exchange.answer(500, b"", b"")

    def exchange_done(self, exchange: Exchange) -> None:
        assert not self.done
        self.done = True
        self.forward.exchange_done()


class Stand:
    """Everything that a test opened; `close` ends it."""

    def __init__(self) -> None:
        self.deadlines = Deadlines(reactor())
        self.listeners: list[Listener] = []
        self.closers: list[Callable[[], None]] = []

    def listen(self, handle: Callable[[Exchange], Any], settings: ListenerSettings, **more: Any) -> Listener:
        factory = ServerFactory(
            self.deadlines, settings.limits, handle, lambda *_: (b"", b"refused"), prior_knowledge=True, **more
        )
        listener = Listener(reactor(), factory, settings, TCPBind("127.0.0.1", 0), None)
        listener.start()
        self.listeners.append(listener)
        return listener

    def front(self, **more: Any) -> Front:
        return Front(self, **more)

    def pod(self, handle: Callable[[Exchange], Any], *, tls: bool = False, limits: Limits | None = None) -> int:
        """Start a pod of our own engine; return its port."""
        limits = limits or Limits()
        settings = speaking(b"h2", b"http/1.1") if tls else ListenerSettings(limits=limits)
        return port_of(self.listen(handle, settings))

    def raw_pod(self) -> RawPod:
        """Start a pod that sends what the test says."""
        pod = RawPod()
        listener = Listener(reactor(), pod, ListenerSettings(), TCPBind("127.0.0.1", 0), None)
        listener.start()
        self.listeners.append(listener)
        pod.port = port_of(listener)
        return pod

    async def close(self) -> None:
        for closer in self.closers:
            closer()
        for listener in self.listeners:
            listener.stop_accepting()
            listener.drop_pending()
            for stream in listener:
                stream.abortConnection()
        await until(lambda: not any(listener.connections for listener in self.listeners))
        self.deadlines.stop()


def port_of(listener: Listener) -> int:
    address = listener.address
    assert isinstance(address, TCPBind)
    return address.port


class RawPod:
    """A pod; `answers` are the bytes that its connections send after a request's head each, in turn."""

    def __init__(self) -> None:
        self.port = 0
        self.answers: list[bytes] = []
        self.ends = 0  # the connections that end after their next answer, in an orderly way
        self.resets = False
        self.connections: list[RawConnection] = []

    def build(self, transport: Any) -> RawConnection:
        connection = RawConnection(self)
        self.connections.append(connection)
        return connection

    @property
    def heads(self) -> list[bytes]:
        """The heads of requests that came."""
        return [head for connection in self.connections for head in connection.heads]


class RawConnection(Protocol):
    """One connection of a `RawPod`."""

    def __init__(self, pod: RawPod) -> None:
        self.pod = pod
        self.received = b""
        self.heads: list[bytes] = []
        self.waits = self.answered = 0  # requests
        self.lost = False

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        if not self.received.startswith(b"PRI") and b"\r\n\r\n" in data:
            self.heads.append(data)
            self.waits += 1
        elif self.received.startswith(raw.PREFACE):
            begun = [frame for frame in raw.parse(self.received[len(raw.PREFACE) :])[0] if frame.kind == HEADERS]
            self.waits = len(begun) - self.answered
        if self.waits > 0 and self.pod.answers:
            self.waits -= 1
            self.answered += 1
            self.send(self.pod.answers.pop(0))
            if self.pod.resets:
                self.transport.abortConnection()  # type: ignore[union-attr]
            elif self.pod.ends:
                self.pod.ends -= 1
                self.transport.loseConnection()  # type: ignore[union-attr]

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = True


class Front:
    """The ingress; `pods` are its targets in the order in which they are chosen."""

    def __init__(self, stand: Stand, *, tls: bool = False, limits: Limits | None = None) -> None:
        self.stand = stand
        self.tls = tls
        self.asked: list[Asked] = []
        self.pods: list[Any] = []
        self.retries = 1
        self.retry_on: tuple[int, ...] = ()
        self.bugs = 0
        self.response_timeout = 60.0
        self.read_timeout = 60.0
        self.hanging: set[int] = set()  # ports to which no connection is made
        self.registry = PodPools(
            self._connect, PortForwarder(reactor, lambda _: None), ClientContexts(), stand.deadlines
        )
        stand.closers.append(self.registry.close)
        settings = speaking(b"h2", b"http/1.1") if tls else ListenerSettings(limits=limits or Limits())
        self.listener = stand.listen(self._handle, settings)
        self.port = port_of(self.listener)

    def _connect(self, host: str, port: int, protocol: Any, **settings: Any) -> Any:
        return Deferred() if port in self.hanging else real_connect(host, port, protocol, **settings)

    def _handle(self, exchange: Exchange) -> None:
        self.asked.append(Asked(self, exchange))

    def to(self, port: int, how: PodConnections = HTTP1) -> Pod:
        """Add a pod."""
        pod = self.registry.acquire(PodKey("127.0.0.1", port, how))
        self.pods.append(pod)
        return pod

    def client(self, protocol: UpstreamProtocol = UpstreamProtocol.HTTP1) -> Client:
        return Client(self, protocol)


class Asking(Answer):
    """A request of a client, and its response."""

    def __init__(self) -> None:
        super().__init__()
        self.stream: ClientStream | None = None

    @property
    def over(self) -> bool:
        return self.complete or self.failure is not None or self.upgraded is not None

    @property
    def status(self) -> int:
        assert self.head is not None
        return self.head.status

    def send(self, data: bytes) -> None:
        assert self.stream is not None
        self.stream.send_body(data)

    def end(self, trailers: list[Header] | None = None) -> None:
        assert self.stream is not None
        self.stream.end_body(trailers or [])

    async def wait(self) -> Asking:
        await until(lambda: self.over)
        return self


class Client:
    """Asks the front over connections of one version."""

    def __init__(self, front: Front, protocol: UpstreamProtocol) -> None:
        self.front = front
        tls = client_tls() if front.tls else None

        def dial(engine: Any, alpn: tuple[bytes, ...]) -> Any:
            return real_connect("127.0.0.1", front.port, engine, tls=tls, timeout=60.0, alpn=alpn)

        self.pool = ConnectionPool(
            dial,
            front.stand.deadlines,
            protocol=protocol,
            max_idle=9,
            max_connections=0,
            idle_timeout=60.0,
            prior_knowledge=True,
            sends_trailers=True,
        )
        front.stand.closers.append(self.pool.close)

    async def begin(
        self,
        method: bytes = b"GET",
        target: bytes = b"/",
        fields: bytes = b"",
        *,
        length: int = 0,
        te_trailers: bool = False,
        upgrade: bytes | None = None,
        expects_continue: bool = False,
    ) -> Asking:
        """Send the head of a request."""
        head = RequestHead()
        head.method, head.length, head.upgrade = method, length, upgrade
        head.expects_continue, head.te_trailers = expects_continue, te_trailers
        asking = Asking()
        stream = self.pool.take(upgrade=upgrade is not None)
        if stream is None:
            stream = await self.pool.open(upgrade=upgrade is not None)
        asking.stream = stream
        stream.send_head(head, target, b"shop.example.com", (fields,), asking, 30.0)
        return asking

    async def ask(
        self, method: bytes = b"GET", target: bytes = b"/", fields: bytes = b"", body: bytes = b"", **more: Any
    ) -> Asking:
        """Send a request and wait for its response."""
        asking = await self.begin(method, target, fields, length=CHUNKED if body else 0, **more)
        if body:
            asking.send(body)
            asking.end()
        return await asking.wait()
