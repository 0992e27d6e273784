"""TokenReview and SubjectAccessReview of API servers, over the wire: what is answered here, refused, and passed on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.config.model import UpstreamIdentity
from tests.dispatch.builders import rule
from tests.proxy.harness import ALLOWED, NAME, Client, Harness, Upstream, UpstreamEnd, cluster, config, listener

TOKENS = b"/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = b"/apis/authorization.k8s.io/v1/subjectaccessreviews"
LOCAL = b"/apis/authorization.k8s.io/v1/namespaces/demo/localsubjectaccessreviews"
FILE = model.TokenFileConfig(
    "users.csv",
    tuple(model.StaticToken(model.Secret(name), name, groups=("dev",)) for name in ("alice", "api", "mallory")),
)
USERS = model.Authentication(name="users", token_file=FILE)
READERS = model.Authorization(
    name="readers",
    rules=(
        rule(users=("api", "mallory")),
        rule(verbs=("impersonate",)),
        rule(users=("alice",), verbs=("get",), api_groups=("*",), resources=("*",)),
    ),
)
THINGS = model.APIService(group="things.example.com", version="v1", cluster="things", authority="east")
JSON = b"Content-Type: application/json"
WIDGETS = {"verb": "get", "group": "things.example.com", "version": "v1", "resource": "widgets"}


class Backend:
    """A cluster that lets `api` create reviews, and answers them with a status of its own."""

    def __init__(self, upstream: Upstream) -> None:
        self.endpoint = upstream.endpoint()
        self.rights: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.answer: Callable[[], bytes] = lambda: b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nWarning: w\r\n\r\n{}"
        upstream.reply = self.reply

    def reply(self, end: UpstreamEnd) -> None:
        head, separator, body = end.received.partition(b"\r\n\r\n")
        lines = [line.decode("latin-1").partition(": ") for line in head.split(b"\r\n")[1:]]
        fields = {name.lower(): value for name, _, value in lines}
        if not separator or len(body) < int(fields.get("content-length", 0)):
            return
        end.received = b""
        if not head.startswith(b"POST "):  # the proxy's own, for discovery
            end.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        path = head.split(b" ", 2)[1].decode()
        if path.endswith("/selfsubjectaccessreviews"):
            end.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(ALLOWED), ALLOWED))
            return
        if path.encode() == ACCESS and "impersonate-user" not in fields:
            spec = json.loads(body)["spec"]
            self.rights.append(spec)
            status = {"allowed": spec["user"] == "api"}
            answer = json.dumps({"kind": "SubjectAccessReview", "status": status}).encode()
            end.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
            return
        self.asked.append((path, fields, body))
        end.send(self.answer())


async def started(
    harness: Harness,
    *,
    authorization: model.Authorization | None = None,
    identity: UpstreamIdentity = UpstreamIdentity.IMPERSONATE,
    **fields: Any,
) -> Backend:
    upstream, things = harness.upstream(), harness.upstream()
    backend = Backend(upstream)
    given: dict[str, Any] = {"authentication": "users", "api_services": (THINGS,), **fields}
    server = model.Server(
        name="main",
        listeners=("tls",),
        default=True,
        backend=model.ClusterBackend("east"),
        authorization=None if authorization is None else authorization.name,
        **given,
    )
    clusters = [
        cluster(backend.endpoint, identity=identity),
        cluster(things.endpoint(), name="things", identity=UpstreamIdentity.REQUEST_HEADER),
    ]
    more: dict[str, Any] = {} if authorization is None else {"authorization": (authorization,)}
    await harness.serve(config(clusters, [server], [listener()], authentication=(USERS,), **more))
    runtime = harness.service.runtime
    assert runtime is not None
    await harness.until(lambda: all(each.ready for each in runtime.clusters["east"].endpoints), "readiness")
    return backend


def post(target: bytes, body: bytes, *fields: bytes, user: bytes = b"api") -> bytes:
    head = [b"POST " + target + b" HTTP/1.1", b"Host: " + NAME.encode(), b"Authorization: Bearer " + user, *fields]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


async def asked(harness: Harness, target: bytes, spec: Any, *fields: bytes, user: bytes = b"api") -> Any:
    body = json.dumps({"spec": spec}).encode()
    return await answer(harness, post(target, body, JSON, *fields, user=user))


async def answer(harness: Harness, raw: bytes) -> tuple[int, dict[str, str], Any]:
    client: Client = await harness.asks(raw)

    def complete() -> bool:
        _, separator, body = client.received.partition(b"\r\n\r\n")
        return bool(separator) and len(body) >= int(client.answer()[1].get("content-length", 0))

    await harness.until(complete, "the answer")
    status, fields, body = client.answer()
    return status, fields, json.loads(body)


async def test_a_token_of_the_server_is_answered_here(harness: Harness) -> None:
    backend = await started(harness)
    status, fields, review = await asked(harness, TOKENS, {"token": "alice"})
    assert (status, fields["content-type"], fields["cache-control"]) == (201, "application/json", "no-cache, private")
    user = {"username": "alice", "groups": ["dev", "system:authenticated"]}
    assert review == {
        "kind": "TokenReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {},
        "spec": {"token": "alice"},
        "status": {"authenticated": True, "user": user},
    }
    assert backend.asked == []
    (right,) = backend.rights
    assert (right["user"], right["resourceAttributes"]["resource"]) == ("api", "tokenreviews")
    assert right["resourceAttributes"]["verb"] == "create"


@pytest.mark.parametrize(
    "body",
    [
        b'{"spec": {"token": "unknown"}}',
        b'{"spec": {"token": ""}}',
        b'{"kind": "Pod"}',
        b'{"spec":{"audiences":["a"]}}',
    ],
)
async def test_what_it_does_not_know_goes_to_the_backend_as_it_came(harness: Harness, body: bytes) -> None:
    backend = await started(harness)
    agent = b"User-Agent: metrics-server/1"
    status, fields, _ = await answer(harness, post(TOKENS + b"?dryRun=All", body, JSON, agent))
    assert (status, fields["warning"]) == (201, "w")
    ((path, sent, forwarded),) = backend.asked
    assert (path, forwarded) == ("/apis/authentication.k8s.io/v1/tokenreviews?dryRun=All", body)
    assert (sent["impersonate-user"], sent["user-agent"]) == ("api", "metrics-server/1")
    assert sent["content-type"] == "application/json"


async def test_who_may_not_create_reviews_learns_nothing_and_sends_no_body(harness: Harness) -> None:
    backend = await started(harness, authorization=READERS)
    head = post(TOKENS, b"", JSON, user=b"mallory").replace(b"Content-Length: 0", b"Content-Length: 1000")
    status, _, refusal = await answer(harness, head)  # of the body nothing was sent
    assert (status, refusal["reason"]) == (403, "Forbidden")
    assert 'User "mallory" cannot create resource "tokenreviews"' in refusal["message"]
    # The server's own authorizer comes first.
    status, _, refusal = await asked(harness, TOKENS, {"token": "alice"}, user=b"alice")
    assert (status, backend.asked, len(backend.rights)) == (403, [], 1)


async def test_access_to_an_api_service_is_the_servers_to_decide(harness: Harness) -> None:
    backend = await started(harness, authorization=READERS)
    for name, allowed in (("alice", True), ("bob", False)):
        status, _, review = await asked(harness, ACCESS, {"user": name, "resourceAttributes": WIDGETS})
        assert (status, review["status"]) == (201, {"allowed": allowed})
        assert review["spec"] == {"resourceAttributes": dict(sorted(WIDGETS.items(), key=_in_go_order)), "user": name}
    in_demo = {**WIDGETS, "namespace": "demo"}
    status, _, review = await asked(harness, LOCAL, {"user": "alice", "resourceAttributes": in_demo})
    assert (status, review["kind"], review["status"]) == (201, "LocalSubjectAccessReview", {"allowed": True})
    assert review["metadata"] == {"namespace": "demo"}
    assert backend.asked == []


def _in_go_order(item: tuple[str, str]) -> int:
    return ("verb", "group", "version", "resource").index(item[0])


async def test_of_core_the_server_only_refuses(harness: Harness) -> None:
    backend = await started(harness, authorization=READERS)
    pods = {"verb": "get", "version": "v1", "resource": "pods"}
    _, _, review = await asked(harness, ACCESS, {"user": "bob", "resourceAttributes": pods})
    assert (review["status"], backend.asked) == ({"allowed": False}, [])
    _, _, review = await asked(harness, ACCESS, {"user": "alice", "resourceAttributes": pods})
    assert (review, len(backend.asked)) == ({}, 1)  # the backend's own answer


async def test_without_an_authorizer_reviews_of_access_are_forwarded(harness: Harness) -> None:
    backend = await started(harness)
    _, _, review = await asked(harness, ACCESS, {"user": "alice", "resourceAttributes": WIDGETS})
    assert (review, len(backend.asked), backend.rights) == ({}, 1, [])


async def test_a_server_without_api_services_forwards_all(harness: Harness) -> None:
    backend = await started(harness, api_services=())
    await asked(harness, TOKENS, {"token": "alice"})
    assert (len(backend.asked), backend.rights) == (1, [])


async def test_impersonation_is_honoured_first(harness: Harness) -> None:
    backend = await started(harness, authorization=READERS)
    # Whoever may impersonate `api` has its right, and nobody has it by asking.
    status, _, review = await asked(harness, TOKENS, {"token": "alice"}, b"Impersonate-User: mallory")
    assert status == 403
    asked_for = [spec["resourceAttributes"]["verb"] for spec in backend.rights]
    assert "impersonate" in asked_for
    assert review["reason"] == "Forbidden"


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"x" * (256 * 1024 + 1), b"application/json", 413),
        (b"{", b"application/json", 400),
        (b'{"spec": ' + b"[" * 100_000, b"application/json", 400),
        (b"spec: {token: alice, token: bob}", b"application/yaml", 400),
        (b"spec: {token: alice}", b"application/cbor", 415),
        (b"k8s\x00\xff", b"application/vnd.kubernetes.protobuf", 400),
    ],
)
async def test_a_body_that_is_none_is_refused_here(
    harness: Harness, body: bytes, content_type: bytes, code: int
) -> None:
    backend = await started(harness)
    status, _, refusal = await answer(harness, post(TOKENS, body, b"Content-Type: " + content_type))
    assert (status, refusal["kind"], refusal["code"]) == (code, "Status", code)
    assert backend.asked == []


async def test_a_backend_that_is_away_is_503_and_the_body_is_not_held_on(harness: Harness) -> None:
    backend = await started(harness)
    assert (await asked(harness, TOKENS, {"token": "unknown"}))[0] == 201
    backend.answer = lambda: b"HTTP/1.1 500 Internal\r\nContent-Length: 2\r\n\r\n{}"
    assert (await asked(harness, TOKENS, {"token": "unknown"}))[0] == 500
    bodies = harness.service._resources.review_bodies
    assert bodies is not None
    assert bodies.total == 0


async def test_a_client_that_leaves_ends_its_review(harness: Harness) -> None:
    backend = await started(harness)
    backend.answer = lambda: b""  # none
    client = await harness.asks(post(TOKENS, b'{"spec": {"token": "unknown"}}', JSON))
    await harness.until(lambda: backend.asked, "the question")
    client.abort()
    await harness.until(lambda: harness.service.running == 0, "its end")
    bodies = harness.service._resources.review_bodies
    assert bodies is not None
    assert bodies.total == 0


async def test_a_backend_that_knows_no_users_leaves_them_to_the_rules(harness: Harness) -> None:
    # Single-user mode: who may not create reviews in the cluster asks of their own token, and of their own API server.
    backend = await started(harness, authorization=READERS, identity=UpstreamIdentity.PROXY)
    _, _, review = await asked(harness, TOKENS, {"token": "alice"}, user=b"mallory")
    assert review["status"]["user"]["username"] == "alice"
    _, _, review = await asked(harness, ACCESS, {"user": "alice", "resourceAttributes": WIDGETS}, user=b"mallory")
    assert review["status"] == {"allowed": True}
    pods = {"verb": "get", "version": "v1", "resource": "pods"}
    _, _, review = await asked(harness, ACCESS, {"user": "alice", "resourceAttributes": pods})
    assert review["status"] == {"allowed": True}  # as the proxy is by the cluster (`harness.ALLOWED`)
    assert (backend.asked, backend.rights) == ([], [])
    status, _, _ = await asked(harness, TOKENS, {"token": "alice"}, user=b"alice")
    assert status == 403
