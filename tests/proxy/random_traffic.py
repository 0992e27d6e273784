"""A proxy under random load: clients that leave at any point, upstreams that die, reloads that change everything."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from mcproxy.config import model
from mcproxy.config.model import FlowControl, FlowControlType, Queue, UpstreamIdentity
from mcproxy.dispatch.flow_controller import InFlightController
from mcproxy.proxy.request import Request
from tests.proxy.harness import OK, Client, Harness, UpstreamEnd, cluster, config, get
from tests.proxy.random_load import EVERYTHING, STREAM, RandomLoad

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
UPGRADE = (b"Connection: Upgrade", b"Upgrade: SPDY/3.1")
PODS = (model.Rule(verbs=("*",), api_groups=("*",), resources=("pods",)),)

KNOWN = model.TokenFileConfig(
    "users.csv", tuple(model.StaticToken(model.Secret(name), name) for name in ("ann", "bob"))
)

#: Where a request may be when its client goes away, its upstream dies, or the configuration changes.
STATES = {
    *("authenticating", "impersonating", "authorizing, or queueing", "queueing"),
    *("connecting", "sent", "answering", "tunnel"),
}


def state_of(request: Request) -> str:
    """Where a request is that the proxy has not done with."""
    exchange = request.exchange
    if exchange.upgraded:
        return "tunnel"
    if exchange.responded:
        return "answering"
    if request.endpoint is not None:
        return "sent"
    if request.info is None:
        return "authenticating"
    if request.permit is not None:
        return "connecting"
    if request.plan is None:
        return "impersonating"
    assert request.server is not None
    return "queueing" if request.server.authorizer is None else "authorizing, or queueing"


@dataclass(eq=False)
class Pending:
    """A request that an upstream has seen whole, or a client's tunnel, and not done with."""

    end: UpstreamEnd
    head: bytes
    body: bytes
    begun: bool = False

    @property
    def alive(self) -> bool:
        return self.end.lost is None

    @property
    def review(self) -> bool:
        return b"/apis/auth" in self.head

    @property
    def upgrade(self) -> bool:
        return b"\r\nUpgrade:" in self.head

    @property
    def console(self) -> bool:
        """It asks for an upgrade, but is long-running only from its 101 on, or refused then."""
        return b"/console " in self.head

    @property
    def long_running(self) -> bool:
        return self.upgrade or b"watch=" in self.head


class RandomTraffic(RandomLoad):
    """`step` does something at random, `finish` lets everything end and looks at what is left."""

    WHOLE = "whole"  # the flow control that holds for every request and is only changed, never removed

    def __init__(self, harness: Harness, random: Random) -> None:
        super().__init__(harness, random)
        self.reviewer, *self.upstreams = [harness.upstream() for _ in range(4)]
        self.pending: list[Pending] = []
        self.clients: list[Client] = []
        self.left_in: Counter[str] = Counter()
        self._allowed: dict[bool, float] = {False: 0, True: 0}
        for upstream in (self.reviewer, *self.upstreams):
            upstream.reply = self._received

    # -- configurations -----------------------------------------------------------------------------------------

    def config(self) -> model.Config:
        pick = self.random.choice
        roomy = pick([True, False])  # requests wait for connections, or in queues
        queue = Queue(size=pick([2, 6]), timeout=pick([0.05, 0.5]))
        inflight = FlowControlType.MAX_REQUESTS_INFLIGHT
        whole = FlowControl(
            name=self.WHOLE,
            type=inflight,
            max=pick([4, 6] if roomy else [1, 2]),
            max_long_running=pick([1, 3]),
            queue=queue,
        )
        few = FlowControl(name="few", type=inflight, max=pick([0, 2, 8]), per=pick(list(model.Per)), queue=queue)
        rate = FlowControl(name="rate", type=FlowControlType.TOKEN_BUCKET, qps=pick([20, 200]), burst=5, queue=queue)
        flows = [whole, *(flow for flow in (few, rate) if self.random.random() < 0.7)]
        named = [flow.name for flow in flows]
        live = {"judge", *pick([("east",), ("west",), ("east", "west")])}
        backend = sorted(live - {"judge"})[0]
        one, two, three = (each.endpoint(name) for each, name in zip(self.upstreams, "abc", strict=True))
        east = pick([(one, two), (one,), (two,), (one, replace(two, disabled=True)), (replace(one, name="x"), two)])
        connections = model.Connections(max_connections=1 if roomy else 4)
        common: dict[str, Any] = {
            "identity": UpstreamIdentity.IMPERSONATE,
            "credentials": model.Credentials(token=model.Secret("own")),
            "flow_controls": (self.WHOLE,),
            "connections": connections,
        }
        clusters = [
            cluster(
                self.reviewer.endpoint("j"), name="judge", credentials=model.Credentials(token=model.Secret("own"))
            ),
            cluster(*east, name="east", **common),
            cluster(three, name="west", **common),
        ]
        policies = (
            model.Policy(name="pods", rules=PODS, flow_control="few" if "few" in named else None),
            model.Policy(
                name="rest",
                rules=EVERYTHING,
                flow_control="rate" if "rate" in named else None,
                strategy=pick(list(model.Strategy)),
            ),
        )
        server = model.Server(
            name=pick(["main", "main", "main", "other"]),
            listeners=("tls",),
            default=True,
            backend=model.ClusterBackend(backend),
            authentication="set",
            authorization=pick(["asked", None]),
            dispatch=policies,
            sessions=model.SessionsConfig(max_age=pick([0.0, 0.1, 1.0]), end_with_credential=pick([True, False])),
        )
        return config(
            [each for each in clusters if each.name in live],
            servers=[server],
            daemon=model.DaemonConfig(drain_timeout=0.1),
            authentication=(
                model.Authentication(
                    name="set",
                    token_file=KNOWN,
                    token_review=model.TokenReview(cluster="judge", cache_success=0, cache_failure=0),
                ),
            ),
            authorization=(
                model.Authorization(
                    name="asked",
                    subject_access_review=model.SubjectAccessReview(cluster="judge", cache_allowed=0, cache_denied=0),
                ),
            ),
            flow_controls=tuple(flows),
        )

    async def serve(self) -> None:
        await super().serve()
        for long_running, allowed in self._allowed.items():
            self._allowed[long_running] = max(allowed, self._maximum(long_running))

    # -- what happens -------------------------------------------------------------------------------------------

    async def step(self) -> None:
        steps = [self.arrive, self.leave, self.upstreams_act, self.serve, self.harness.turns]
        await self.random.choices(steps, weights=[10, 6, 10, 1, 1])[0]()
        await self.harness.turns(2)
        self.check()

    async def arrive(self) -> None:
        self._serial += 1
        token = self.random.choice([b"ann", b"bob", b"ann", b"bob", b"ann.%d" % self._serial])
        who = [b"Authorization: Bearer " + token]
        if self.random.random() < 0.3:
            who.append(b"Impersonate-User: carol")
        pod = b"/api/v1/namespaces/a/pods/p"
        requests: list[Callable[[], bytes]] = [
            lambda: get(pod, *who),
            lambda: get(b"/api/v1/nodes", *who),
            lambda: get(pod, *who, method=b"DELETE"),
            lambda: get(b"/api/v1/namespaces/a/pods", *who, b"Content-Length: 4", method=b"POST") + b"body",
            lambda: get(b"/api/v1/namespaces/a/pods", *who, b"Content-Length: 4", method=b"POST") + b"bo",
            lambda: get(b"/api/v1/pods?watch=1", *who),
            lambda: get(pod + b"/exec?command=sh", *who, *UPGRADE, method=b"POST"),
            lambda: get(b"/apis/subresources.kubevirt.io/v1/namespaces/a/vms/b/console", *who, *UPGRADE),
        ]
        self.clients.append(await self.harness.asks(self.random.choice(requests)()))

    async def leave(self) -> None:
        """A client goes away: each point where one may do so is as likely as any other."""
        ports = {client.port: client for client in self.clients if client.lost is None}
        there: dict[str, list[Client]] = {}
        for request in self.harness.service.requests:
            address: Any = request.exchange.connection.client
            if address.port in ports:
                there.setdefault(state_of(request), []).append(ports[address.port])
        if there:
            where = self.random.choice(sorted(there))
            self.left_in[where] += 1
            client = self.random.choice(there[where])
            self.random.choice([client.abort, client.close])()

    async def upstreams_act(self) -> None:
        for _ in range(self.random.choice([1, 3, 9])):
            self.pending = [pending for pending in self.pending if pending.alive]
            if self.pending:
                self._act(self.random.choice(self.pending))
            if self.random.random() < 0.5:
                await self.harness.turns(1)

    def _act(self, pending: Pending) -> None:
        if self.random.random() < 0.1:
            pending.end.abort()
        elif pending.review:
            self._review(pending)
        elif pending.upgrade:
            self._tunnel(pending)
        elif pending.begun:
            pending.end.send(self.random.choice([b"3\r\n{}\n\r\n", b"0\r\n\r\n"]))
            if self.random.random() < 0.5:
                pending.end.abort()
        elif pending.long_running or self.random.random() < 0.3:
            pending.begun = True
            pending.end.send(STREAM)
            return
        else:
            self.pending.remove(pending)
            pending.end.send(OK)
            return
        if pending.begun and not pending.upgrade:
            self.pending.remove(pending)
            pending.end.abort()

    def _review(self, pending: Pending) -> None:
        self.pending.remove(pending)
        review = json.loads(pending.body)
        if review["kind"] == "TokenReview":
            review["status"] = {
                "authenticated": self.random.random() < 0.9,
                "user": {"username": review["spec"]["token"].partition(".")[0]},
            }
        else:
            review["status"] = {"allowed": self.random.random() < 0.9}
        body = json.dumps(review).encode()
        pending.end.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    def _tunnel(self, pending: Pending) -> None:
        if not pending.begun:
            pending.begun = True
            pending.end.send(SWITCHED)
        else:
            self.random.choice([lambda: pending.end.send(b"data"), pending.end.close, pending.end.abort])()

    def _received(self, end: UpstreamEnd) -> None:
        """Take note of each request, but of reviews without all of their body."""
        for head, body, whole in self.unread_requests(end):
            if not whole and b"/apis/auth" in head:
                return
            self.pending.append(Pending(end, head, body))
            if not whole or b"\r\nUpgrade:" in head:
                self.ignore_rest(end)
                return

    # -- what must hold -----------------------------------------------------------------------------------------

    def _whole(self) -> InFlightController:
        runtime = self.harness.service.runtime
        assert runtime is not None
        control = runtime.flow_controls.controls[self.WHOLE]
        assert isinstance(control, InFlightController)
        return control

    def _maximum(self, long_running: bool) -> int:
        config = self._whole().config
        return (config.max_long_running if long_running else config.max) or 0

    def check(self) -> None:
        """No more are under way at the upstreams than the maximum; those under an earlier one only become fewer."""
        whole = self._whole()
        for long_running in (False, True):
            in_use = whole.in_use_long_running if long_running else whole.in_use
            allowed = self._allowed[long_running]
            assert in_use <= allowed
            there = sum(
                each.alive and not each.review and not each.console and each.long_running == long_running
                for each in self.pending
            )
            assert there <= allowed
            self._allowed[long_running] = max(self._maximum(long_running), min(allowed, in_use))

    async def finish(self) -> None:
        """Let everything end; nothing may be left."""
        service = self.harness.service
        for client in self.clients[::2]:
            client.abort()
        for _ in range(4000):
            if not service.requests:
                break
            for pending in self.pending:
                if pending.alive:
                    pending.end.abort()
            self.pending.clear()
            for client in self.clients:
                if b"200 OK" not in client.received and self.random.random() < 0.05:
                    client.abort()
            await self.harness.turns(2)
        assert not service.requests, Counter(map(state_of, service.requests))
        for client in self.clients:
            if client.received.startswith(b"HTTP/1.1 "):
                self.statuses[int(client.received[9:12])] += 1
            client.abort()
        await self.harness.turns()
        for _ in range(4000):  # a review goes on without the client that has caused it
            if all(each.pool.connections == each.pool.idle for each in self.endpoints):
                break
            for pending in self.pending:
                pending.end.abort()
            self.pending.clear()
            await self.harness.turns(2)
        self.check_counts()
        assert [each for each in self.endpoints if each.pool.connections != each.pool.idle] == []
