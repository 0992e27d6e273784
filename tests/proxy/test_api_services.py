"""Requests to an API service over the wire: who gets them, as whom, and what policies, reviews and reloads do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, UpstreamIdentity
from mcproxy.proxy import sessions
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import (
    ALLOWED,
    OK,
    Client,
    Harness,
    Upstream,
    UpstreamEnd,
    always,
    cluster,
    config,
    get,
    plain,
    reviewing,
)
from tests.proxy.http2_peers import h2_client, http2_listener
from tests.proxy.test_aggregate_requests import Fleet, Watch

METRICS = b"/apis/metrics.k8s.io/v1beta1"
NODES = METRICS + b"/nodes"
SERVICE = model.APIService(group="metrics.k8s.io", version="v1beta1", cluster="metrics", authority="east")
OTHER = model.APIService(group="other.example.com", version="v1", cluster="other", authority="east")
TOKENS = model.TokenFileConfig(
    "users.csv",
    (
        model.StaticToken(model.Secret("alice"), "alice", uid="7 é", groups=("dev", "ops")),
        model.StaticToken(model.Secret("bob"), "bob"),
    ),
)
USERS = model.Authentication(name="users", token_file=TOKENS)
REVIEWED = model.Authorization(name="reviewed", subject_access_review=model.SubjectAccessReview())
FLEET = model.Aggregate(name="fleet", clusters=("east", "west"))
ALICE, BOB = b"Authorization: Bearer alice", b"Authorization: Bearer bob"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def probed(reply: Callable[[UpstreamEnd], None]) -> Callable[[UpstreamEnd], None]:
    """A `reply` that answers the proxy's own GETs (probes of API services) and forgets them."""

    def answer(end: UpstreamEnd) -> None:
        before, line, head = end.received.rpartition(b"GET /apis")
        if line and head.endswith(b"\r\n\r\n") and b"\r\nX-Forwarded-For: " not in head:
            end.received = before
            end.send(OK)
        else:
            reply(end)

    return answer


def token_reviewing(reply: Callable[[UpstreamEnd], None], name: str) -> Callable[[UpstreamEnd], None]:
    """A `reply` that answers TokenReviews with one user, and forgets them."""

    def answer(end: UpstreamEnd) -> None:
        before, line, rest = end.received.partition(b"POST /apis/authentication.k8s.io/v1/tokenreviews ")
        if not line:
            reply(end)
        elif rest.endswith(b"}"):
            end.received = before
            user = {"username": name, "uid": "1", "groups": ["system:serviceaccounts"]}
            review = json.loads(rest.partition(b"\r\n\r\n")[2])
            body = json.dumps({**review, "status": {"authenticated": True, "user": user}}).encode()
            end.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    return answer


class Bench:
    """A server of cluster east, or of the aggregate of east and west, with API services in metrics and other."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.fleet = Fleet()
        self.handler = self.fleet.handler
        harness.use_aggregates(self.fleet)
        self.upstreams: dict[str, Upstream] = {}
        self.reviews: list[tuple[str, dict[str, Any]]] = []
        self.allowed: Callable[[dict[str, Any]], bool] = lambda _: True

    async def serve(
        self,
        *policies: model.Policy,
        services: tuple[model.APIService, ...] = (SERVICE, OTHER),
        backend: model.Backend | None = None,
        identity: UpstreamIdentity = UpstreamIdentity.REQUEST_HEADER,
        home: UpstreamIdentity = UpstreamIdentity.IMPERSONATE,
        server: dict[str, Any] | None = None,
        response_timeout: float = 60.0,
        **more: Any,
    ) -> None:
        connections = model.Connections(response_timeout=response_timeout)
        clusters = []
        for name in ("east", "west", "metrics", "other"):
            if name not in self.upstreams:
                upstream = self.upstreams[name] = self.harness.upstream()
                upstream.reply = probed(reviewing(always(OK), self._reviewed_by(name)))
            how = identity if name in ("metrics", "other") else home
            clusters.append(cluster(self.upstreams[name].endpoint(), name=name, identity=how, connections=connections))
        usual = model.Server(
            name="main",
            listeners=("tls",),
            default=True,
            backend=backend or model.ClusterBackend("east"),
            authentication="users",
            api_services=services,
            dispatch=policies or None,
        )
        logs = model.Logging(access=model.AccessLogConfig(file="log"))
        usual = replace(usual, **(server or {}))
        kept = {"logging": logs, "authentication": (USERS,), "aggregates": (FLEET,), **more}
        await self.harness.serve(config(clusters, [usual], **kept))
        runtime = self.harness.service.runtime
        assert runtime is not None
        endpoints = [endpoint for each in runtime.clusters.values() for endpoint in each.endpoints]
        await self.harness.until(lambda: all(endpoint.ready for endpoint in endpoints), "readiness")

    def _reviewed_by(self, name: str) -> Callable[[dict[str, Any]], bool]:
        def allowed(spec: dict[str, Any]) -> bool:
            self.reviews.append((name, spec))
            return self.allowed(spec)

        return allowed

    async def ask(self, *request: Any, **how: Any) -> Client:
        client = await self.harness.asks(get(*request, **how))
        await self.harness.until(lambda: client.over or b"\r\n\r\n" in client.received, "the answer")
        return client

    async def status(self, *request: Any, **how: Any) -> tuple[int, str]:
        client = await self.ask(*request, **how)
        await self.harness.until(lambda: client.over or client.received.endswith((b"{}", b"}\n")), "the whole answer")
        code, _, body = client.answer()
        return code, json.loads(body).get("message", "")

    def went_to(self) -> dict[str, bytes]:
        return {name: upstream.received for name, upstream in self.upstreams.items() if upstream.received}


@pytest.fixture
def bench(harness: Harness) -> Bench:
    return Bench(harness)


class TestOwner:
    @pytest.mark.parametrize("backend", [None, model.AggregateBackendConfig("fleet", ("east", "west"))])
    @pytest.mark.parametrize("target", [METRICS, NODES, METRICS + b"/", b"/apis/%6Detrics.k8s.io/v1beta1/nodes?a=b%2F"])
    async def test_gets_the_request_as_it_is(self, bench: Bench, backend: Any, target: bytes) -> None:
        await bench.serve(backend=backend)
        assert await bench.status(target, ALICE) == (200, "")
        (name, received), *more = bench.went_to().items()
        assert (name, more) == ("metrics", [])
        assert received.startswith(b"GET " + target + b" HTTP/1.1\r\n")
        assert bench.fleet.handler.requests == []

    async def test_gets_nothing_else(self, bench: Bench) -> None:
        await bench.serve()
        for target in (b"/apis/metrics.k8s.io/v1/nodes", b"/apis/metrics.k8s.io", b"/api/v1/nodes", b"/apis"):
            await bench.status(target, ALICE)
        assert list(bench.went_to()) == ["east"]

    async def test_what_could_be_another_group_version_is_nobodys(self, bench: Bench) -> None:
        await bench.serve()
        for target in (
            b"/apis/metrics.k8s.io/v1beta1/../../apps/v1/deployments",
            b"/apis/apps/v1/%2e%2e/%2e%2e/metrics.k8s.io/v1beta1/nodes",
            b"//apis/metrics.k8s.io/v1beta1/nodes",
            b"/%61pis/metrics.k8s.io/v1beta1/nodes",
            b"/apis/metrics.k8s.io%2Fv1beta1/nodes/x",
        ):
            assert (await bench.status(target, ALICE))[0] == 400
        assert bench.went_to() == {}

    async def test_members_have_their_own_below_their_path(self, bench: Bench) -> None:
        await bench.serve(backend=model.AggregateBackendConfig("fleet", ("east", "west")))
        await bench.status(b"/clusters/west" + NODES, ALICE)
        assert list(bench.went_to()) == ["west"]
        assert (await bench.status(b"/clusters/metrics" + NODES, ALICE))[0] == 404

    async def test_is_named_in_the_logs(self, bench: Bench, tmp_path: Path) -> None:
        audit = model.AuditLogConfig(file=str(tmp_path / "audit.log"), level="Metadata")
        logs = model.Logging(access=model.AccessLogConfig(file="log"), audit=audit)
        await bench.serve(logging=logs)
        for target in (NODES, b"/api/v1/nodes"):
            client = await bench.ask(target, ALICE)
            client.close()
        await bench.harness.until(lambda: len(bench.harness.records) == 2, "the records")
        record, other = bench.harness.records
        assert (record.cluster, record.api_service, record.resource) == (
            "metrics", "metrics.k8s.io/v1beta1", "nodes.metrics.k8s.io",
        )  # fmt: skip
        assert (other.cluster, other.api_service) == ("east", "")
        file = tmp_path / "audit.log"
        await bench.harness.until(lambda: file.exists() and file.read_bytes().count(b"ResponseComplete") == 2, "events")
        events = [json.loads(line) for line in file.read_text().splitlines()]
        named = [event["annotations"].get("mcproxy.io/api-service") for event in events if "annotations" in event]
        assert named == ["metrics.k8s.io/v1beta1", None]


class TestIdentity:
    async def test_the_user_is_told_as_kube_aggregator_tells_it(self, bench: Bench) -> None:
        await bench.serve()
        await bench.status(NODES, ALICE)
        head = plain(bench.upstreams["metrics"].received)
        assert (
            "X-Remote-User: alice\r\nX-Remote-Group: dev\r\nX-Remote-Group: ops\r\n"
            "X-Remote-Group: system:authenticated\r\nX-Remote-Uid: 7 é\r\n".encode()
        ) in head

    @pytest.mark.parametrize("granted", [True, False])
    async def test_who_is_an_administrator_of_the_backend_is_one_only_if_the_proxy_could_say_so_there(
        self, bench: Bench, granted: bool
    ) -> None:
        root = model.StaticToken(model.Secret("alice"), "root", groups=("system:masters", "dev"))
        users = model.Authentication(
            name="users", token_file=model.TokenFileConfig("users.csv", (root,)), allow_system_names=True
        )
        await bench.serve(authentication=(users,))
        asked: list[bytes] = []

        def rights(review: bytes) -> bytes:
            asked.append(review.partition(b"\r\n\r\n")[2])
            return ALLOWED if granted else ALLOWED.replace(b"true", b"false")

        bench.upstreams["east"].rights = rights
        for _ in range(3):
            assert (await bench.status(NODES, ALICE))[0] == 200
        head = plain(bench.upstreams["metrics"].received)
        assert head.count(b"X-Remote-User: root\r\n") == head.count(b"X-Remote-Group: dev\r\n") == 3
        assert head.count(b"X-Remote-Group: system:masters\r\n") == (3 if granted else 0)
        about = {"verb": "impersonate", "version": "v1", "resource": "groups", "name": "system:masters"}
        assert [json.loads(each)["spec"] for each in asked] == [{"resourceAttributes": about}]
        assert bench.reviews == []

    async def test_who_takes_the_users_own_token_would_get_the_group_too(self, bench: Bench) -> None:
        root = model.StaticToken(model.Secret("alice"), "root", groups=("system:masters",))
        users = model.Authentication(
            name="users", token_file=model.TokenFileConfig("users.csv", (root,)), allow_system_names=True
        )
        await bench.serve(authentication=(users,), home=UpstreamIdentity.PASSTHROUGH)
        assert (await bench.status(NODES, ALICE))[0] == 200
        assert b"X-Remote-Group: system:masters\r\n" in plain(bench.upstreams["metrics"].received)
        assert bench.reviews == []

    async def test_a_backend_that_cannot_be_asked_gives_no_such_group(self, bench: Bench) -> None:
        root = model.StaticToken(model.Secret("alice"), "root", groups=("system:masters",))
        users = model.Authentication(
            name="users", token_file=model.TokenFileConfig("users.csv", (root,)), allow_system_names=True
        )
        await bench.serve(authentication=(users,))
        bench.upstreams["east"].rights = lambda _: b"{}"  # which is no review
        assert (await bench.status(NODES, ALICE))[0] == 200
        assert b"system:masters" not in plain(bench.upstreams["metrics"].received)

    async def test_nothing_that_clients_send_of_it_passes(self, bench: Bench) -> None:
        await bench.serve()
        forged = [
            b"X-Remote-User: system:admin",
            b"x-remote-user: system:admin",
            b"X_Remote_User: system:admin",
            b"X-Remote_User: system:admin",
            b"X_REMOTE-Group: system:masters",
            b"X-Remote-Group: system:masters",
            b"X-Remote-Uid: 0",
            b"X_Remote_Uid: 0",
            b"X-Remote-Extra-Scopes: everything",
            b"X-Remote-Extra-Example.com%2fTeam: root",
            b"X_Remote_Extra_Scopes: everything",
            b"X-Remote-Anything: later",
        ]
        await bench.status(NODES, BOB, *forged)
        head = plain(bench.upstreams["metrics"].received).lower()
        fields = [line for line in head.split(b"\r\n") if line.replace(b"_", b"-").startswith(b"x-remote")]
        assert fields == [b"x-remote-user: bob", b"x-remote-group: system:authenticated"]
        assert b"authorization" not in head

    async def test_another_user_is_reviewed_by_the_backend(self, bench: Bench) -> None:
        await bench.serve()
        bench.allowed = lambda spec: spec["user"] == "alice"
        wanted = (b"Impersonate-User: carol", b"Impersonate-Extra-Example.com%2fTeam: a b")
        assert (await bench.status(NODES, ALICE, *wanted))[0] == 200
        head = plain(bench.upstreams["metrics"].received)
        assert b"X-Remote-User: carol\r\n" in head
        assert b"X-Remote-Extra-example.com%2Fteam: a b\r\n" in head
        assert b"impersonate" not in head.lower()
        assert {name for name, _ in bench.reviews} == {"east"}
        assert (await bench.status(NODES, BOB, *wanted))[0] == 403

    async def test_an_owner_that_decides_itself_reviews_another_user(self, bench: Bench) -> None:
        await bench.serve(services=(replace(SERVICE, authority="metrics"),), identity=UpstreamIdentity.IMPERSONATE)
        assert (await bench.status(NODES, ALICE, b"Impersonate-User: carol"))[0] == 200
        assert {name for name, _ in bench.reviews} == {"metrics"}

    @pytest.mark.parametrize("nominated", [b"X-Remote-User", b"x_remote_group", b"close, X-Remote-Uid"])
    async def test_a_connection_field_cannot_remove_it(self, bench: Bench, nominated: bytes) -> None:
        await bench.serve()
        assert (await bench.ask(NODES, BOB, b"Connection: " + nominated)).answer()[0] == 400
        assert bench.went_to() == {}

    async def test_trailers_of_a_body_carry_none_of_it(self, bench: Bench) -> None:
        await bench.serve()
        chunked = (
            b"Transfer-Encoding: chunked",
            b"Trailer: X-Remote-User, X_Remote_Group, X-Checksum",
            b"TE: trailers",
        )
        client = await bench.harness.asks(get(NODES, BOB, *chunked, method=b"POST"))
        client.send(b"2\r\n{}\r\n0\r\nX-Remote-User: root\r\nX_Remote_Group: system:masters\r\nX-Checksum: 1\r\n\r\n")
        await bench.harness.until(lambda: bench.upstreams["metrics"].received.endswith(b"1\r\n\r\n"), "the body")
        received = bench.upstreams["metrics"].received
        assert b"root" not in received
        assert b"masters" not in received

    async def test_nothing_of_it_passes_over_http2(self, bench: Bench) -> None:
        await bench.serve(listeners=(http2_listener(),))
        client = await h2_client(bench.harness)
        forged = [(b"x-remote-user", b"root"), (b"x_remote_group", b"system:masters"), (b"x-remote-extra-a%2fb", b"c")]
        stream = client.ask(b"GET", NODES, [(b"authorization", b"Bearer bob"), *forged])
        await bench.harness.until(lambda: stream.over, "the answer")
        assert stream.status == 200
        head = bench.upstreams["metrics"].received.lower()
        fields = [line for line in head.split(b"\r\n") if line.replace(b"_", b"-").startswith(b"x-remote")]
        assert fields == [b"x-remote-user: bob", b"x-remote-group: system:authenticated"]

    async def test_accounts_of_the_backend_are_valid_where_it_decides(self, bench: Bench) -> None:
        set_of_east = model.Authentication(name="users", token_review=model.TokenReview(cluster="east"))
        own = replace(OTHER, authority="other")
        await bench.serve(services=(SERVICE, own), authentication=(set_of_east,))
        others = bench.upstreams["east"].reply
        assert others is not None
        bench.upstreams["east"].reply = token_reviewing(others, "system:serviceaccount:kube-system:hpa")
        assert (await bench.status(NODES, ALICE))[0] == 200
        assert b"X-Remote-User: system:serviceaccount:kube-system:hpa\r\n" in bench.upstreams["metrics"].received
        code, message = await bench.status(b"/apis/other.example.com/v1/things", ALICE)
        assert (code, 'is not a user of cluster "other"' in message) == (403, True)
        assert bench.upstreams["other"].received == b""


class TestDecisions:
    async def test_the_backend_reviews_before_the_body_is_read(self, bench: Bench) -> None:
        await bench.serve(server={"authorization": "reviewed"}, authorization=(REVIEWED,))
        bench.allowed = lambda spec: False
        head = get(METRICS + b"/nodes", ALICE, b"Content-Length: 1000000", method=b"POST")
        client = await bench.harness.asks(head)  # and no byte of the body
        await bench.harness.until(lambda: client.over or client.received.endswith(b"}\n"), "the refusal")
        code, _, body = client.answer()
        assert code == 403
        assert json.loads(body)["message"].startswith(
            'nodes.metrics.k8s.io is forbidden: User "alice" cannot create resource "nodes" in API group "metrics'
        )
        ((name, spec),) = bench.reviews
        assert (name, spec["resourceAttributes"]["group"]) == ("east", "metrics.k8s.io")
        assert bench.went_to() == {}

    async def test_an_encoded_path_is_authorized_as_what_it_encodes(self, bench: Bench) -> None:
        await bench.serve(server={"authorization": "reviewed"}, authorization=(REVIEWED,))
        await bench.status(b"/apis/metrics%2ek8s.io/v1beta%31/nodes", ALICE)
        ((_, spec),) = bench.reviews
        about = spec["resourceAttributes"]
        assert (about["group"], about["version"]) == ("metrics.k8s.io", "v1beta1")
        assert list(bench.went_to()) == ["metrics"]

    @pytest.mark.parametrize(
        ("query", "sent"),
        [
            (b"?limit=1&watch=1;x&a=b", b"?limit=1&a=b"),
            (b"?watch=%zz", b""),
            (b"?a=b%2Fc&&b=", b"?a=b%2Fc&&b="),
        ],
    )
    async def test_the_owner_gets_no_parameter_that_was_not_read_for_the_decision(
        self, bench: Bench, query: bytes, sent: bytes
    ) -> None:
        await bench.serve(server={"authorization": "reviewed"}, authorization=(REVIEWED,))
        await bench.status(NODES + query, ALICE)
        ((_, spec),) = bench.reviews
        assert spec["resourceAttributes"]["verb"] == "list"
        assert bench.upstreams["metrics"].received.startswith(b"GET " + NODES + sent + b" HTTP/1.1\r\n")

    @pytest.mark.parametrize("backend", [None, model.AggregateBackendConfig("fleet", ("east", "west"))])
    async def test_policies_refuse_by_group(self, bench: Bench, backend: Any) -> None:
        no_metrics = policy("no metrics", rule(api_groups=("metrics.k8s.io",)), reject=model.Reject(451, "not here"))
        await bench.serve(no_metrics, policy("rest", rule()), backend=backend)
        assert await bench.status(NODES, ALICE) == (451, "not here")
        assert await bench.status(b"/apis/other.example.com/v1/things", ALICE) == (200, "")
        assert list(bench.went_to()) == ["other"]

    @pytest.mark.parametrize("backend", [None, model.AggregateBackendConfig("fleet", ("east", "west"))])
    async def test_their_limits_hold(self, bench: Bench, backend: Any) -> None:
        nothing = FlowControl(name="none", type=FlowControlType.MAX_REQUESTS_INFLIGHT, max=0)
        limited = policy("metrics", rule(api_groups=("metrics.k8s.io",)), flow_control="none")
        await bench.serve(limited, policy("rest", rule()), backend=backend, flow_controls=(nothing,))
        assert (await bench.status(NODES, ALICE))[0] == 429
        assert (await bench.status(b"/apis/other.example.com/v1/things", ALICE))[0] == 200

    async def test_their_backend_moves_nothing_of_it(self, bench: Bench) -> None:
        await bench.serve(policy("west", rule(), backend=model.ClusterBackend("west")))
        await bench.status(NODES, ALICE)
        await bench.status(b"/api/v1/nodes", ALICE)
        assert list(bench.went_to()) == ["west", "metrics"]

    async def test_pages_of_allowed_origins_may_use_it(self, bench: Bench) -> None:
        await bench.serve(server={"cors": model.CORS(("https://a.example.com",))})
        origin = b"Origin: https://a.example.com"
        code, fields, _ = (await bench.ask(NODES, ALICE, origin)).answer()
        assert (code, fields["access-control-allow-origin"]) == (200, "https://a.example.com")
        wanted = b"Access-Control-Request-Method: GET"
        assert (await bench.ask(NODES, origin, wanted, method=b"OPTIONS")).answer()[0] == 204


class TestStreams:
    async def test_an_upgrade_becomes_a_tunnel_to_the_owner(self, bench: Bench) -> None:
        await bench.serve()
        metrics = bench.upstreams["metrics"]
        metrics.reply = probed(lambda end: end.send(SWITCH) if end.received.endswith(b"\r\n\r\n") else None)
        upgrade = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: eA==", b"X-Remote-User: root")
        client = await bench.ask(METRICS + b"/namespaces/a/things/x/exec?command=ls", ALICE, *upgrade)
        assert client.answer()[0] == 101
        assert metrics.received.count(b"X-Remote-User: ") == 1
        assert b"X-Remote-User: alice\r\n" in metrics.received
        client.send(b"to the owner")
        await bench.harness.until(lambda: metrics.received.endswith(b"to the owner"), "the bytes")
        metrics.last.send(b"to the client")
        await bench.harness.until(lambda: client.received.endswith(b"to the client"), "the bytes")

    async def test_a_session_ends_with_the_credential_that_opened_it(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "_RELOAD_SPREAD", 0.1)
        ending = {"sessions": model.SessionsConfig(end_with_credential=True)}
        await bench.serve(server=ending)
        watch = await self.watch(bench, NODES)
        await bench.serve(server=ending)
        await bench.harness.turns(60)
        assert not watch.received.endswith(b"0\r\n\r\n")
        bob = replace(USERS, token_file=model.TokenFileConfig("users.csv", TOKENS.tokens[1:]))
        await bench.serve(server=ending, authentication=(bob,))
        await bench.harness.until(lambda: watch.received.endswith(b"0\r\n\r\n"), "the end of the watch")

    async def watch(self, bench: Bench, target: bytes) -> Client:
        for upstream in bench.upstreams.values():
            upstream.reply = probed(reviewing(lambda end: end.send(STREAM), lambda _: True))
        client = await bench.harness.asks(get(target + b"?watch=1", ALICE))
        await bench.harness.until(lambda: b"{}" in client.received, "the first event")
        return client

    @pytest.mark.parametrize(
        ("services", "ends"),
        [
            pytest.param((OTHER,), True, id="removed"),
            pytest.param((replace(SERVICE, cluster="west"), OTHER), True, id="moved"),
            pytest.param((replace(SERVICE, version_priority=1), OTHER), False, id="another priority"),
            pytest.param((OTHER, SERVICE), False, id="another order"),
        ],
    )
    async def test_a_watch_ends_cleanly_when_a_reload_takes_its_service_away(
        self, bench: Bench, services: tuple[model.APIService, ...], ends: bool
    ) -> None:
        await bench.serve()
        watch, other = await self.watch(bench, NODES), await self.watch(bench, b"/apis/other.example.com/v1/things")
        core = await self.watch(bench, b"/api/v1/nodes")
        await bench.serve(services=services)
        if ends:
            await bench.harness.until(lambda: watch.received.endswith(b"0\r\n\r\n"), "the end of the watch")
        await bench.harness.turns(30)
        assert watch.received.endswith(b"0\r\n\r\n") is ends
        assert not other.received.endswith(b"0\r\n\r\n")
        assert not core.received.endswith(b"0\r\n\r\n")

    async def test_a_watch_of_the_backends_ends_when_a_reload_adds_an_owner(self, bench: Bench) -> None:
        await bench.serve(services=())
        hidden, core = await self.watch(bench, NODES), await self.watch(bench, b"/api/v1/nodes")
        await bench.serve()
        await bench.harness.until(lambda: hidden.received.endswith(b"0\r\n\r\n"), "the end of the watch")
        assert not core.received.endswith(b"0\r\n\r\n")

    async def test_a_watch_of_the_aggregates_ends_when_a_reload_adds_an_owner(self, bench: Bench) -> None:
        fleet = model.AggregateBackendConfig("fleet", ("east", "west"))
        watches = Watch.of(cast(Any, bench))
        await bench.serve(services=(), backend=fleet)
        hidden = await bench.ask(NODES + b"?watch=1", ALICE)
        pods = await bench.ask(b"/api/v1/pods?watch=1", ALICE)
        await bench.serve(backend=fleet)
        await bench.harness.until(lambda: hidden.received.endswith(b"0\r\n\r\n"), "the end of the watch")
        assert [len(watch.ended) for watch in watches] == [1, 0]
        assert not pods.received.endswith(b"0\r\n\r\n")

    async def test_a_members_watch_by_its_path_goes_on_when_a_reload_adds_an_owner(self, bench: Bench) -> None:
        fleet = model.AggregateBackendConfig("fleet", ("east", "west"))
        await bench.serve(services=(), backend=fleet)
        member = await self.watch(bench, b"/clusters/west" + NODES)
        await bench.serve(backend=fleet)
        await bench.harness.turns(30)
        assert not member.received.endswith(b"0\r\n\r\n")

    async def test_a_connection_that_is_open_follows_a_reload_with_its_next_request(self, bench: Bench) -> None:
        await bench.serve(services=())
        client = await bench.ask(NODES, ALICE)
        assert list(bench.went_to()) == ["east"]
        for services, owner in (((SERVICE,), "metrics"), ((replace(SERVICE, cluster="other"),), "other"), ((), "east")):
            await bench.serve(services=services)
            for upstream in bench.upstreams.values():
                upstream.forget()
                upstream.reply = probed(always(OK))
            client.received = b""
            client.send(get(NODES, ALICE))
            await bench.harness.until(lambda: client.received.endswith(b"{}"), "the answer")
            assert list(bench.went_to()) == [owner]
