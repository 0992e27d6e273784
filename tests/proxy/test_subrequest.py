"""Requests to members on behalf of a client's request: on the wire, through the whole pipeline up to forwarding."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.request import MemberResponse
from mcproxy.config import model
from mcproxy.dispatch.plan import Plan
from mcproxy.dispatch.request_limits import Permit
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.proxy import subrequest
from mcproxy.proxy.request import Request
from tests.proxy.harness import OK, Client, Harness, Upstream, always, cluster, config, get, plain

POD = b"/api/v1/namespaces/a/pods/b"
BOB = UserInfo("bob", ("dev",))
Work = Callable[[Request, Plan], Coroutine[Deferred[Any], Any, None]]


class Instead:
    """Answers every request, where reviews are answered otherwise (`routes.ReviewAPIHandler`)."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def kind_of(self, _: object) -> str:
        return "every request"

    def serve(
        self, request: Request, kind: object, info: object, plan: Plan, target: bytes
    ) -> Coroutine[Deferred[Any], Any, None]:
        return self._work(request, plan)


@pytest.fixture
def instead(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    """Have requests handled by a coroutine function where they would be forwarded; for a proxy that serves."""

    def replace(work: Work) -> None:
        runtime = harness.service.runtime
        assert runtime is not None
        monkeypatch.setattr(runtime.servers["main"], "review_api", Instead(work))

    return replace


class Sender:
    """Sends one request for each of the client's; `got` are responses and failures."""

    def __init__(self, reactor: Any, method: bytes = b"GET", target: bytes = POD, **how: Any) -> None:
        self.reactor, self.method, self.target, self.how = reactor, method, target, how
        self.got: list[MemberResponse | BaseException] = []

    async def __call__(self, request: Request, plan: Plan) -> None:
        try:
            response = await subrequest.send(
                request, plan, BOB, self.method, self.target, clock=self.reactor, **self.how
            )
        except (Exception, CancelledError) as error:
            self.got.append(error)
            if isinstance(error, CancelledError):
                raise
            request.exchange.answer(500, b"", b"failed")
        else:
            self.got.append(response)
            request.exchange.answer(200, b"", b"done")


async def one(harness: Harness, **fields: Any) -> Upstream:
    upstream = harness.upstream()
    logging = model.Logging(access=model.AccessLogConfig())
    await harness.serve(config([cluster(upstream.endpoint(), **fields)], logging=logging))
    return upstream


async def served(harness: Harness, raw: bytes = b"") -> Client:
    client = await harness.asks(raw or get(b"/apis/example.com/v1/widgets"))
    await harness.until(lambda: client.received.endswith((b"done", b"failed", b"}\n")))
    return client


IMPERSONATING: dict[str, Any] = {
    "identity": model.UpstreamIdentity.IMPERSONATE,
    "credentials": model.Credentials(token=model.Secret("lent")),
}


async def test_the_user_and_the_given_fields_are_sent_and_nothing_of_the_clients(
    harness: Harness, instead: Callable[[Work], None]
) -> None:
    upstream = await one(harness, **IMPERSONATING)
    upstream.reply = always(
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nWarning: a\r\nwarning: b\r\nContent-Length: 2\r\n\r\nno"
    )
    sender = Sender(harness.reactor, fields=[(b"Accept", b"application/json")])
    instead(sender)
    await served(harness, get(b"/api/v1/pods", b"Cookie: own", b"Authorization: Basic own", b"X-Remote-User: root"))
    assert plain(upstream.received) == (
        b"GET /api/v1/namespaces/a/pods/b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
        b"Accept: application/json\r\n"
        b"Impersonate-User: bob\r\nImpersonate-Group: dev\r\n"
        b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: k8s.test\r\n"
        b"Authorization: Bearer lent\r\n\r\n" % upstream.port
    )
    (response,) = sender.got
    assert response == MemberResponse(
        "east", 404, ((b"Content-Type", b"text/plain"), (b"Warning", b"a"), (b"warning", b"b")), b"no"
    )
    assert response.header(b"warning") == b"a"
    await harness.until(lambda: harness.service.running == 0)
    assert [record.uri for record in harness.records] == ["/api/v1/pods"]


async def test_a_token_is_passed_through_where_the_cluster_authenticates(
    harness: Harness, instead: Callable[[Work], None]
) -> None:
    upstream = await one(harness, identity=model.UpstreamIdentity.PASSTHROUGH)
    upstream.reply = always(OK)
    instead(Sender(harness.reactor))
    await served(harness, get(b"/api/v1/pods", b"Authorization: Bearer own", b"X-Remote-User: root"))
    assert b"\r\nAuthorization: Bearer own\r\n" in upstream.received
    assert b"remote" not in upstream.received.lower()


@pytest.mark.parametrize("method", [b"PUT", b"DELETE"])
async def test_a_body_is_sent_with_its_length(harness: Harness, instead: Callable[[Work], None], method: bytes) -> None:
    upstream = await one(harness)
    upstream.reply = lambda end: end.send(OK) if end.received.endswith(b"body") else None
    sender = Sender(harness.reactor, method, body=b"body", fields=[(b"Content-Type", b"application/json")])
    instead(sender)
    await served(harness)
    assert upstream.received.endswith(b"Content-Length: 4\r\n\r\nbody")
    assert isinstance(sender.got[0], MemberResponse)


async def test_a_response_in_pieces_is_put_together(harness: Harness, instead: Callable[[Work], None]) -> None:
    upstream = await one(harness)
    upstream.reply = lambda end: end.send(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    )
    sender = Sender(harness.reactor)
    instead(sender)
    await served(harness)
    assert sender.got == [MemberResponse("east", 200, (), b"abcdefg")]


@pytest.mark.parametrize("framing", [b"Content-Length: 11\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nb\r\n"])
async def test_a_response_over_the_limit_is_502_and_its_connection_closed(
    harness: Harness, instead: Callable[[Work], None], framing: bytes
) -> None:
    upstream = await one(harness)
    upstream.reply = lambda end: end.send(b"HTTP/1.1 200 OK\r\n" + framing + b"a" * 11)
    sender = Sender(harness.reactor, limit=10)
    instead(sender)
    await served(harness)
    (error,) = sender.got
    assert isinstance(error, StatusError)
    assert (error.code, error.message[:34]) == (502, 'cluster "east" answered with more ')
    if b"chunked" in framing:
        await harness.until(lambda: upstream.last.over)
    await harness.until(lambda: harness.service.running == 0)


async def test_when_the_client_goes_the_request_to_the_member_ends(
    harness: Harness, instead: Callable[[Work], None]
) -> None:
    upstream = await one(harness)
    sender = Sender(harness.reactor)
    instead(sender)
    client = await harness.asks(get())
    await harness.until(lambda: upstream.received)
    client.abort()
    await harness.until(lambda: upstream.last.over)
    await harness.until(lambda: harness.service.running == 0)
    (error,) = sender.got
    assert isinstance(error, CancelledError)


async def test_a_member_that_does_not_answer_in_time_is_504(harness: Harness, instead: Callable[[Work], None]) -> None:
    upstream = await one(harness)
    sender = Sender(harness.reactor, timeout=2.0)
    instead(sender)
    await served(harness)
    (error,) = sender.got
    assert isinstance(error, StatusError)
    assert (error.code, error.message) == (504, 'cluster "east" did not answer within 2 s')
    await harness.until(lambda: upstream.last.over)


class TestFailures:
    """The words of the forwarding path."""

    async def failure(self, harness: Harness, instead: Callable[[Work], None], **how: Any) -> tuple[int, str]:
        sender = Sender(harness.reactor, **how)
        instead(sender)
        await served(harness)
        (error,) = sender.got
        assert isinstance(error, StatusError)
        await harness.until(lambda: harness.service.running == 0)
        return error.code, error.message

    async def test_no_endpoint(self, harness: Harness, instead: Callable[[Work], None]) -> None:
        upstream = await one(harness)
        await upstream.stop()
        code, message = await self.failure(harness, instead)
        assert (code, message.partition(":")[0]) == (503, 'no endpoint of cluster "east" is ready')

    async def test_a_write_that_was_not_answered_is_not_sent_twice(
        self, harness: Harness, instead: Callable[[Work], None]
    ) -> None:
        upstream = await one(harness)
        upstream.reply = lambda end: end.close()
        code, message = await self.failure(harness, instead, method=b"POST", body=b"x")
        assert (code, message.partition(":")[0]) == (502, 'endpoint a of cluster "east"')
        assert upstream.received.count(b"POST") == 1

    async def test_a_read_is_sent_again(self, harness: Harness, instead: Callable[[Work], None]) -> None:
        upstream, other = harness.upstream(), harness.upstream()
        await harness.serve(config([cluster(upstream.endpoint(), other.endpoint("b"))]))
        upstream.reply = lambda end: end.close()
        other.reply = always(OK)
        sender = Sender(harness.reactor)
        instead(sender)
        for _ in range(2):
            await served(harness)
        assert [response.status for response in sender.got if isinstance(response, MemberResponse)] == [200, 200]

    async def test_a_response_that_breaks_off(self, harness: Harness, instead: Callable[[Work], None]) -> None:
        upstream = await one(harness)

        def reply(end: Any) -> None:
            end.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
            end.close()

        upstream.reply = reply
        assert await self.failure(harness, instead) == (502, 'cluster "east" broke off its response')

    async def test_a_refused_credential_of_the_proxy(self, harness: Harness, instead: Callable[[Work], None]) -> None:
        upstream = await one(harness, **IMPERSONATING)
        upstream.reply = always(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
        code, message = await self.failure(harness, instead)
        assert (code, message) == (503, 'cluster "east" is unavailable: it does not accept the proxy\'s credential')


@pytest.mark.parametrize(
    "how",
    [
        {"target": b"/api HTTP/1.1\r\nX: "},
        {"target": b"api"},
        {"target": b"/a b"},
        {"method": b"GET /"},
        {"fields": [(b"Impersonate-User", b"root")]},
        {"fields": [(b"X-Remote-User", b"root")]},
        {"fields": [(b"Authorization", b"Bearer x")]},
        {"fields": [(b"x_forwarded_for", b"1.1.1.1")]},
        {"fields": [(b"Accept", b"a\r\nImpersonate-User: root")]},
        {"fields": [(b"Accept: a\r\nX", b"b")]},
        {"fields": [(b"Content-Length", b"5")]},
        {"fields": [(b"Upgrade", b"websocket")]},
    ],
)
async def test_what_would_be_another_request_is_never_sent(
    harness: Harness, instead: Callable[[Work], None], how: dict[str, Any]
) -> None:
    upstream = await one(harness)
    released: list[bool] = []

    class Limit:
        def release(self, key: str) -> None:
            released.append(True)

    sender = Sender(harness.reactor, permit=Permit(Limit(), "bob"), **how)
    instead(sender)
    await served(harness)
    assert [type(error) for error in sender.got] == [ValueError]
    assert not upstream.received
    assert released == [True]
    await harness.until(lambda: harness.service.running == 0)


async def test_a_client_is_forwarded_as_the_user_it_is_there(harness: Harness, instead: Callable[[Work], None]) -> None:
    upstream = await one(harness, **IMPERSONATING)

    async def work(request: Request, plan: Plan) -> None:
        await subrequest.forward(request, plan, BOB, POD + b"/exec?command=sh")

    instead(work)
    client = await harness.asks(get(b"/apis/x/v1/y", b"Connection: Upgrade", b"Upgrade: SPDY/3.1"))
    await harness.until(lambda: upstream.received.endswith(b"\r\n\r\n"))
    assert upstream.received.startswith(b"GET /api/v1/namespaces/a/pods/b/exec?command=sh HTTP/1.1\r\n")
    assert b"\r\nImpersonate-User: bob\r\n" in upstream.received
    upstream.last.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n\r\nhello")
    await harness.until(lambda: client.received.endswith(b"hello"))
