"""A cluster that refuses the *proxy* the right to impersonate: never the client's 403."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from twisted.logger import LogEvent, globalLogPublisher

from mcproxy.config import model
from mcproxy.proxy.upstream_errors import missing_impersonation_right
from tests.kube.test_status_body import protobuf
from tests.proxy.harness import OK, Client, Harness, Upstream, always, cluster, config, get

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = sorted(GOLDEN.glob("impersonation*/*.json"))


def status(message: str) -> bytes:
    content = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return json.dumps({**content, "reason": "Forbidden", "details": {}, "code": 403}).encode() + b"\n"


USERS = (
    'users "alice" is forbidden: User "mcproxy" cannot impersonate resource "users" in API group "" '
    "at the cluster scope"
)
GROUPS = USERS.replace("users", "groups")
PATH = 'forbidden: User "mcproxy" cannot impersonate-on:user-info:get path "/api"'
PODS = 'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "demo"'


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_recorded_texts_are_recognized(path: Path) -> None:
    response = json.loads(path.read_text())["response"]
    if response["status"] != 403:
        return
    message = json.loads(response["body"])["message"]
    assert missing_impersonation_right(response["body"].encode()) == (message if "impersonate" in message else "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON, but cannot impersonate",
        b'["x cannot impersonate"]',
        b'{"kind":"Status","reason":"Forbidden","message":["cannot impersonate"]}',
        status(PODS),
        # names are quoted by Go, so nobody can write such a sentence by the name of an object
        status(
            'pods "a\\" is forbidden: User \\"b\\" cannot impersonate resource \\"users\\"" is forbidden: '
            'User "alice" cannot get resource "pods"'
        ),
        # plugins of admission do not quote everything: here the name of a service account that does not exist
        status(
            'pods "x" is forbidden: error looking up service account a/b" is forbidden: User "m" cannot impersonate '
            'resource "users" in API group "" at the cluster scope: serviceaccount "b" not found'
        ),
        status(PATH.replace("impersonate-on:user-info:get", "get")),
        status('forbidden: User "mcproxy" cannot get path "/a\\" cannot impersonate-on:user-info:get path \\"/b"'),
        status("admission webhook denied the request: User cannot impersonate resource"),
        status('x is forbidden: User "' + '" is forbidden: User "' * 3000 + ' cannot impersonate resource "users"'),
    ],
)
def test_no_other_403_is_taken_for_one(body: bytes) -> None:
    assert missing_impersonation_right(body) == ""


def refuses(body: bytes, *, chunked: bool = False) -> bytes:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    return b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n" + framing + b"\r\n\r\n" + content


@pytest.fixture
def lines() -> Iterator[list[LogEvent]]:
    found: list[LogEvent] = []

    def observe(event: LogEvent) -> None:
        if event.get("log_namespace") == "mcproxy.proxy.upstream_errors":
            found.append(event)

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
    yield found
    globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]


async def served(harness: Harness, *upstreams: Upstream) -> None:
    endpoints = [upstream.endpoint(name) for upstream, name in zip(upstreams, "abc", strict=False)]
    own: dict[str, Any] = {"credentials": model.Credentials(token=model.Secret("own"))}
    await harness.serve(config([cluster(*endpoints, identity=model.UpstreamIdentity.IMPERSONATE, **own)]))
    runtime = harness.service.runtime
    assert runtime is not None
    made = runtime.clusters["east"].endpoints
    await harness.until(lambda: all(endpoint.ready for endpoint in made), "readiness")


async def answered(harness: Harness, raw: bytes) -> Client:
    client = await harness.asks(raw)
    await harness.until(lambda: client.received.endswith((b"}\n", b"{}")), "the answer")
    return client


@pytest.mark.parametrize("chunked", [False, True])
async def test_it_is_503_with_one_line_with_a_remedy(harness: Harness, lines: list[LogEvent], chunked: bool) -> None:
    upstream = harness.upstream()
    await served(harness, upstream)
    for message in (USERS, USERS, GROUPS, USERS, PATH):
        upstream.reply = always(refuses(status(message), chunked=chunked))
        client = await answered(harness, get(b"/api" if message is PATH else b"/api/v1/pods"))
        code, fields, body = client.answer()
        assert (code, fields["retry-after"]) == (503, "1")
        assert b"mcproxy" not in body
        upstream.forget()
    assert [line["cause"] for line in lines] == [USERS, GROUPS, PATH]
    assert "mcproxy rbac --cluster east" in lines[0]["todo"]
    await harness.turns()
    assert harness.records[-1:] == [] or harness.records[-1].reason == "impersonation_not_granted"


async def test_while_the_api_server_starts_there_is_nothing_to_do(harness: Harness, lines: list[LogEvent]) -> None:
    upstream = harness.upstream()
    await served(harness, upstream)
    runtime = harness.service.runtime
    assert runtime is not None
    refusal = always(refuses(status(USERS)))

    def starting(request: Any) -> Any:
        runtime.clusters["east"].endpoints[0].ready = False
        return refusal(request)

    upstream.reply = starting
    assert (await answered(harness, get(b"/api/v1/pods"))).answer()[0] == 503
    grant = "grant the proxy what `mcproxy rbac --cluster east` prints"
    assert [line["todo"] for line in lines] == [f"nothing while the API server starts; if this continues, {grant}"]


async def test_a_client_that_asked_for_protobuf_gets_the_503_too(harness: Harness) -> None:
    upstream = harness.upstream()
    await served(harness, upstream)
    upstream.reply = always(refuses(protobuf(USERS)))
    assert (await answered(harness, get(b"/api/v1/pods"))).answer()[0] == 503


async def test_another_ready_endpoint_is_asked_once(harness: Harness, lines: list[LogEvent]) -> None:
    starting, up = harness.upstream(), harness.upstream()
    await served(harness, starting, up)
    starting.reply, up.reply = always(refuses(status(USERS))), always(OK)
    for _ in range(4):
        assert (await answered(harness, get(b"/api/v1/pods"))).answer()[0] == 200
    assert (await answered(harness, get(b"/api/v1/pods/x", method=b"DELETE"))).answer()[0] == 200  # nothing was done
    assert lines == []


async def test_no_more_than_two_are_asked(harness: Harness) -> None:
    upstreams = [harness.upstream() for _ in range(3)]
    await served(harness, *upstreams)
    for upstream in upstreams:
        upstream.reply = always(refuses(status(USERS)))
    assert (await answered(harness, get(b"/api/v1/pods"))).answer()[0] == 503
    assert sum(bool(upstream.received) for upstream in upstreams) == 2


async def test_a_request_whose_body_is_gone_is_not_sent_again(harness: Harness) -> None:
    starting, up = harness.upstream(), harness.upstream()
    await served(harness, starting, up)
    for upstream in (starting, up):
        upstream.reply = lambda end: end.send(refuses(status(USERS))) if end.received.endswith(b"body") else None
    client = await answered(harness, get(b"/api/v1/pods", b"Content-Length: 4", method=b"POST") + b"body")
    assert client.answer()[0] == 503
    assert (starting.received + up.received).count(b"POST ") == 1


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(
    ("target", "body"),
    [
        (b"/api/v1/pods", status(PODS)),
        (b"/api/v1/namespaces/a/services/b/proxy/x", status(USERS)),  # somebody else's word
        (b"/api/v1/pods", b"x" * 20_000),
    ],
)
async def test_a_403_to_the_user_passes_whole(harness: Harness, target: bytes, body: bytes, pieces: int) -> None:
    upstream = harness.upstream()
    await served(harness, upstream)
    for chunked in (False, True):
        client = await harness.asks(get(target))
        await harness.until(lambda: upstream.received.endswith(b"\r\n\r\n"), "the request")
        whole = refuses(body, chunked=chunked)
        for piece in (whole[: len(whole) // pieces], whole[len(whole) // pieces :]):
            upstream.last.send(piece)
            await harness.turns(2)
        ending = b"0\r\n\r\n" if chunked else body[-10:]
        await harness.until(lambda: client.received.endswith(ending), "the answer")  # noqa: B023
        code, fields, _ = client.answer()
        assert (code, fields["content-type"]) == (403, "application/json")
        assert body[:50] in client.received
        upstream.forget()


async def test_a_path_cannot_forge_one(harness: Harness, lines: list[LogEvent]) -> None:
    """A kube-apiserver begins its message with the resource and group of the path, as they are."""
    first, second = harness.upstream(), harness.upstream()
    await served(harness, first, second)
    for forged in (f"/api/v1/{quote(USERS)}", f"/apis/{quote(USERS)}/v1/x"):
        message = f'{USERS} is forbidden: User "alice" cannot list resource "{USERS}"'
        for upstream in (first, second):
            upstream.reply = always(refuses(status(message)))
        client = await answered(harness, get(forged.encode()))
        assert client.answer()[0] == 403
        assert (first.received + second.received).count(b"GET ") == 1
        first.forget()
        second.forget()
    assert lines == []


async def test_a_403_that_breaks_off_while_it_is_read_is_502(harness: Harness) -> None:
    upstream = harness.upstream()
    await served(harness, upstream)
    client = await harness.asks(get(b"/api/v1/pods"))
    await harness.until(lambda: upstream.received, "the request")
    upstream.last.send(refuses(status(USERS))[:-20])
    await harness.turns(3)
    upstream.last.close()
    await harness.until(lambda: client.received.endswith(b"}\n"), "the answer")
    assert client.answer()[0] == 502
