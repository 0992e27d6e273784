"""Requests to a server with an aggregate: what is decided about each member, and what its handler is given."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.request import AggregatedRequest, LeftOut
from mcproxy.aggregate.writes.held_bodies import DEADLINE, BodyBuffers
from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, Per, UpstreamIdentity
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authentication.authenticator import NoAuthentication
from mcproxy.identity.authorization.authorizer import ReviewersByCluster
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.net.socket_stream import READ_BUDGET
from mcproxy.observe.record import AccessRecord
from mcproxy.upstream.cluster import Cluster
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import OK, Client, Harness, Upstream, always, cluster, config, get, reviewing
from tests.support.clock import Clock

PODS = b"/api/v1/namespaces/demo/pods"
IMPERSONATE = b"Impersonate-User: bob"
INFLIGHT = FlowControlType.MAX_REQUESTS_INFLIGHT
TOKENS = model.TokenFileConfig(
    "users.csv", tuple(model.StaticToken(model.Secret(name), name, groups=("dev",)) for name in ("alice", "bob"))
)
USERS = model.Authentication(name="users", token_file=TOKENS)
ALICE = b"Authorization: Bearer alice"
NAMES = ("east", "west")


class Handler:
    """Answers by `answer`, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[AggregatedRequest] = []
        self.answer: Callable[[AggregatedRequest], Awaitable[None]] = self.tell
        self.cancelled = 0

    async def handle(self, request: AggregatedRequest) -> None:
        self.requests.append(request)
        try:
            await self.answer(request)
        except CancelledError:
            self.cancelled += 1
            raise

    async def tell(self, request: AggregatedRequest) -> None:
        request.served_by(*request.members, cached=True)
        request.exchange.answer(200, request.own_fields(b"X-Made-Here: yes\r\n"), b"{}")


class Fleet:
    """The owner of aggregates, of whose only one, fleet, the test is the handler."""

    def __init__(self) -> None:
        self.handler = Handler()
        self.activated = 0

    def prepare(self, config: model.Config, clusters: Mapping[str, Cluster], reviewers: Any) -> Fleet:
        return self

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"fleet": self.handler}

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        return reviewers

    def documents(self, server: object, backend: str, visibility: object) -> Handler:
        return self.handler

    def activate(self) -> None:
        self.activated += 1


def _nothing(spec: dict[str, Any]) -> bool:
    return False


class Bench:
    """A server of the aggregate of east and west; each upstream answers reviews by `allowed`."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.fleet = Fleet()
        self.handler = self.fleet.handler
        harness.use_aggregates(self.fleet)
        self.upstreams: dict[str, Upstream] = {}
        self.refused: dict[str, Callable[[dict[str, Any]], bool]] = {}
        self.reviews: list[tuple[str, dict[str, Any]]] = []

    async def serve(
        self,
        *policies: model.Policy,
        fields: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
        identity: UpstreamIdentity = UpstreamIdentity.IMPERSONATE,
    ) -> None:
        """Serve; `fields` are of the server, `more` of the configuration."""
        for name in NAMES:
            if name not in self.upstreams:
                self.upstreams[name] = self.harness.upstream()
                self.upstreams[name].reply = reviewing(always(OK), self._allowed(name))
        clusters = [cluster(self.upstreams[name].endpoint(), name=name, identity=identity) for name in NAMES]
        usual: dict[str, Any] = {
            "authentication": "users",
            "backend": model.AggregateBackendConfig("fleet", NAMES, "east"),
        }
        server = model.Server(
            name="fleet",
            listeners=("tls",),
            default=True,
            dispatch=policies or None,
            **{**usual, **(fields or {})},
        )
        await self.harness.serve(
            config(
                clusters,
                [server],
                logging=model.Logging(access=model.AccessLogConfig(file="log")),
                **{"authentication": (USERS,), **(more or {})},
            )
        )
        runtime = self.harness.service.runtime
        assert runtime is not None
        endpoints = [endpoint for name in NAMES for endpoint in runtime.clusters[name].endpoints]
        await self.harness.until(lambda: all(endpoint.ready for endpoint in endpoints), "readiness")

    def _allowed(self, name: str) -> Callable[[dict[str, Any]], bool]:
        def allowed(spec: dict[str, Any]) -> bool:
            self.reviews.append((name, spec))
            return not self.refused.get(name, _nothing)(spec)

        return allowed

    async def ask(self, *request: Any, **how: Any) -> Client:
        client = await self.harness.asks(get(*request, **how))
        await self.harness.until(lambda: client.over or b"\r\n\r\n" in client.received, "the answer")
        return client

    async def refusal(self, *request: Any, **how: Any) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((await self.ask(*request, **how)).answer()[2])
        return status

    async def record(self) -> AccessRecord:
        await self.harness.until(lambda: self.harness.records, "the record")
        return self.harness.records[-1]


class TestTheHandler:
    async def test_gets_the_user_and_every_member(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()
        client = await bench.ask(PODS + b"?limit=1", ALICE)
        status, fields, body = client.answer()
        assert (status, body) == (200, b"{}")
        assert fields["x-made-here"] == "yes"
        assert fields["cache-control"] == "no-cache, private"
        [request] = bench.handler.requests
        assert (request.target, request.info.verb, request.info.resource) == (PODS + b"?limit=1", "list", "pods")
        assert (request.members, request.left_out) == (NAMES, ())
        assert request.user_for("west").name == "alice"
        record = await bench.record()
        assert (record.cluster, record.cached, record.user, record.verb) == ("east,west", True, "alice", "list")
        assert record.request_id == fields["audit-id"]
        assert bench.upstreams["east"].received == bench.upstreams["west"].received == b""

    async def test_the_api_of_one_member_is_forwarded_as_ever(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()
        assert (await bench.ask(b"/clusters/west" + PODS, ALICE)).answer()[0] == 200
        assert bench.handler.requests == []
        assert b"GET /api/v1/namespaces/demo/pods HTTP/1.1" in bench.upstreams["west"].received
        record = await bench.record()
        assert (record.cluster, record.cached) == ("west", None)
        assert (await bench.refusal(b"/clusters/north/api", ALICE))["code"] == 404

    async def test_karmadas_path_is_the_aggregate_itself(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()
        await bench.ask(b"/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy" + PODS, ALICE)
        assert bench.handler.requests[0].target == PODS

    async def test_authentication_comes_first(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()
        assert (await bench.refusal(PODS, b"Authorization: Bearer nobody"))["code"] == 401
        assert bench.handler.requests == []

    async def test_what_it_raises_is_the_answer(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()

        async def refuse(request: AggregatedRequest) -> None:
            raise StatusError(410, "too old")

        bench.handler.answer = refuse
        assert (await bench.refusal(PODS, ALICE))["reason"] == "Expired"
        record = await bench.record()
        assert (record.status, record.reason, record.cached) == (410, "refused", False)

    async def test_a_response_that_cannot_go_on_is_broken_off(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()

        async def refuse(request: AggregatedRequest) -> None:
            request.exchange.respond(200, b"", request.own_fields(), -1)
            request.exchange.write(b"{")
            request.exchange.flush()
            await harness.turns()
            raise StatusError(503, "too late")

        bench.handler.answer = refuse
        client = await bench.ask(PODS, ALICE)
        await harness.until(lambda: client.over, "the end")
        assert client.received.endswith(b"1\r\n{\r\n")
        assert client.received.count(b"HTTP/1.1") == 1

    async def test_is_cancelled_when_the_client_goes_away(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()

        async def wait(request: AggregatedRequest) -> None:
            await Deferred[None]()

        bench.handler.answer = wait
        client = await harness.asks(get(PODS, ALICE))
        await harness.until(lambda: bench.handler.requests, "the request")
        client.abort()
        await harness.until(lambda: bench.handler.cancelled, "the cancellation")
        assert (await bench.record()).reason == "client_closed"

    async def test_that_does_nothing_is_a_bug_and_no_request_without_end(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()

        async def nothing(request: AggregatedRequest) -> None:
            pass

        bench.handler.answer = nothing
        assert (await bench.refusal(PODS, ALICE))["code"] == 500


class TestMembers:
    async def test_a_rule_for_some_clusters_leaves_the_others_out(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve(policy("eastern", rule(clusters=("east",))))
        await bench.ask(PODS, ALICE)
        [request] = bench.handler.requests
        assert request.members == ("east",)
        [(name, why, _)] = request.left_out
        assert name == "west"
        assert 'no dispatch policy of server "fleet" matches' in why
        assert (await bench.record()).policy == "eastern"

    async def test_what_is_left_out_can_neither_be_named_nor_reached(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve(policy("eastern", rule(clusters=("east",))))
        refused: list[int] = []

        async def reach(request: AggregatedRequest) -> None:
            for name in ("west", "north"):
                for attempt in (request.send(name, b"GET", PODS), request.forward(name, PODS)):
                    try:
                        await attempt
                    except StatusError as refusal:
                        refused.append(refusal.code)
            raise StatusError(404, "none")

        bench.handler.answer = reach
        await bench.ask(PODS, ALICE)
        assert refused == [403, 403, 403, 403]
        assert bench.upstreams["west"].received == b""

    async def test_no_policy_for_any_is_403(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve(policy("nodes", rule(resources=("nodes",))))
        status = await bench.refusal(PODS, ALICE)
        assert (status["code"], status["reason"]) == (403, "Forbidden")
        assert (await bench.record()).reason == "no_policy"

    async def test_a_policy_that_rejects_for_all_gives_its_answer(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve(policy("no", rule(), reject=model.Reject(410, "gone elsewhere")))
        status = await bench.refusal(PODS, ALICE)
        assert (status["code"], status["message"]) == (410, "gone elsewhere")
        assert (await bench.record()).reason == "rejected"

    async def test_a_policy_that_rejects_for_one_leaves_it_out(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve(
            policy("no", rule(clusters=("west",)), reject=model.Reject(410, "gone elsewhere")), policy("yes", rule())
        )
        await bench.ask(PODS, ALICE)
        [request] = bench.handler.requests
        assert (request.members, request.left_out) == (("east",), (LeftOut("west", "gone elsewhere"),))

    async def test_the_servers_authorizer_decides_for_each(self, harness: Harness) -> None:
        bench = Bench(harness)
        rules = model.Authorization(name="some", rules=(rule(clusters=("west",), verbs=("get", "list")),))
        await bench.serve(fields={"authorization": "some"}, more={"authorization": (rules,)})
        await bench.ask(PODS, ALICE)
        assert bench.handler.requests[0].members == ("west",)
        status = await bench.refusal(PODS + b"?watch=1", ALICE)
        assert (status["code"], status["message"].split(":")[0]) == (403, "pods is forbidden")
        await harness.until(lambda: len(harness.records) == 2, "the record")
        assert (await bench.record()).reason == "forbidden"

    async def test_an_authorizer_that_asks_the_members_asks_each(self, harness: Harness) -> None:
        bench = Bench(harness)
        bench.refused["west"] = lambda spec: True
        asks = model.Authorization(name="asks", subject_access_review=model.SubjectAccessReview())
        await bench.serve(fields={"authorization": "asks"}, more={"authorization": (asks,)})
        await bench.ask(PODS, ALICE)
        assert bench.handler.requests[0].members == ("east",)
        assert sorted(name for name, _ in bench.reviews) == ["east", "west"]


class Known(NoAuthentication):
    """An authenticator that knows everybody as one user."""

    def __init__(self, caller: AuthenticatedUser) -> None:
        self.caller = caller

    def authenticate(self, *_: Any, **__: Any) -> AuthenticatedUser:
        return self.caller


class TestSystemNames:
    """What cluster X says in the name of the system counts towards X alone."""

    async def asked_as(self, harness: Harness, user: UserInfo, **fields: Any) -> Bench:
        bench = Bench(harness)
        await bench.serve(**fields)
        runtime = harness.service.runtime
        assert runtime is not None
        server: Any = runtime.servers["fleet"]
        server.authenticator = Known(AuthenticatedUser(user, cluster="east"))
        return bench

    async def test_an_account_is_nobody_away_from_home(self, harness: Harness) -> None:
        account = UserInfo("system:serviceaccount:demo:default", ("system:serviceaccounts", "system:authenticated"))
        bench = await self.asked_as(harness, account)
        await bench.ask(PODS)
        [request] = bench.handler.requests
        assert request.members == ("east",)
        [(name, why, _)] = request.left_out
        assert name == "west"
        assert 'of cluster "east" is not a user of cluster "west"' in why
        with pytest.raises(StatusError) as refused:
            request.user_for("west")
        assert refused.value.code == 403
        with pytest.raises(StatusError):
            await request.send("west", b"POST", PODS)
        assert bench.upstreams["west"].received == b""

    async def test_groups_of_the_system_stay_at_home(self, harness: Harness) -> None:
        bench = await self.asked_as(harness, UserInfo("jane", ("system:masters", "dev", "system:authenticated")))
        await bench.ask(PODS)
        [request] = bench.handler.requests
        assert request.user_for("east").groups == ("system:masters", "dev", "system:authenticated")
        assert request.user_for("west").groups == ("dev", "system:authenticated")

    async def test_who_is_nobody_anywhere_is_refused(self, harness: Harness) -> None:
        bench = await self.asked_as(
            harness,
            UserInfo("system:serviceaccount:demo:default", ("system:authenticated",)),
            fields={"backend": model.AggregateBackendConfig("fleet", ("west",))},
        )
        assert (await bench.refusal(PODS))["code"] == 403
        assert (await bench.record()).reason == "foreign_account"


class TestImpersonation:
    async def test_each_member_must_allow_it(self, harness: Harness) -> None:
        bench = Bench(harness)
        bench.refused["east"] = lambda spec: spec["user"] == "alice"
        await bench.serve()
        await bench.ask(PODS, ALICE, IMPERSONATE)
        [request] = bench.handler.requests
        assert request.members == ("west",)  # the primary has no say about it
        assert request.user_for("west").name == "bob"
        assert {(name, spec["user"]) for name, spec in bench.reviews} == {("east", "alice"), ("west", "alice")}
        record = await bench.record()
        assert (record.user, record.impersonated) == ("alice", "bob")

    async def test_where_none_allows_it_it_is_refused(self, harness: Harness) -> None:
        bench = Bench(harness)
        bench.refused["east"] = bench.refused["west"] = lambda spec: True
        await bench.serve()
        status = await bench.refusal(PODS, ALICE, IMPERSONATE)
        assert status["code"] == 403
        assert 'User "alice" cannot impersonate resource "users"' in status["message"]
        assert (await bench.record()).reason == "impersonation_refused"
        assert bench.handler.requests == []

    async def test_a_cluster_that_gets_the_clients_headers_decides_about_what_is_cached_as_well(
        self, harness: Harness
    ) -> None:
        """It cannot refuse a request that is answered from cache, so a rule of the file alone is not enough."""
        bench = Bench(harness)
        bench.refused["east"] = lambda spec: spec["resourceAttributes"]["verb"] == "impersonate"
        rules = (rule(verbs=("get", "list")), rule(verbs=("impersonate",)))
        await bench.serve(
            fields={"authorization": "rules"},
            more={"authorization": (model.Authorization(name="rules", rules=rules),)},
            identity=UpstreamIdentity.PASSTHROUGH,
        )
        await bench.ask(PODS, ALICE, IMPERSONATE)
        [request] = bench.handler.requests
        assert request.members == ("west",)
        assert request.user_for("west").name == "bob"

    async def test_policies_see_the_impersonated_user(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve(policy("bobs", rule(users=("bob",))))
        assert (await bench.refusal(PODS, ALICE))["code"] == 403
        await bench.ask(PODS, ALICE, IMPERSONATE)
        assert bench.handler.requests[0].members == NAMES


class TestLimits:
    async def test_a_policy_counts_a_request_once_however_many_members_it_touches(self, harness: Harness) -> None:
        bench = Bench(harness)
        two = FlowControl(name="two", type=INFLIGHT, max=2)
        await bench.serve(policy("all", rule(), flow_control="two"), more={"flow_controls": (two,)})
        open_: list[Deferred[None]] = []

        async def wait(request: AggregatedRequest) -> None:
            open_.append(Deferred())
            await open_[-1]
            await bench.handler.tell(request)

        bench.handler.answer = wait
        clients = [await harness.asks(get(PODS, ALICE)) for _ in range(2)]
        await harness.until(lambda: len(open_) == 2, "both requests")
        status = await bench.refusal(PODS, ALICE)
        assert status["code"] == 429
        assert status["message"].startswith('too many requests for cluster "fleet", limited by flow control "two"')
        for waiting in open_:
            waiting.callback(None)
        await harness.until(lambda: all(client.received for client in clients), "the answers")
        runtime = harness.service.runtime
        assert runtime is not None
        assert runtime.flow_controls.controls["two"].in_use == 0

    async def test_per_cluster_counts_each_member(self, harness: Harness) -> None:
        bench = Bench(harness)
        one = FlowControl(name="one", type=INFLIGHT, max=1, per=Per.CLUSTER)
        await bench.serve(policy("all", rule(), flow_control="one"), more={"flow_controls": (one,)})
        assert (await bench.ask(PODS, ALICE)).answer()[0] == 200

    async def test_a_cached_read_costs_no_permit_of_a_member_but_a_forwarded_request_does(
        self, harness: Harness
    ) -> None:
        bench = Bench(harness)
        none = FlowControl(name="none", type=INFLIGHT, max=0)
        for name in NAMES:
            bench.upstreams[name] = harness.upstream()
            bench.upstreams[name].reply = always(OK)
        clusters = [
            cluster(bench.upstreams[name].endpoint(), name=name, flow_controls=("none",) if name == "west" else ())
            for name in NAMES
        ]
        server = model.Server(
            name="fleet", listeners=("tls",), default=True, backend=model.AggregateBackendConfig("fleet", NAMES)
        )
        await harness.serve(config(clusters, [server], flow_controls=(none,)))
        assert (await bench.ask(PODS)).answer()[0] == 200

        async def forward(request: AggregatedRequest) -> None:
            await request.forward(request.info.namespace, PODS)

        bench.handler.answer = forward
        assert (await bench.ask(b"/api/v1/namespaces/east/pods")).answer()[0] == 200
        assert (await bench.refusal(b"/api/v1/namespaces/west/pods"))["code"] == 429


class TestReaching:
    async def test_send_has_the_users_identity_and_returns_the_answer(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()

        async def send(request: AggregatedRequest) -> None:
            response = await request.send("west", b"GET", PODS, fields=[(b"Accept", b"application/json")])
            assert (response.member, response.status, response.body) == ("west", 200, b"{}")
            assert response.header(b"content-type") == b"application/json"
            await bench.handler.tell(request)

        bench.handler.answer = send
        assert (await bench.ask(PODS, ALICE)).answer()[0] == 200
        sent = bench.upstreams["west"].received
        assert b"\r\nImpersonate-User: alice\r\n" in sent
        assert b"Bearer" not in sent

    async def test_a_member_with_passthrough_gets_the_clients_token(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve(identity=UpstreamIdentity.PASSTHROUGH)

        async def send(request: AggregatedRequest) -> None:
            await request.send("west", b"GET", PODS)
            await bench.handler.tell(request)

        bench.handler.answer = send
        assert (await bench.ask(PODS, ALICE)).answer()[0] == 200
        sent = bench.upstreams["west"].received
        assert b"\r\nAuthorization: Bearer alice\r\n" in sent
        assert b"\r\nX-Forwarded-For: 127.0.0.1\r\n" in sent

    async def test_forward_streams_the_request_through(self, harness: Harness) -> None:
        bench = Bench(harness)
        await bench.serve()

        async def forward(request: AggregatedRequest) -> None:
            request.served_by("west", cached=False)
            await request.forward("west", PODS + b"/a/log")

        bench.handler.answer = forward
        assert (await bench.ask(PODS + b"/a/log?x=1", ALICE)).answer()[0] == 200
        assert bench.upstreams["west"].received.startswith(b"GET /api/v1/namespaces/demo/pods/a/log HTTP/1.1\r\n")
        record = await bench.record()
        assert (record.cluster, record.endpoint, record.cached) == ("west", "a", False)

    @pytest.mark.parametrize(
        "answer",
        [
            b'HTTP/1.1 201 Created\r\nAudit-Id: of-the-member\r\nWarning: 299 - "deprecated"\r\n'
            b"Content-Encoding: gzip\r\nLocation: /api/v1/x\r\nX-Kubernetes-Pf-Flowschema-Uid: 1\r\nX-Other: 2\r\n"
            b"Content-Type: application/vnd.kubernetes.protobuf\r\nContent-Length: 5\r\n\r\n\x1f\x8b\x08ab",
            b'HTTP/1.1 403 Forbidden\r\nWarning: 299 - "a webhook"\r\nX-Kubernetes-Pf-Flowschema-Uid: 1\r\n'
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nno",
        ],
    )
    async def test_a_body_that_was_read_goes_on_as_one_that_was_not(self, harness: Harness, answer: bytes) -> None:
        bench, bodies = Bench(harness), BodyBuffers(cast(Any, Clock()))
        await bench.serve()
        upstream = bench.upstreams["west"]
        upstream.reply = always(answer)
        target = PODS + b"?dryRun=All&fieldManager=kubectl-create&fieldValidation=Strict&timeout=7s"

        async def forward(request: AggregatedRequest) -> None:
            await request.forward("west", request.target)

        async def forward_read(request: AggregatedRequest) -> None:
            body = await bodies.of("alice").read(request.exchange)
            await request.forward("west", request.target, body)

        exchanges = []
        for bench.handler.answer in (forward, forward_read):
            before, body = len(upstream.received), b"k8s\0\x00\xff of the client"
            fields = [ALICE, *_OF_KUBECTL, b"Content-Length: %d" % len(body)]
            client = await harness.asks(get(target, *fields, method=b"POST") + body)
            await harness.until(partial(_has_come, client, answer[-2:]), "the answer")
            exchanges.append((_sorted(upstream.received[before:]), _sorted(client.received)))
        (plain_request, plain_answer), (request, response) = exchanges
        assert request == plain_request
        assert response == plain_answer


_OF_KUBECTL = (
    b"Accept: application/vnd.kubernetes.protobuf,application/json;as=Table;v=v1;g=meta.k8s.io",
    b"Accept-Encoding: gzip",
    b"Audit-Id: of-the-client",
    b"Content-Encoding: identity",
    b"Content-Type: application/vnd.kubernetes.protobuf",
    b"Kubectl-Command: kubectl create",
    b"Kubectl-Session: 1",
    b"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"Tracestate: a=b",
    b"User-Agent: kubectl/v1.36.0",
    b"X-Of-The-Client: yes",
)


def _has_come(client: Client, end: bytes) -> bool:
    return client.over or client.received.endswith(end)


def _sorted(message: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines of a head, sorted, without the date, and the body."""
    head, _, body = message.partition(b"\r\n\r\n")
    return sorted(line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")), body


class Watch:
    """The handler of a watch, which ends it cleanly when it is told to."""

    def __init__(self, request: AggregatedRequest) -> None:
        self.request = request
        self.ended: list[str] = []

    @classmethod
    def of(cls, bench: Bench) -> list[Watch]:
        """Let the bench's handler open watches; the list gets them."""
        watches: list[Watch] = []

        async def watch(request: AggregatedRequest) -> None:
            watches.append(cls(request))
            request.exchange.attach(watches[-1])
            request.exchange.respond(200, b"", request.own_fields(), -1)
            request.exchange.flush()
            request.long_running()

        bench.handler.answer = watch
        return watches

    def body_data(self, data: bytes) -> None: ...

    def body_end(self, trailers: Any) -> None: ...

    def cancelled(self) -> None:
        self.ended.append("cancelled")

    def pause_response(self) -> None: ...

    def resume_response(self) -> None: ...

    def end_gracefully(self) -> None:
        self.ended.append("cleanly")
        self.request.exchange.end()


class TestSessions:
    async def test_a_watch_ends_at_its_greatest_age(self, harness: Harness) -> None:
        bench = Bench(harness)
        watches = Watch.of(bench)
        await bench.serve(fields={"sessions": model.SessionsConfig(max_age=1.0)})
        client = await bench.ask(PODS + b"?watch=1", ALICE)
        await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "the end")
        assert watches[0].ended == [harness.watch_end]
        assert (await bench.record()).reason == "session_expired"

    async def test_a_watch_ends_with_the_credential_that_opened_it(self, harness: Harness) -> None:
        bench = Bench(harness)
        watches = Watch.of(bench)
        sessions = {"sessions": model.SessionsConfig(end_with_credential=True)}
        await bench.serve(fields=sessions)
        client = await bench.ask(PODS + b"?watch=1", ALICE)
        nobody = model.Authentication(name="users", token_file=model.TokenFileConfig("users.csv", ()))
        await bench.serve(fields=sessions, more={"authentication": (nobody,)})
        await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "the end")
        assert watches[0].ended == [harness.watch_end]
        assert (await bench.record()).reason == "credential_ended"

    async def test_a_shutdown_ends_watches_cleanly(self, harness: Harness) -> None:
        bench = Bench(harness)
        watches = Watch.of(bench)
        await bench.serve()
        client = await bench.ask(PODS + b"?watch=1", ALICE)
        harness.service.stop_accepting()
        await harness.service.finish()
        assert watches[0].ended == [harness.watch_end]
        assert client.received.endswith(b"0\r\n\r\n")

    async def test_a_client_that_goes_away_is_told_to_the_handler(self, harness: Harness) -> None:
        bench = Bench(harness)
        watches = Watch.of(bench)
        await bench.serve()
        client = await bench.ask(PODS + b"?watch=1", ALICE)
        client.abort()
        await harness.until(lambda: watches[0].ended, "its end")
        assert watches[0].ended == ["cancelled"]


class TestReload:
    async def test_a_server_that_gets_another_backend_ends_the_watches_on_its_aggregate(self, harness: Harness) -> None:
        bench = Bench(harness)
        watches = Watch.of(bench)
        await bench.serve()
        client = await bench.ask(PODS + b"?watch=1", ALICE)
        await bench.serve()
        await harness.turns()
        assert watches[0].ended == []  # the same aggregate goes on
        assert bench.fleet.activated == 2
        await bench.serve(fields={"backend": model.ClusterBackend("east")})
        await harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "the end")
        assert len(watches[0].ended) == 1


async def test_unfinished_bodies_are_bounded_over_all_connections_and_given_back(harness: Harness) -> None:
    """60 of them took 170 MB, for as long as their clients liked."""
    bench, clock = Bench(harness), Clock()
    await bench.serve()
    bodies = BodyBuffers(cast(Any, clock), total=4 * 1024 * 1024, share=3 * 1024 * 1024)

    async def read(request: AggregatedRequest) -> None:
        held = bodies.of(request.user_for("east").name)
        try:
            data = await held.read(request.exchange)
        finally:
            held.release()
        request.exchange.answer(200, request.own_fields(), b"%d" % len(data))

    bench.handler.answer = read
    head = b"POST %b HTTP/1.1\r\nHost: k8s.test\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
    clients = [await harness.asks(head % (PODS, b"alice", 3_000_000) + b"x" * 2_900_000) for _ in range(8)]
    await harness.until(lambda: len(bench.handler.requests) == 8 and bodies.total >= 3 * 1024 * 1024, "the bodies")
    await harness.turns(50)
    # The user's share, and a read of each that could begin.
    assert bodies.total <= 3 * 1024 * 1024 + 8 * READ_BUDGET
    other = await harness.asks(head % (PODS, b"bob", 5) + b"hello")
    await harness.until(lambda: b"\r\n\r\n5" in other.received, "the answer to another user")
    for _ in range(20):
        clock.advance(DEADLINE / 10)
        await harness.turns(10)
    await harness.until(lambda: all(client.received for client in clients), "the refusals")
    assert {client.answer()[0] for client in clients} <= {429, 504}
    assert any(client.answer()[1].get("retry-after") == "1" for client in clients)
    assert bodies.total == 0
