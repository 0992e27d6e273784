"""A hub and an edge in the test's process, with real TLS between them, through a passage that can freeze and break."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol

from mcproxy.config import model
from tests.proxy.harness import CA, NAME, OK, Client, Harness, Upstream, always, cluster, config, get, listener

EDGES = "other.test"
"""The server name of the hub's server for tunnels."""
TOKENS = {"edge-token": "edge-a", "other-token": "edge-b", "alice-token": "alice"}


class Passage(Factory):
    """A TCP relay to the hub. A frozen one passes on nothing, and keeps what comes."""

    noisy = False

    def __init__(self, reactor: Any, target: int) -> None:
        self.reactor = reactor
        self.target = target
        self.frozen = False
        self.refuses = False
        self.ends: list[_Outer] = []
        self.accepted = 0
        self._port = reactor.listenTCP(0, self, interface="127.0.0.1")

    @property
    def port(self) -> int:
        port: int = self._port.getHost().port
        return port

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def buildProtocol(self, addr: Any) -> Protocol:
        self.accepted += 1
        end = _Outer(self)
        self.ends.append(end)
        return end

    def freeze(self, frozen: bool = True) -> None:
        self.frozen = frozen
        for end in self.ends:
            end.hold(frozen)

    def cut(self) -> None:
        """Reset all connections."""
        for end in list(self.ends):
            end.abort()

    async def stop(self) -> None:
        self.cut()
        await self._port.stopListening()


class _Outer(Protocol):
    def __init__(self, passage: Passage) -> None:
        self.passage = passage
        self.inner: _Inner | None = None
        self.gone = False

    def connectionMade(self) -> None:
        transport: Any = self.transport
        if self.passage.refuses:
            transport.abortConnection()
            return
        transport.pauseProducing()
        inner = _Inner(self)
        endpoint = HostnameEndpoint(self.passage.reactor, "127.0.0.1", self.passage.target)
        connecting: Any = connectProtocol(endpoint, inner)  # type: ignore[no-untyped-call]
        connecting.addCallbacks(lambda _: None, lambda _: self.abort())

    def dataReceived(self, data: bytes) -> None:
        if self.inner is not None and self.inner.transport is not None:
            self.inner.transport.write(data)

    def hold(self, held: bool) -> None:
        for each in (self.transport, None if self.inner is None else self.inner.transport):
            transport: Any = each
            if transport is not None and transport.connected:
                transport.pauseProducing() if held else transport.resumeProducing()

    def abort(self) -> None:
        for each in (self.transport, None if self.inner is None else self.inner.transport):
            transport: Any = each
            if transport is not None and transport.connected:
                transport.abortConnection()

    def connectionLost(self, reason: Any = None) -> None:
        if self in self.passage.ends:
            self.passage.ends.remove(self)
        if self.inner is not None and self.inner.transport is not None:
            transport: Any = self.inner.transport
            transport.abortConnection()


class _Inner(Protocol):
    def __init__(self, outer: _Outer) -> None:
        self.outer = outer

    def connectionMade(self) -> None:
        self.outer.inner = self
        if self.outer.passage.frozen:
            self.outer.hold(True)
        else:
            transport: Any = self.outer.transport
            transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        if self.outer.transport is not None:
            self.outer.transport.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        if self.outer.transport is not None:
            transport: Any = self.outer.transport
            transport.loseConnection()


def token_set(name: str, tokens: dict[str, str]) -> model.Authentication:
    entries = tuple(model.StaticToken(model.Secret(token), user) for token, user in tokens.items())
    return model.Authentication(name=name, token_file=model.TokenFileConfig("tokens.csv", entries))


def tunnel_endpoint(name: str = "a", tunnel: str = "site-a", path: str = "") -> model.EndpointConfig:
    return model.EndpointConfig(name=name, scheme="tunnel", host=tunnel, port=0, tunnel=tunnel, path=path)


class TunnelSite:
    """`start` it; `close` it at the end."""

    def __init__(self, reactor: Any, folder: Path) -> None:
        self.reactor = reactor
        self.folder = folder
        self.hub = Harness(reactor)
        self.upstream: Upstream = self.hub.upstream()
        self.upstream.reply = always(OK)
        self.edges: list[Harness] = []
        self.passages: list[Passage] = []
        self._hubs = [self.hub]

    async def start(self, **dial: Any) -> None:
        await self.hub.serve(self.hub_config())
        self.passages.append(Passage(self.reactor, self.hub.port()))
        await self.add_edge(**dial)
        await self.up()

    @property
    def edge(self) -> Harness:
        return self.edges[0]

    @property
    def passage(self) -> Passage:
        return self.passages[0]

    @property
    def state(self) -> Any:
        return self.hub.service.tunnels.state("site-a")

    async def up(self) -> None:
        endpoint = self.hub.service.runtime.clusters["site"].endpoints[0]  # type: ignore[union-attr]
        await self.hub.until(lambda: self.state.is_up and endpoint.ready, "the tunnel")

    def hub_config(
        self,
        *,
        users: tuple[str, ...] = ("edge-a",),
        tokens: dict[str, str] = TOKENS,
        identity: model.UpstreamIdentity = model.UpstreamIdentity.REQUEST_HEADER,
        endpoints: tuple[model.EndpointConfig, ...] = (),
        port: int = 0,
        max_connections: int = 32,
        **listening: Any,
    ) -> model.Config:
        site = cluster(
            *(endpoints or (tunnel_endpoint(),)),
            name="site",
            identity=identity,
            connections=model.Connections(connect_timeout=2.0),
        )
        return config(
            [site],
            [
                model.Server(
                    name="main",
                    listeners=("tls",),
                    server_names=(NAME,),
                    default=True,
                    backend=model.ClusterBackend("site"),
                    authentication="all",
                ),
                model.Server(
                    name="tunnels",
                    listeners=("tls",),
                    server_names=(EDGES,),
                    backend=model.TunnelsBackend(("site-a", "site-b")),
                    authentication="all",
                ),
            ],
            [listener(port=port, protocols=(model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1), **listening)],
            authentication=(token_set("all", tokens),),
            tunnels=(
                model.Tunnel(name="site-a", users=users, max_connections=max_connections),
                model.Tunnel(name="site-b", users=("edge-b",)),
            ),
            logging=model.Logging(access=model.AccessLogConfig(file="access.log")),
        )

    def edge_config(
        self,
        *,
        token: str = "edge-token",
        tunnel: str = "site-a",
        urls: tuple[str, ...] = (),
        identity: model.UpstreamIdentity = model.UpstreamIdentity.IMPERSONATE,
        tokens: dict[str, str] | None = None,
        **dial: Any,
    ) -> model.Config:
        file = self.folder / f"{token}-file"
        file.write_text(token)
        dialled = model.Dial(
            tunnel=tunnel,
            urls=urls or (self.passages[0].url,),
            server_name=EDGES,
            tls=model.DialTLS(ca=model.PEMFile("ca", CA.cert_pem.bytes())),
            credentials=model.DialCredentials(token_file=str(file)),
            **dial,
        )
        both = (model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1)
        entries = tuple(model.StaticToken(model.Secret(each), user) for each, user in (tokens or {}).items())
        return config(
            [
                cluster(
                    self.upstream.endpoint(),
                    name="local",
                    identity=identity,
                    credentials=model.Credentials(token=model.Secret("of-the-edge")),
                )
            ],
            [
                model.Server(
                    name="site",
                    listeners=("hub",),
                    backend=model.ClusterBackend("local"),
                    authentication="from-hub",
                )
            ],
            [model.ListenerConfig(name="hub", dial=dialled, protocols=both)],
            authentication=(
                model.Authentication(
                    name="from-hub",
                    request_header=model.RequestHeader(listeners=("hub",), hub_user="mcproxy-hub"),
                    token_file=model.TokenFileConfig("tokens.csv", entries) if entries else None,
                ),
            ),
            logging=model.Logging(access=model.AccessLogConfig(file="access.log")),
        )

    async def add_edge(self, *, instance: str = "", **settings: Any) -> Harness:
        """Another edge daemon: with an instance of its own."""

        class Edge(Harness):
            def parts(self) -> dict[str, Any]:
                return {"instance": instance or os.urandom(16).hex()}

        edge = Edge(self.reactor)
        self.edges.append(edge)
        await edge.serve(self.edge_config(**settings))
        return edge

    async def ask(self, raw: bytes = b"", token: str = "alice-token") -> tuple[int, dict[str, str], bytes]:
        """Send a request to the hub; return its answer."""
        client = await self.hub.asks(raw or get(b"/api/v1/pods", b"Authorization: Bearer " + token.encode()))
        await self.hub.until(lambda: self._is_whole(client) or client.over, "the answer")
        answer = client.answer()
        client.abort()
        return answer

    @staticmethod
    def _is_whole(client: Client) -> bool:
        if b"\r\n\r\n" not in client.received:
            return False
        _, fields, body = client.answer()
        return len(body) >= int(fields.get("content-length", 0))

    async def close(self) -> None:
        for harness in (*self.edges, self.hub):
            await harness.close()
        for passage in self.passages:
            await passage.stop()
