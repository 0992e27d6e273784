"""True parts of a proxy, for tests of other parts: compiled code takes no others where it declares their class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from types import MappingProxyType, SimpleNamespace
from typing import Any

from mcproxy.config import model
from mcproxy.dispatch.plan import Dispatch
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange
from mcproxy.http.h1.head_parser import parse_request_head
from mcproxy.http.messages import Header, RequestHead
from mcproxy.http.server_factory import ServerFactory
from mcproxy.http.tunnel import TunnelSide
from mcproxy.identity.authentication.authenticator import NO_AUTHENTICATION
from mcproxy.identity.authorization.authorizer import ImpersonationAuthorizer
from mcproxy.proxy.client_connection import ClientConnectionInfo
from mcproxy.proxy.routes import VirtualServer
from tests.support.clock import Clock

NOT_ASKED: Any = None
"""Stands for what the test does not reach."""


def impersonation() -> ImpersonationAuthorizer:
    """Return one that nothing asks."""
    return ImpersonationAuthorizer(None, NOT_ASKED)


def virtual_server(
    config: model.Server, clusters: Mapping[str, Any] = MappingProxyType({}), **parts: Any
) -> VirtualServer:
    """Return the live server of `config`, which authenticates nobody; `parts` are those that the test is about."""
    usual: dict[str, Any] = {
        "authenticator": NO_AUTHENTICATION,
        "authorizer": None,
        "impersonation": impersonation(),
        "dispatch": Dispatch(config, clusters, NOT_ASKED),
        "upstream_headers": {},
    }
    return VirtualServer(config, clusters, **{**usual, **parts})


class FakeExchange(Exchange):
    """An exchange without a client: what is written to it goes nowhere."""

    protocol = "HTTP/1.1"

    def __init__(self, target: bytes = b"/", clock: Clock | None = None) -> None:
        clock = clock or Clock()
        connection: Any = SimpleNamespace(
            seconds=clock.seconds, wall_seconds=clock.wall_seconds, client=None, handler_state=None
        )
        head = RequestHead()
        head.method, head.target, head.fields, head.length = b"GET", target, b"", 0
        super().__init__(connection, head, clock.seconds())

    @property
    def write_blocked(self) -> bool:
        return False

    def set_long_running(self) -> None: ...

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None: ...

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None: ...

    def write(self, data: bytes) -> None: ...

    def write_shared(self, data: bytes, chunk: bytes) -> None: ...

    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None: ...

    def flush(self) -> None: ...

    def end(self, trailers: list[Header] | None = None) -> None: ...

    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None: ...

    def abort(self) -> None: ...

    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        raise AssertionError("no upgrade is asked for")


def connection_info(client: Any, *trusted: str, tls: bool = True, routes: Any = None) -> ClientConnectionInfo:
    transport = SimpleNamespace(
        is_tls=tls, server_name="sni.test" if tls else None, peer_certificate=lambda: None, peer_chain=list
    )
    factory = ServerFactory(
        Deadlines(Clock()), model.Limits(), lambda exchange: None, lambda *_: (b"", b""), name="tls"
    )
    connection: Any = SimpleNamespace(client=client, transport=transport, factory=factory)
    return ClientConnectionInfo(connection, routes, [ip_network(each) for each in trusted], lambda _: None)


def request_head(*fields: bytes) -> RequestHead:
    return parse_request_head(b"\r\n".join([b"GET / HTTP/1.1", b"Host: A.test:6443", *fields, b"", b""]), 100, 100)
