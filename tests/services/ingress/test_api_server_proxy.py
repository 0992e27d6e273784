"""`via: APIServer`: what the API server gets, as whom, and what clients see of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher

from mcproxy.config import model
from mcproxy.http.messages import CHUNKED, ResponseHead
from mcproxy.services.ingress.api_server_proxy import Removal, ResponseRewriter, request_fields, response_fields
from tests.proxy.harness import UpstreamEnd
from tests.services.ingress.config import ingress
from tests.services.ingress.whole import Whole, ingress_config

PREFIX = b"/api/v1/namespaces/demo/services/echo:8080/proxy"


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer stolen",
        b"authorization: Basic eA==",
        b"Impersonate-User: root",
        b"Impersonate_User: root",
        b"IMPERSONATE-EXTRA-scopes: all",
        b"X-Remote-User: root",
        b"x_remote_group: system:masters",
        b"X-Remote-Extra-Any: thing",
        b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c3RvbGVu",
        b"Accept-Encoding: gzip",
        b"Audit-ID: of-somebody-else",
        b"audit_id: of-somebody-else",
        b"Sec-WebSocket-Protocol: a, base64url.bearer.authorization.k8s.io.c3RvbGVu" + b", b" * 200,
    ],
)
def test_no_field_of_a_client_is_an_identity_at_the_api_server(line: bytes) -> None:
    assert request_fields(b"A: b\r\n%b\r\nC: d\r\n" % line) == b"A: b\r\nC: d\r\n"


def test_two_authorizations_are_removed_both() -> None:
    assert request_fields(b"Authorization: a\r\nA: b\r\nauthorization: b\r\n") == b"A: b\r\n"


def test_many_authorizations_and_subprotocols_are_removed() -> None:
    protocols = b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c3RvbGVu" + b", b" * 200 + b"\r\n"
    assert request_fields(b"Authorization: a\r\nA: b\r\nAuthorization: b\r\n" + protocols) == b"A: b\r\n"


def test_what_the_ingress_says_of_the_clients_way_is_passed_on() -> None:
    own = b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nForwarded: for=192.0.2.1\r\n"
    assert request_fields(b"A: b\r\n" + own) == b"A: b\r\n" + own


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (b"Location: %b/login\r\n" % PREFIX, b"Location: /login\r\n"),
        (b"Location: https://example.com%b/login\r\n" % PREFIX, b"Location: https://example.com/login\r\n"),
        (b"location: %b\r\n" % PREFIX, b"location: /\r\n"),
        (b"Location: /elsewhere\r\n", b"Location: /elsewhere\r\n"),
        (b"X: %b\r\n" % PREFIX, b"X: %b\r\n" % PREFIX),
        (b"Audit-Id: 1\r\nA: b\r\nX-Kubernetes-PF-FlowSchema-UID: 2\r\n", b"A: b\r\n"),
    ],
)
def test_what_the_api_server_adds_to_a_response_is_taken_off(given_: bytes, expected: bytes) -> None:
    assert response_fields(given_, PREFIX) == expected


@given(st.lists(st.sampled_from([b"abc", b"ab", b"a", b"c", b"bc", b"xabcx", b"cab", b"-"])))
def test_a_word_is_removed_wherever_pieces_end(pieces: list[bytes]) -> None:
    removal = Removal(b"abc")
    fed = b"".join([removal.feed(piece) for piece in pieces]) + removal.held
    # what becomes the word by a removal is no link of the API server's
    assert len(b"".join(pieces)) - len(fed) == 3 * b"".join(pieces).count(b"abc")


def says(status: bytes, fields: bytes, body: bytes) -> Any:
    def reply(end: UpstreamEnd) -> None:
        if b"\r\n\r\n" in end.received[end.answered :]:
            end.answered = len(end.received)
            end.send(b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body))

    return reply


async def begin(whole: Whole, status: bytes = b"200 OK", fields: bytes = b"", body: bytes = b"x") -> Any:
    """Serve an ingress over an API server that answers everything with this."""
    server = whole.upstream()
    server.reply = says(status, fields, body)
    via = replace(ingress("one", default="echo"), name="one")
    assert via.default_backend is not None
    via = replace(via, default_backend=replace(via.default_backend, via=model.Via.API_SERVER))
    config = ingress_config(via)
    east = model.ClusterConfig(
        name="east",
        endpoints=(model.EndpointConfig(name="e", scheme="http", host="127.0.0.1", port=server.port),),
        credentials=model.Credentials(token=model.Secret("own-token")),
        identity=model.UpstreamIdentity.PROXY,
        health_check=model.HealthCheck(interval=3600.0),
    )
    await whole.serve(replace(config, clusters=(east, *config.clusters[1:])))
    whole.endpoints("echo", 1)
    return server


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_request_goes_as_the_proxy_itself_below_the_services_proxy(whole: Whole) -> None:
    server = await begin(whole, fields=b"Audit-Id: 1\r\nX-Pod: yes\r\n")
    status, fields, body = await whole.get("/a/b?c=/../d", "Authorization: Bearer client", "Impersonate-User: root")
    assert (status, body) == (200, b"x")
    assert fields["x-pod"] == "yes"
    assert "audit-id" not in fields
    sent = server.received[server.received.index(b"GET " + PREFIX) :].decode()
    lines = sent.split("\r\n")
    assert lines[0] == f"GET {PREFIX.decode()}/a/b?c=/../d HTTP/1.1"
    assert [line for line in lines if "uthorization" in line] == ["Authorization: Bearer own-token"]
    assert "mpersonate" not in sent
    assert "X-Forwarded-For: 127.0.0.1" in lines


@pytest.mark.parametrize("target", ["/../../x", "/a/%2e%2e/%2e%2e/x", "/..%2f..%2fx", "/a/..\\..\\x", "/.;/..;/x"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_no_path_leaves_the_service(whole: Whole, target: str) -> None:
    server = await begin(whole)
    await whole.get(target)
    for line in server.received.decode().split("\r\n"):
        if " HTTP/1.1" in line and "/services/" in line:
            path = line.split(" ")[1].replace("%2e", ".").replace("%2f", "/").replace("\\", "/")
            assert path.startswith(PREFIX.decode() + "/")
            assert ".." not in path


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_links_of_html_lead_to_the_ingress(whole: Whole) -> None:
    page = b'<a href="%b/next">next</a>' % PREFIX
    await begin(whole, fields=b"Content-Type: text/html; charset=utf-8\r\n", body=page)
    _, fields, body = await whole.get("/")
    assert body == b'<a href="/next">next</a>'
    assert fields["content-length"] == str(len(body))


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_redirects_lead_to_the_ingress(whole: Whole) -> None:
    await begin(whole, b"302 Found", b"Location: %b/login?x=y\r\n" % PREFIX)
    status, fields, _ = await whole.get("/")
    assert (status, fields["location"]) == (302, "/login?x=y")


FORBIDDEN = (
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"services is forbidden:'
    b' User \\"system:serviceaccount:mcproxy:mcproxy\\" cannot get resource","reason":"Forbidden","code":403}'
)
INDENTED = FORBIDDEN.replace(b"{", b"{\n  ").replace(b",", b",\n  ").replace(b'":', b'": ')
OWN = [
    FORBIDDEN,
    INDENTED,  # for curl and browsers
    b"apiVersion: v1\ncode: 403\nkind: Status\nmessage: 'User \"system:serviceaccount:mcproxy:mcproxy\"'\n",
    b"k8s\x00\n\x0c\n\x02v1\x12\x06Status\x12system:serviceaccount:mcproxy:mcproxy",
    b"\xd9\xd9\xf7\xa6Ksystem:serviceaccount:mcproxy:mcproxy",
    FORBIDDEN + b" " * 100_000,
]
OTHERS = [
    b"",
    b"{}",
    b'{"kind":"Status"}',
    b'{"kind":"Status","apiVersion":"v2","message":"the application\'s own"}',
    b" " * 1000 + FORBIDDEN,
    b"<p>not found</p>",
    b"x" * 100_000,
]


def forbidden() -> ResponseHead:
    head = ResponseHead()
    head.status, head.fields, head.length, head.declared_length = 403, b"Content-Type: a/b\r\nA: b\r\n", CHUNKED, None
    return head


@pytest.mark.parametrize("body", [*OWN, *OTHERS])
@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_only_a_status_is_taken_for_the_api_servers_answer_however_it_comes(body: bytes, pieces: int) -> None:
    size = max(1, len(body) // pieces)
    got: list[Any] = []
    heads: list[ResponseHead] = []
    told: list[tuple[int, str]] = []
    sink = cast(Any, SimpleNamespace(response_head=heads.append, response_data=got.append, response_flush=lambda: None,
        response_end=got.append, response_interim=None, response_failed=None, pause_request=None,
        resume_request=None))  # fmt: skip
    responses = ResponseRewriter(sink, PREFIX, lambda *what: told.append(what))
    head = forbidden()
    responses.response_head(head)
    for begin_ in range(0, len(body), size):
        responses.response_data(body[begin_ : begin_ + size])
        responses.response_flush()
    responses.response_end([])
    assert (len(heads), got.pop()) == (1, [])
    if body not in OWN:
        assert (b"".join(got), head.fields, told) == (body, b"Content-Type: a/b\r\nA: b\r\n", [])
        return
    assert b"".join(got) == b"403 Forbidden: the cluster did not pass the request on to the service\n"
    assert b"system:" not in head.fields
    assert b"A: b" not in head.fields
    assert head.declared_length == len(b"".join(got))
    ((status, message),) = told
    assert status == 403
    assert ('User "system:serviceaccount:mcproxy:mcproxy" cannot' in message) == (body[:1] == b"{")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_who_the_proxy_is_and_what_it_may_not_is_for_operators_alone(whole: Whole) -> None:
    await begin(whole, b"403 Forbidden", b"Content-Type: application/json\r\nDate: today\r\n", FORBIDDEN)
    observer = EventLoggingObserver()
    globalLogPublisher.addObserver(observer)
    try:
        for _ in range(3):
            status, fields, body = await whole.get("/")
            assert (status, fields["content-type"], fields["date"]) == (403, "text/plain; charset=utf-8", "today")
            assert body == b"403 Forbidden: the cluster did not pass the request on to the service\n"
    finally:
        globalLogPublisher.removeObserver(observer)
    (line,) = [each for each in observer if each.get("event") == "ingress_no_answer"]
    assert "system:serviceaccount:mcproxy:mcproxy" in line["cause"]
