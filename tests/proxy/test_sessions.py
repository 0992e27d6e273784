"""Watches, followed logs and tunnels end at `maxAge`, and with the credential that opened them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authentication.authenticator import NoAuthentication
from mcproxy.identity.client_identity_headers import split_identity_headers
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy import sessions as module
from mcproxy.proxy.request import Request
from mcproxy.proxy.routes import VirtualServer
from mcproxy.proxy.sessions import Sessions
from tests.proxy.builders import FakeExchange, virtual_server
from tests.proxy.harness import Client, Harness, Upstream, UpstreamEnd, cluster, config, get
from tests.support.clock import Clock


class FakeRequest(Request):
    """A session that the test ends."""

    def __init__(self, requests_: Requests, server: VirtualServer) -> None:
        client: Any = SimpleNamespace(peer=None, address="192.0.2.7", trusted=False)
        super().__init__(FakeExchange(b"/api", requests_.clock), client, requests_.requests, Recorders())
        self.requests_ = requests_
        self.server = server
        self.identity_headers = split_identity_headers(b"")
        self.caller = AuthenticatedUser(UserInfo("alice"))
        self.ended: tuple[float, str, bool] | None = None
        self.obeys = True

    @property
    def is_session(self) -> bool:
        return True

    def end_session(self, reason: str, *, now: bool = False) -> None:
        self.ended = self.requests_.clock.seconds(), reason, now
        if self.obeys or now:
            self.over()

    def over(self) -> None:
        self.exchange.cancel()


class FakeAuthenticator(NoAuthentication):
    """Says what `answer` says: a user's name, a refusal, or a Deferred of either."""

    def __init__(self, answer: Any = "alice") -> None:
        self.answer = answer
        self.asked = 0

    async def authenticate(
        self, peer: Any, headers: Any, path: bytes, *, client: str = "", server: str = "", token_decides: bool = False
    ) -> AuthenticatedUser:
        self.asked += 1
        answer = await self.answer if isinstance(self.answer, Deferred) else self.answer
        if isinstance(answer, Exception):
            raise answer
        return AuthenticatedUser(UserInfo(answer))


class Requests:
    def __init__(self, random: float = 0.0) -> None:
        self.clock = Clock()
        self.requests: set[Request] = set()
        self.random = random
        self.sessions = Sessions(self.clock, self.requests, lambda: self.random)

    def server(self, authenticator: NoAuthentication | None = None, **limits: Any) -> VirtualServer:
        backend = SimpleNamespace(config=SimpleNamespace(identity=model.UpstreamIdentity.IMPERSONATE))
        config = model.Server(
            name="main",
            listeners=("l",),
            backend=model.ClusterBackend("east"),
            sessions=model.SessionsConfig(**limits),
        )
        return virtual_server(config, {"east": backend}, authenticator=authenticator or FakeAuthenticator())

    def begins(self, server: VirtualServer) -> FakeRequest:
        if not self.sessions._servers:
            self.sessions.activate({"main": server})
        request = FakeRequest(self, server)
        self.sessions.begin(request)
        return request

    def passes(self, seconds: float) -> None:
        self.clock.pump([0.1] * round(seconds / 0.1))


UNAUTHORIZED, UNAVAILABLE = StatusError(401, "Unauthorized"), StatusError(503, "later")


def test_without_limits_nothing_is_kept() -> None:
    requests_ = Requests()
    requests_.begins(requests_.server())
    assert (len(requests_.sessions), requests_.clock.getDelayedCalls()) == (0, [])


@pytest.mark.parametrize(("random", "age"), [(0.0, 100.0), (0.5, 95.0), (0.999, 90.0)])
def test_a_session_ends_at_its_age_less_up_to_a_tenth(random: float, age: float) -> None:
    requests_ = Requests(random)
    request = requests_.begins(requests_.server(max_age=100.0))
    requests_.passes(age - 0.3)
    assert not bool(request.ended)
    requests_.passes(0.6)
    assert request.ended is not None
    assert request.ended[1:] == ("session_expired", False)
    assert (len(requests_.sessions), requests_.clock.getDelayedCalls()) == (0, [])


def test_one_that_does_not_end_is_cut_after_a_grace() -> None:
    requests_ = Requests()
    request = requests_.begins(requests_.server(max_age=10.0))
    request.obeys = False
    requests_.passes(14.8)
    assert request.ended is not None
    assert request.ended[2] is False
    requests_.passes(0.5)
    assert request.ended[1:] == ("session_expired", True)
    assert requests_.clock.getDelayedCalls() == []


def test_one_that_ends_by_itself_leaves_nothing() -> None:
    requests_ = Requests()
    requests_.begins(requests_.server(max_age=10.0, end_with_credential=True)).over()
    assert (len(requests_.sessions), requests_.clock.getDelayedCalls()) == (0, [])


@pytest.mark.parametrize(
    ("answer", "ends"),
    [("alice", False), (UNAUTHORIZED, True), (UNAVAILABLE, False), (StatusError(404, "x"), False), ("mallory", True)],
)
def test_it_ends_when_its_credential_is_no_longer_accepted(answer: Any, ends: bool) -> None:
    requests_ = Requests()
    authenticator = FakeAuthenticator()
    request = requests_.begins(requests_.server(authenticator, end_with_credential=True))
    requests_.passes(60)
    assert not bool(request.ended)
    assert 6 <= authenticator.asked <= 8
    authenticator.answer = answer
    requests_.passes(11)
    assert (request.ended is not None) is ends
    assert request.ended is None or request.ended[1] == "credential_ended"
    assert bool(requests_.clock.getDelayedCalls()) is not ends


def test_a_review_that_takes_long_is_not_asked_twice_and_is_left_when_the_session_ends() -> None:
    requests_ = Requests()
    review: Deferred[Any] = Deferred()
    authenticator = FakeAuthenticator(review)
    request = requests_.begins(requests_.server(authenticator, end_with_credential=True))
    requests_.passes(100)
    assert authenticator.asked == 1
    request.over()
    assert review.called  # cancelled
    assert requests_.clock.getDelayedCalls() == []


def test_a_reload_has_all_sessions_authenticated_soon() -> None:
    requests_ = Requests(0.5)
    strict = FakeAuthenticator(UNAUTHORIZED)
    plain, limited = requests_.begins(requests_.server()), requests_.begins(requests_.server(max_age=3600.0))
    requests_.sessions.activate({"main": requests_.server(strict, end_with_credential=True)})
    requests_.passes(1.2)
    assert [request.ended is not None for request in (plain, limited)] == [True, True]
    assert requests_.clock.getDelayedCalls() == []


def test_a_reload_that_removes_the_server_leaves_its_sessions_to_the_drain() -> None:
    requests_ = Requests()
    request = requests_.begins(requests_.server(FakeAuthenticator(), end_with_credential=True))
    requests_.sessions.activate({})
    requests_.passes(60)
    assert request.ended is None


def test_a_bug_ends_the_session() -> None:
    requests_ = Requests()
    request = requests_.begins(requests_.server(FakeAuthenticator(RuntimeError("bug")), end_with_credential=True))
    requests_.passes(11)
    assert request.ended is not None


# --- over the wire ---

WATCH, EXEC = b"/api/v1/pods?watch=1", b"/api/v1/namespaces/a/pods/b/exec?command=sh"
LOG = b"/api/v1/namespaces/a/pods/b/log?follow=1"
EVENT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
ALICE = b"Authorization: Bearer alice"


def configuration(upstream: Upstream, *users: str, **limits: Any) -> model.Config:
    tokens = tuple(model.StaticToken(model.Secret(name), name) for name in users)
    made = config(
        [cluster(upstream.endpoint())],
        authentication=(model.Authentication(name="users", token_file=model.TokenFileConfig("t", tokens)),),
    )
    server = replace(made.servers[0], authentication="users", sessions=model.SessionsConfig(**limits))
    return replace(made, servers=(server,))


def replies(end: UpstreamEnd) -> None:
    if end.received.endswith(b"\r\n\r\n"):
        end.send(SWITCH if b"Upgrade:" in end.received else EVENT)


async def opened(harness: Harness) -> tuple[Client, Client, Client]:
    """A watch, a followed log and a tunnel."""
    watch, log = [await harness.asks(get(target, ALICE)) for target in (WATCH, LOG)]
    tunnel = await harness.asks(get(EXEC, ALICE, b"Connection: Upgrade", b"Upgrade: SPDY/3.1", method=b"POST"))
    for client, begin in ((watch, b"{}\n\r\n"), (log, b"{}\n\r\n"), (tunnel, b"\r\n\r\n")):
        await harness.until(lambda: begin in client.received, "the beginning")  # noqa: B023
    return watch, log, tunnel


async def ends(harness: Harness, watch: Client, log: Client, tunnel: Client, reason: str) -> None:
    await harness.until(lambda: watch.received.endswith(b"\r\n0\r\n\r\n"), "the clean end of the watch")
    await harness.until(lambda: log.over and tunnel.over, "the end of log and tunnel")
    assert not log.received.endswith(b"0\r\n\r\n")
    await harness.until(lambda: harness.service.running == 0, "the end of all")
    assert len(harness.service._sessions) == 0
    assert [record.reason for record in harness.records if record.status in (101, 200)] in ([], [reason] * 3)


@pytest.mark.slow
async def test_all_kinds_end_at_max_age(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = replies
    await harness.serve(configuration(upstream, "alice", max_age=2.0))
    await ends(harness, *await opened(harness), "session_expired")
    await harness.until(lambda: all(end.over for end in upstream.connections), "the end of the connections upstream")


async def test_a_watch_inside_an_event_ends_at_its_border(harness: Harness) -> None:
    upstream = harness.upstream()
    await harness.serve(configuration(upstream, "alice", max_age=1.0))
    client = await harness.asks(get(WATCH, ALICE))
    await harness.until(lambda: upstream.received, "the request")
    upstream.last.send(EVENT + b"2\r\n{}\r\n")
    now = harness.reactor.seconds()
    await harness.until(lambda: harness.reactor.seconds() > now + 1.5, "its greatest age")
    assert not client.received.endswith(b"0\r\n\r\n")
    upstream.last.send(b"1\r\n\n\r\n")
    await harness.until(lambda: client.received.endswith(b"1\r\n\n\r\n0\r\n\r\n"), "the end")


async def test_short_requests_are_no_sessions(harness: Harness) -> None:
    upstream = harness.upstream()
    await harness.serve(configuration(upstream, "alice", max_age=0.1))
    client = await harness.asks(get(b"/api/v1/pods", ALICE))
    await harness.until(lambda: upstream.received, "the request")
    upstream.last.send(EVENT)
    await harness.turns(100)
    upstream.last.send(b"0\r\n\r\n")
    await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "the end")
    assert harness.service.running == 0


@pytest.mark.slow
async def test_they_end_when_a_reload_removes_their_token(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RELOAD_SPREAD", 0.1)
    upstream = harness.upstream()
    upstream.reply = replies
    await harness.serve(configuration(upstream, "alice", "bob", end_with_credential=True))
    clients = await opened(harness)
    await harness.serve(configuration(upstream, "alice", end_with_credential=True))  # bob's line is another's
    await harness.turns(100)
    assert not any(client.over for client in clients)
    await harness.serve(configuration(upstream, "bob", end_with_credential=True))
    await ends(harness, *clients, "credential_ended")


async def test_without_the_setting_they_outlive_their_token(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RELOAD_SPREAD", 0.05)
    upstream = harness.upstream()
    upstream.reply = replies
    await harness.serve(configuration(upstream, "alice"))
    clients = await opened(harness)
    await harness.serve(configuration(upstream, "bob"))
    await harness.turns(60)
    assert not any(client.over for client in clients)
