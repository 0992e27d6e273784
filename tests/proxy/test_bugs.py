"""A bug in the path of one request: that request ends with 500, or its response is broken off; all others go on.

Each bug is a part of the proxy that raises TypeError, as compiled code does for a value of another type than declared.
The parts are such that compiled and interpreted code call them alike: behind a protocol, or interpreted in both builds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from twisted.logger import LogEvent, globalLogPublisher

from mcproxy.config import model
from mcproxy.daemon.runtime import Runtime
from mcproxy.kube.status import StatusError
from mcproxy.upstream.credentials import CredentialSource
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import OK, Harness, Log, UpstreamEnd, always, cluster, config, get
from tests.proxy.http2_peers import h2_client, http2_listener

TOKEN = b"Authorization: Bearer alice"
WATCH = b"/api/v1/namespaces/a/pods?watch=true"
BEGUN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
USERS = model.Authentication(
    name="users",
    token_file=model.TokenFileConfig("users.csv", (model.StaticToken(model.Secret("alice"), "alice", "7", ()),)),
)


def bug(*_: object, **__: object) -> NoReturn:
    raise TypeError("bytes object expected; got str")


def bad_refusal(*_: object, **__: object) -> NoReturn:
    raise StatusError(401, "unauthorized", headers=((b"WWW-Authenticate",),))  # type: ignore[arg-type]


class Broken:
    """Raises whatever is called."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        return bug


class Refusing:
    """Tokens whose refusal cannot be sent."""

    key_of = staticmethod(bytes)
    authenticate = staticmethod(bad_refusal)


class NoCredential(CredentialSource):
    """None, and no note of a refusal."""

    certificate = None
    header = None

    def authorization(self) -> None:
        return None

    def note_refusal(self, now: float, rejected: bytes | None = None) -> None:
        bug()


def authentication(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.servers["main"].authenticator, "_tokens", Broken())


def refusal(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.servers["main"].authenticator, "_tokens", Refusing())


def after_authentication(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.servers["main"], "own_objects", (Broken(),))


def balancing(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.clusters["east"].endpoints[0], "pool", Broken())


def request_head(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.clusters["east"].endpoints[0], "host_header", 443)


def response_head(runtime: Runtime, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runtime.clusters["east"], "credentials", NoCredential())


Place = Callable[[Runtime, pytest.MonkeyPatch], None]
PLACES = (authentication, refusal, after_authentication, balancing, request_head, response_head)


@pytest.fixture
def bugs() -> Iterator[list[BaseException]]:
    """What the daemon's log has of bugs."""
    found: list[BaseException] = []

    def look(event: LogEvent) -> None:
        if event.get("event") == "internal_error":
            found.append(event["log_failure"].value)

    globalLogPublisher.addObserver(look)  # type: ignore[arg-type]
    yield found
    globalLogPublisher.removeObserver(look)  # type: ignore[arg-type]


async def served(harness: Harness, reply: Callable[[UpstreamEnd], None]) -> Runtime:
    upstream = harness.upstream()
    upstream.reply = reply
    server = model.Server(
        name="main",
        listeners=("tls",),
        default=True,
        authentication="users",
        backend=model.ClusterBackend("east"),
        dispatch=(policy("all", rule()),),
    )
    clusters = [cluster(upstream.endpoint())]
    await harness.serve(
        config(
            clusters,
            [server],
            [http2_listener()],
            authentication=(USERS,),
            logging=model.Logging(access=model.AccessLogConfig()),
        )
    )
    runtime = harness.service.runtime
    assert runtime is not None
    await harness.until(lambda: runtime.clusters["east"].endpoints[0].ready, "readiness")
    return runtime


def internal_error(body: bytes) -> bool:
    status: dict[str, Any] = json.loads(body)
    return (status["kind"], status["reason"], status["code"]) == ("Status", "InternalError", 500)


def replying(place: Place) -> Callable[[UpstreamEnd], None]:
    return always(UNAUTHORIZED if place is response_head else OK)


@pytest.mark.parametrize("place", PLACES)
async def test_the_request_ends_with_500_and_the_next_one_on_its_connection_is_answered(
    harness: Harness, bugs: list[BaseException], monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    runtime = await served(harness, replying(place))
    client = await harness.client()
    with monkeypatch.context() as patch:
        place(runtime, patch)
        client.send(get(b"/api/v1/namespaces/a/pods/b", TOKEN))
        await harness.until(lambda: client.received.rstrip().endswith(b"}") or client.over, "the answer")
        code, _, body = client.answer()
        assert code == 500
        assert internal_error(body)
        assert [type(each) for each in bugs] == [TypeError]
        await harness.until(lambda: harness.records, "its record")
    assert [(record.status, record.reason) for record in harness.records] == [(500, "internal_error")]
    client.received = b""
    client.send(get(b"/version", TOKEN))
    await harness.until(lambda: client.received.startswith(b"HTTP/1.1 ") and b"\r\n\r\n" in client.received)
    assert client.answer()[0] == (401 if place is response_head else 200)
    assert len(bugs) == 1


@pytest.mark.parametrize("place", PLACES)
async def test_of_a_connection_of_http2_one_stream_ends(
    harness: Harness, bugs: list[BaseException], monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    runtime = await served(harness, replying(place))
    client = await h2_client(harness)
    token = [(b"authorization", b"Bearer alice")]
    with monkeypatch.context() as patch:
        place(runtime, patch)
        broken = client.ask(fields=token)
        await harness.until(lambda: broken.ended or broken.reset is not None or client.lost is not None, "the answer")
    assert (broken.fields[b":status"], broken.reset) == (b"500", None)
    assert internal_error(broken.data)
    assert [type(each) for each in bugs] == [TypeError]
    following = client.ask(path=b"/version", fields=token)
    await harness.until(lambda: following.ended or following.reset is not None or client.lost is not None)
    assert following.fields[b":status"] == (b"401" if place is response_head else b"200")
    assert len(bugs) == 1


async def test_a_response_that_has_begun_is_broken_off(
    harness: Harness, bugs: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await served(harness, always(BEGUN))
    monkeypatch.setattr(runtime.servers["main"], "session_registry", Broken())
    client = await harness.asks(get(WATCH, TOKEN))
    await harness.until(lambda: client.over, "the end")
    assert b"0\r\n\r\n" not in client.received
    assert [type(each) for each in bugs] == [TypeError]
    await harness.until(lambda: harness.records, "its record")
    assert [record.reason for record in harness.records] == ["internal_error"]


async def test_over_http2_its_stream_is_reset(
    harness: Harness, bugs: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await served(harness, always(BEGUN))
    client = await h2_client(harness)
    token = [(b"authorization", b"Bearer alice")]
    with monkeypatch.context() as patch:
        patch.setattr(runtime.servers["main"], "session_registry", Broken())
        broken = client.ask(path=WATCH, fields=token)
        await harness.until(lambda: broken.ended or broken.reset is not None or client.lost is not None, "the end")
    assert broken.reset is not None
    assert not broken.ended
    assert [type(each) for each in bugs] == [TypeError]
    following = client.ask(path=WATCH, fields=token)
    await harness.until(lambda: following.data == b"{}" or client.lost is not None, "the next response")
    assert client.lost is None
    assert len(bugs) == 1


async def test_a_record_that_cannot_be_made_costs_its_own_line_alone(
    harness: Harness, bugs: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = Log.finished

    def failing_once(log: Log, record: Any) -> None:
        if record.uri == "/version":
            bug()
        finished(log, record)

    monkeypatch.setattr(Log, "finished", failing_once)
    await served(harness, always(OK))
    client = await harness.client()
    for target in (b"/version", b"/api/v1/pods"):
        client.received = b""
        client.send(get(target, TOKEN))
        await harness.until(lambda: client.received.endswith(b"{}"), "the answer")
    await harness.until(lambda: harness.records, "the record")
    assert [record.uri for record in harness.records] == ["/api/v1/pods"]
    assert [type(each) for each in bugs] == [TypeError]
