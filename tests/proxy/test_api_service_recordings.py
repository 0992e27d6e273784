"""What an API server receives and what its clients get, row by row as kube-aggregator was recorded (golden/aggregator).

Where the proxy does otherwise on purpose, the row is in one of the tables below, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcproxy.config import model
from tests.proxy.harness import NAME, OK, Client, Harness, UpstreamEnd
from tests.proxy.test_api_services import REVIEWED, SWITCH, Bench, probed

FOLDER = Path(__file__).parents[1] / "golden" / "aggregator" / "received"
ROWS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
SERVICES = tuple(
    model.APIService(group=f"{name}.example.com", version="v1", cluster="metrics", authority="east")
    for name in ("rec", "h1")
)
ACCOUNT = next(value for name, value in ROWS["get-serviceaccount"]["request"]["headers"] if name == "Authorization")
USERS = model.Authentication(
    name="users",
    token_file=model.TokenFileConfig(
        "users.csv",
        (
            model.StaticToken(model.Secret("admin"), "admin", groups=("system:masters",)),
            model.StaticToken(model.Secret("admin-test-token"), "admin", uid="uid-admin", groups=("system:masters",)),
            model.StaticToken(model.Secret("alice"), "alice", groups=("dev",)),
            model.StaticToken(model.Secret("alice-test-token"), "alice", groups=("dev",)),
            model.StaticToken(
                model.Secret(ACCOUNT.removeprefix("Bearer ")),
                "system:serviceaccount:default:default",
                uid="301f4b01-66c7-477f-93a8-4ab5a170fc9a",
                groups=("system:serviceaccounts", "system:serviceaccounts:default"),
            ),
        ),
    ),
    allow_system_names=True,
)

OURS = re.compile(
    # The way that it came by is told otherwise, and a compressed answer is asked for only if the client does.
    r":.*|host|audit-id|x-forwarded-.*|accept-encoding"
    # Tokens, which stand for the certificates of the recording, have none.
    r"|x-remote-extra-authentication\.kubernetes\.io%2fcredential-id"
    r"|transfer-encoding|connection|upgrade|user-agent|trailer"
)
REMOVED = {"forwarded", "x-real-ip", "x-remote-other"}
"""Of clients, what a server could take for an identity or an address: whole families, not the known members alone."""
QUERIES = {"query-bad-escape", "query-semicolon"}
"""Their ambiguous parts are left out there, too; other queries travel as they came, neither sorted nor encoded anew."""
REFUSED = {
    "get-basic-auth": "a request has one Authorization header at the most",
    "method-foo": "malformed request head: Invalid method encountered",
    "method-trace": "TRACE is not supported",
    # Paths that a server may read in two ways.
    "http1-double-slash": "the path holds an empty segment",
    "path-dots": "the path holds a dot segment",
    "path-double-slash": "the path holds an empty segment",
    "path-escape": "the path holds an encoded slash",
}
"""What the proxy refuses of every client, whoever answers."""

Fields = list[tuple[str, str]]


def compared(fields: Any) -> Fields:
    """Return the fields that are to be the same, without regard to case and order."""
    named = [(name.lower(), value) for name, value in fields]
    return sorted(field for field in named if not OURS.fullmatch(field[0]) and field[0] not in REMOVED)


def received(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the API server got of a row's request."""
    found = row["extension_received"]
    return found[0] if isinstance(found, list) and "method" in found[0] else None


@pytest.fixture
def bench(harness: Harness) -> Bench:
    return Bench(harness)


async def serve(bench: Bench, reply: Any, **more: Any) -> None:
    bench.allowed = lambda spec: spec.get("user") != "alice" or "resourceAttributes" not in spec
    await bench.serve(
        services=SERVICES,
        authentication=(USERS,),
        authorization=(REVIEWED,),
        server={"authorization": "reviewed"},
        **more,
    )
    bench.upstreams["metrics"].reply = probed(reply)


async def send(bench: Bench, row: dict[str, Any]) -> Client:
    """Send a row's request as its user."""
    request = row["request"]
    fields = [(name, NAME if name == "Host" else value) for name, value in request["headers"]]
    if row["auth"].startswith("client certificate CN="):
        user = row["auth"].removeprefix("client certificate CN=").split()[0]
        fields.append(("Authorization", f"Bearer {user}"))
    head = [f"{request['method']} {request['path']} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    body = request.get("body_raw", "").encode("latin-1")
    if ("Transfer-Encoding", "chunked") in fields:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return await bench.harness.asks("\r\n".join([*head, "", ""]).encode("latin-1") + body)


def parsed(raw: bytes) -> tuple[str, str, Fields, bytes]:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    return method, target, [(name.lower(), value) for name, value in (line.split(": ", 1) for line in lines)], body


async def answer(bench: Bench, client: Client) -> tuple[int, dict[str, str], bytes]:
    await bench.harness.until(
        lambda: client.over or client.received.endswith((b"{}", b"}\n", b"\r\n\r\n")), "the answer"
    )
    return client.answer()


def once(response: bytes, *, ends: bool = False) -> Callable[[UpstreamEnd], None]:
    """A `reply` that answers the first request of a connection when its head has come."""

    def reply(end: UpstreamEnd) -> None:
        if b"\r\n\r\n" in end.received and not end.answered:
            end.answered = 1
            end.send(SWITCH if response is OK and b"\r\nUpgrade:" in end.received else response)
            if ends:
                end.close()

    return reply


PASSED = [name for name, row in ROWS.items() if received(row) is not None and name not in REFUSED]


@pytest.mark.parametrize("name", PASSED)
async def test_the_api_server_receives_what_kube_aggregator_sends(bench: Bench, name: str) -> None:
    row = ROWS[name]
    wanted = received(row)
    assert wanted is not None
    await serve(bench, once(OK))
    client = await send(bench, row)
    upstream = bench.upstreams["metrics"]
    await bench.harness.until(lambda: b"\r\n\r\n" in upstream.received or client.over, "the request")
    length = len(row["request"].get("body_raw", ""))
    if name != "body-4mib":  # of which the recording has the beginning
        await bench.harness.until(lambda: len(upstream.received.partition(b"\r\n\r\n")[2]) >= length, "the body")
    method, target, fields, body = parsed(upstream.received)
    assert method == wanted["method"]
    assert target == (wanted["target"] if name in QUERIES else row["request"]["path"])
    assert compared(fields) == compared(wanted["headers"])
    if length and name != "body-4mib":
        assert row["request"]["body_raw"].encode("latin-1") in body
    own = {field: value for field, value in fields if field.startswith("x-forwarded-")}
    upgrade = {"x-forwarded-uri": target} if name.startswith("upgrade-") else {}
    assert own == {"x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "https", "x-forwarded-host": NAME, **upgrade}
    assert [value for field, value in fields if field == "accept-encoding"] == [
        value for field, value in row["request"]["headers"] if field == "Accept-Encoding"
    ]


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused_of_every_client(bench: Bench, name: str) -> None:
    await serve(bench, once(OK))
    code, _, body = await answer(bench, await send(bench, ROWS[name]))
    assert code in (400, 405)
    assert json.loads(body)["message"].startswith(REFUSED[name])
    assert bench.upstreams["metrics"].received == b""


STATUS = {name: row for name, row in ROWS.items() if row["extension_received"] == "nothing"}
OTHERWISE = {"discovery-anonymous": 401, "get-anonymous": 401, "path-prefix": 200}
"""Authenticators take nobody for system:anonymous here; another version of the group is the backend's to answer."""


@pytest.mark.parametrize("name", STATUS)
async def test_who_may_not_does_not_reach_the_api_server(bench: Bench, name: str) -> None:
    await serve(bench, once(OK))
    code, _, _ = await answer(bench, await send(bench, ROWS[name]))
    assert code == OTHERWISE.get(name, int(ROWS[name]["response"]["status_line"].split(" ")[1]))
    assert bench.upstreams["metrics"].received == b""


OWN_FIELDS = re.compile(r"audit-id|cache-control|x-kubernetes-pf-.*|date|transfer-encoding|content-length|x-hop")
"""Of an answer: what kube-apiserver adds to that of the API server, and what frames it."""


def recorded_answer(row: dict[str, Any]) -> tuple[int, Fields, bytes]:
    """Return a row's answer, without the fields of kube-apiserver and without its framing."""
    response = row["response"]
    fields = [(name.lower(), value) for name, value in response["headers"]]
    body = response["body_raw"].encode("latin-1")
    if ("transfer-encoding", "chunked") in fields:
        size, _, rest = body.partition(b"\r\n")
        body = rest[: int(size, 16)]
    kept = [(name, value) for name, value in fields if not OWN_FIELDS.fullmatch(name)]
    return int(response["status_line"].split(" ")[1]), kept, body


PASSES = re.compile(r"answer-st(?!401)\d+|response-headers|http1-headers|answer-redir304|accept-encoding-gzip")


@pytest.mark.parametrize("name", [name for name in ROWS if PASSES.fullmatch(name)])
async def test_an_answer_passes_as_it_is(bench: Bench, name: str) -> None:
    status, fields, body = recorded_answer(ROWS[name])
    length = [] if status in (204, 304) else [("content-length", str(len(body)))]
    head = [f"HTTP/1.1 {status} X", *(f"{field}: {value}" for field, value in [*fields, *length])]
    await serve(bench, once("\r\n".join([*head, "", ""]).encode("latin-1") + body))
    client = await send(bench, ROWS[name])
    await bench.harness.until(lambda: client.over or client.received.endswith(body or b"\r\n\r\n"), "the answer")
    lines = client.received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    got = [(field.lower(), value) for field, value in (line.split(": ", 1) for line in lines[1:])]
    assert client.answer()[0] == status
    assert client.answer()[2] == body
    assert [field for field in got if not OWN_FIELDS.fullmatch(field[0])] == fields
    assert sum(field == "audit-id" for field, _ in got) == 1  # there, two
    if ("date", "Mon, 01 Jan 2001 00:00:00 GMT") in [(a.lower(), b) for a, b in ROWS[name]["response"]["headers"]]:
        assert sum(field == "date" for field, _ in got) <= 1


HALF = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("answer-half", HALF + b'Content-Length: 100\r\n\r\n{"half":'),
        ("http1-half", HALF + b'Content-Length: 100\r\n\r\n{"half":'),
        ("answer-chunkhalf", HALF + b'Transfer-Encoding: chunked\r\n\r\n8\r\n{"half":\r\n'),
        ("http1-chunkhalf", HALF + b'Transfer-Encoding: chunked\r\n\r\n8\r\n{"half":\r\n'),
    ],
)
async def test_half_an_answer_never_ends_cleanly(bench: Bench, name: str, raw: bytes) -> None:
    await serve(bench, once(raw, ends=True))
    client = await send(bench, ROWS[name])
    await bench.harness.until(lambda: client.over, "the end")
    assert client.answer()[0] == 200
    assert b'{"half":' in client.received
    assert not client.received.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("name", ["answer-close", "answer-close-post", "http1-close", "http1-close-post"])
async def test_a_connection_that_is_lost_before_an_answer(bench: Bench, name: str) -> None:
    """There 503 as text. A write that was begun is 502 and never sent again: nobody knows what became of it."""
    await serve(bench, once(b"", ends=True))
    code, _, body = await answer(bench, await send(bench, ROWS[name]))
    assert (code, json.loads(body)["kind"]) == (502 if name.endswith("-post") else 503, "Status")
    count = bench.upstreams["metrics"].received.count(b" HTTP/1.1\r\n")
    assert count == 1 if name.endswith("-post") else count in (1, 2)


async def test_401_is_about_the_proxy_and_not_told_to_the_client(bench: Bench) -> None:
    """Passed on there. The user is not asked for a credential by X-Remote-*, and would throw away a good one."""
    await serve(bench, once(b"HTTP/1.1 401 X\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n"))
    code, fields, body = await answer(bench, await send(bench, ROWS["answer-st401"]))
    assert (code, "www-authenticate" in fields) == (503, False)
    assert json.loads(body)["kind"] == "Status"


@pytest.mark.parametrize("name", ["answer-rubbish", "http1-rubbish"])
async def test_what_is_no_http(bench: Bench, name: str) -> None:
    await serve(bench, once(b"hello\r\n\r\n"))
    code, _, body = await answer(bench, await send(bench, ROWS[name]))
    assert (code, json.loads(body)["kind"]) == (502, "Status")
    assert b"hello" not in body


@pytest.mark.parametrize("name", [name for name in ROWS if "redir" in name and name != "answer-redir304"])
async def test_a_redirect_is_never_passed_on(bench: Bench, name: str) -> None:
    status = int(re.sub(r"\D", "", ROWS[name]["request"]["path"].rpartition("/")[2]))
    await serve(bench, once(b"HTTP/1.1 %d X\r\nLocation: https://x/\r\nContent-Length: 0\r\n\r\n" % status))
    code, fields, body = await answer(bench, await send(bench, ROWS[name]))
    assert (code, "location" in fields) == (502, False)
    assert json.loads(body)["message"] == "the backend attempted to redirect this request, which is not permitted"


async def test_an_upgrade_that_is_refused(bench: Bench) -> None:
    """With an error the answer passes, as there."""
    await serve(bench, once(b'HTTP/1.1 403 X\r\nContent-Length: 11\r\nWarning: 299 - "w"\r\n\r\nstatus 403\n'))
    client = await send(bench, ROWS["upgrade-403"])
    await bench.harness.until(lambda: client.received.endswith(b"status 403\n"), "the answer")
    assert client.answer()[0] == 403
    assert client.answer()[1]["warning"] == '299 - "w"'


async def test_an_upgrade_that_is_answered_as_a_request(bench: Bench) -> None:
    """There 503; but a server may pass over an Upgrade (RFC 9110, section 7.8), and its answer is one."""
    await serve(bench, once(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
    code, _, body = await answer(bench, await send(bench, ROWS["upgrade-refused"]))
    assert (code, body) == (200, b"{}")


@pytest.mark.parametrize("name", ["answer-never", "answer-never-post"])
async def test_no_answer_is_504(bench: Bench, name: str) -> None:
    await serve(bench, lambda end: None, response_timeout=0.2)  # 60 s there
    code, _, body = await answer(bench, await send(bench, ROWS[name]))
    wanted = json.loads(ROWS[name]["response"]["body_raw"])
    assert (code, json.loads(body)["reason"]) == (504, wanted["reason"])
    assert bench.upstreams["metrics"].received.count(b" HTTP/1.1\r\n") == 1
