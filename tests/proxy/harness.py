"""A whole proxy in the test's process, on loopback: real TLS in front, upstreams behind that write down every byte."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import trustme
from OpenSSL import SSL
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from zope.interface import implementer

from mcproxy.config import model
from mcproxy.daemon.process_parts import AggregatesOwner, ProcessParts
from mcproxy.daemon.rights_check import RightsCheck
from mcproxy.daemon.runtime import Runtime
from mcproxy.daemon.service import SingleProcessService
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.tls_contexts import client_context
from mcproxy.observe.audit.log import AuditLog, AuditLogs
from mcproxy.observe.record import AccessRecord
from mcproxy.proxy.admin.admin_interface import AdminSource

CA = trustme.CA()
NAME = "k8s.test"
CLIENT_ADDRESS = b"127.0.0.1"


@functools.cache
def certificate(*names: str) -> model.Certificate:
    issued = CA.issue_cert(*names, key_type=trustme.KeyType.ECDSA)
    chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
    return model.Certificate(
        name=names[0],
        chain=model.PEMFile("chain", chain),
        key=model.PEMFile("key", issued.private_key_pem.bytes()),
        server_names=names,
    )


@functools.cache
def _client_context() -> SSL.Context:
    return client_context(CA.cert_pem.bytes(), None, verify=True)


class End(Protocol):
    """One end of a connection, which the test moves; `received` is all that came, `seen` what was looked at."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = False  # the other end sends no more, in an orderly way
        self.lost: BaseException | None = None

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def readConnectionLost(self) -> None:
        self.ended = True

    def writeConnectionLost(self) -> None:
        pass

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = reason.value

    @property
    def over(self) -> bool:
        return self.ended or self.lost is not None

    def send(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[union-attr]

    def finish(self) -> None:
        """Send no more; go on reading."""
        self.transport.loseWriteConnection()  # type: ignore[union-attr]

    def close(self) -> None:
        if self.lost is None:
            self.transport.loseConnection()  # type: ignore[union-attr]

    def abort(self) -> None:
        if self.lost is None:
            self.transport.abortConnection()  # type: ignore[union-attr]


@implementer(IHalfCloseableProtocol)
class Client(End):
    """A client of the proxy."""

    @property
    def port(self) -> int:
        """The port that it comes from; while it is connected."""
        port: int = self.transport.getHost().port  # type: ignore[union-attr]
        return port

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The first answer that came: status, fields with names in lower case, everything behind the head."""
        head, _, body = self.received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        return int(lines[0].split(" ")[1]), fields, body


REVIEW = b"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews "
ALLOWED = (
    b'{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}, '
    b'"status": {"allowed": true}}'
)


@implementer(IHalfCloseableProtocol)
class UpstreamEnd(End):
    """One connection of the proxy to an upstream; health checks and reviews of rights are answered and forgotten."""

    def __init__(self, upstream: Upstream) -> None:
        super().__init__()
        self.answered = 0  # requests, by `always`
        self._upstream = upstream
        self._known = False
        self._review = b""  # of the proxy's rights, as far as it has come: on a connection that is shared with requests

    def dataReceived(self, data: bytes) -> None:
        if self._review or (data.startswith(REVIEW) and not (self._known and self._upstream.has_reviews)):
            self._review += data
            if data.endswith(b"}"):
                review, self._review = self._review, b""
                rights = self._upstream.rights(review)
                self.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(rights), rights))
            return
        super().dataReceived(data)
        if not self._known and b"/readyz-check HTTP/1.1\r\n" in self.received and b"\r\n\r\n" in self.received:
            self.received = b""
            self.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            return
        if not self._known:
            self._known = True
            self._upstream.connections.append(self)
        self._upstream.last = self
        if self._upstream.reply is not None:
            self._upstream.reply(self)


class Upstream(Factory):
    """A plain TCP server; `reply`, if set, is called with a connection whenever bytes came in by it."""

    noisy = False
    has_reviews = False
    """Whether reviews of rights are requests of clients, on connections that have had requests."""
    rights: Callable[[bytes], bytes] = staticmethod(lambda _: ALLOWED)
    """Returns the answer to a review of the proxy's own rights, given with its head."""

    def __init__(self, reactor: Any, port: int = 0) -> None:
        self.connections: list[UpstreamEnd] = []
        self.last: UpstreamEnd  # by which bytes came in
        self.reply: Callable[[UpstreamEnd], None] | None = None
        self._ends: list[UpstreamEnd] = []
        self._port = self.listen(reactor, port)
        self.port: int = self._port.getHost().port

    def listen(self, reactor: Any, port: int) -> Any:
        return reactor.listenTCP(port, self, interface="127.0.0.1")

    def buildProtocol(self, addr: Any) -> UpstreamEnd:
        self._ends.append(UpstreamEnd(self))
        return self._ends[-1]

    @property
    def received(self) -> bytes:
        """All bytes of all connections but health checks'."""
        return b"".join(connection.received for connection in self.connections)

    def forget(self) -> None:
        """Begin anew; connections that are kept stay known."""
        self.reply = None
        self.connections = [connection for connection in self.connections if connection.lost is None]
        for connection in self.connections:
            connection.received = b""
            connection.answered = 0

    def stop(self) -> Deferred[Any]:
        for end in self._ends:
            if end.lost is None and end.transport is not None:
                end.abort()
        return maybeDeferred(self._port.stopListening)

    def endpoint(self, name: str = "a", path: str = "") -> model.EndpointConfig:
        return model.EndpointConfig(name=name, scheme="http", host="127.0.0.1", port=self.port, path=path)


def plain(data: bytes) -> bytes:
    """Return the bytes of a head without the Audit-ID, which every request and response has."""
    return re.sub(rb"(?im)^audit-id: [^\r]*\r\n", b"", data)


def always(response: bytes) -> Callable[[UpstreamEnd], None]:
    """A `reply` that answers each request without a body with `response`."""

    def reply(connection: UpstreamEnd) -> None:
        count = connection.received.count(b"\r\n\r\n")
        done, connection.answered = connection.answered, count
        connection.send(response * (count - done))

    return reply


def reviewing(
    reply: Callable[[UpstreamEnd], None], allowed: Callable[[dict[str, Any]], bool]
) -> Callable[[UpstreamEnd], None]:
    """A `reply` that answers SubjectAccessReviews by `allowed`, which gets the spec, and forgets their bytes.

    They may come over a connection that has carried requests of clients.
    """

    def answer(end: UpstreamEnd) -> None:
        before, review_line, rest = end.received.partition(b"POST /apis/authorization.k8s.io/v1/subjectaccessreviews ")
        if not review_line:
            reply(end)
            return
        head, separator, rest = rest.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if not separator or len(rest) < int(length[0][15:]):
            return
        end.received = before
        review = json.loads(rest)
        body = json.dumps({**review, "status": {"allowed": allowed(review["spec"])}}).encode()
        end.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    return answer


def cluster(*endpoints: model.EndpointConfig, name: str = "east", **fields: Any) -> model.ClusterConfig:
    usual: dict[str, Any] = {
        "identity": model.UpstreamIdentity.PROXY,
        "health_check": model.HealthCheck(path="/readyz-check", interval=3600.0),
    }
    return model.ClusterConfig(name=name, endpoints=endpoints, **{**usual, **fields})


def listener(name: str = "tls", *, tls: bool = True, port: int = 0, **fields: Any) -> model.ListenerConfig:
    return model.ListenerConfig(
        name=name,
        bind=model.TCPBind("127.0.0.1", port),
        tls=model.ListenerTLS(certificates=(NAME,)) if tls else None,
        **fields,
    )


def config(
    clusters: Sequence[model.ClusterConfig],
    servers: Sequence[model.Server] = (),
    listeners: Sequence[model.ListenerConfig] = (),
    **fields: Any,
) -> model.Config:
    """A configuration of one default server for the first cluster, unless `servers` are given."""
    listeners = listeners or (listener(),)
    names = tuple(each.name for each in listeners)
    default = model.Server(
        name="main",
        listeners=names,
        server_names=(NAME,),
        default=True,
        backend=model.ClusterBackend(clusters[0].name if clusters else ""),
    )
    return model.Config(
        listeners=tuple(listeners),
        certificates=(certificate(NAME, "other.test", "*.wild.test"),),
        clusters=tuple(clusters),
        servers=tuple(servers) or ((default,) if clusters else ()),
        **fields,
    )


AnyUpstream = TypeVar("AnyUpstream", bound=Upstream)


class Log:
    """An access log that keeps the records; `closed` counts."""

    def __init__(self) -> None:
        self.records: list[AccessRecord] = []
        self.closed = 0

    def finished(self, record: AccessRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed += 1


class Logs:
    """The logs of requests of the process under test (`daemon.runtime.RequestLogOpener`)."""

    def __init__(self, clock: Any) -> None:
        self.access: list[Log] = []
        self.audit = AuditLogs(clock)
        self.traced: Any = None  # what takes spans

    def open_access(self, _: model.AccessLogConfig) -> Log:
        self.access.append(Log())
        return self.access[-1]

    def open_audit(self, config: model.AuditLogConfig) -> AuditLog:
        return self.audit.open(config)

    def spans(self) -> Any:
        return self.traced


class NoRightsCheck(RightsCheck):
    """In place of the check of the proxy's rights, whose requests would come amid those of tests."""

    def start(self, runtime: Runtime) -> None:
        """Check nothing."""


class Harness:
    """The proxy, its upstreams and its clients; `close` ends them all."""

    def __init__(self, reactor: Any, admin: AdminSource | None = None) -> None:
        """`admin` is what Admin listeners show."""
        self.reactor = reactor
        self.request_logs = Logs(reactor)
        parts = ProcessParts(admin=admin, batch_size=1, **self.parts())
        self.service = SingleProcessService(reactor, parts=parts, request_logs=self.request_logs)
        self.service._rights_check = NoRightsCheck(reactor)
        self._upstreams: list[Upstream] = []
        self._clients: list[Client] = []
        self._closing: list[Callable[[], None]] = []

    def parts(self) -> dict[str, Any]:
        """Return further parts of the process."""
        return {}

    watch_end = "cleanly"
    """How the handler of a watch on an aggregate is told that this process ends it."""

    def use_aggregates(self, owner: AggregatesOwner) -> None:
        """Have the aggregates of the configuration answered by the test."""
        self.service._resources = replace(self.service._resources, aggregates=owner)

    @property
    def logs(self) -> list[Log]:
        return self.request_logs.access

    @property
    def records(self) -> list[AccessRecord]:
        return [record for log in self.logs for record in log.records]

    def upstream(self) -> Upstream:
        return self.add(Upstream(self.reactor))

    def add(self, upstream: AnyUpstream) -> AnyUpstream:
        """Stop it at the end."""
        self._upstreams.append(upstream)
        return upstream

    def closing(self, call: Callable[[], None]) -> None:
        """Call it at the end."""
        self._closing.append(call)

    async def serve(self, configuration: model.Config) -> None:
        await self.service.apply(configuration)

    def port(self, index: int = 0) -> int:
        address = self.service.listeners[index].bound
        assert isinstance(address, model.TCPBind)
        return address.port

    async def client(self, server_name: str = NAME, *, port: int = 0, tls: bool = True) -> Client:
        """A connected client; its handshake is done."""
        client = Client()
        settings = None
        if tls:
            settings = ClientTLS(_client_context(), server_name, verify=True, sessions=None)
        await connect(self.reactor, "127.0.0.1", port or self.port(), client, tls=settings, timeout=60.0)
        self._clients.append(client)
        return client

    async def asks(self, raw: bytes, **how: Any) -> Client:
        """A new client that has sent `raw`."""
        client = await self.client(**how)
        client.send(raw)
        return client

    async def until(self, condition: Callable[[], Any], what: str = "it") -> None:
        """Wait until `condition()`; fail with `what` if it never holds, with patience for a machine that is busy."""
        deadline, turns = self.reactor.seconds() + 60.0, 0
        while not condition():
            if self.reactor.seconds() > deadline and turns > 100:  # not if the process stood still meanwhile
                pytest.fail(f"{what} did not come to pass within 60 seconds")
            await deferLater(self.reactor, 0.005)
            turns += 1

    async def turns(self, count: int = 5) -> None:
        """Let everything happen that is under way on loopback."""
        for _ in range(count):
            await deferLater(self.reactor, 0.002)

    async def close(self) -> None:
        self.service.abort()
        for client in self._clients:
            client.abort()
        for call in self._closing:
            call()
        for upstream in self._upstreams:
            await upstream.stop()


def get(target: bytes = b"/api/v1/namespaces/a/pods/b", *fields: bytes, method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", b"Host: " + NAME.encode(), *fields, b"", b""])


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
