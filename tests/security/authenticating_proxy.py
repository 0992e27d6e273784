"""A whole proxy for attacks on identity: servers with different CAs, clusters with each `identity`, all on loopback.

    k8s.test      set "corp": front proxies, CLIENTS, a token file, an issuer, TokenReview by "judge"; to "east"
    other.test    set "guests": OTHERS alone; to "west"
    all.wild.test set "corp"; every cluster below /clusters/NAME/

Rules allow all users everything but impersonation, which only "boss" may, and so do the clusters (`allows`). Whatever
an upstream receives was forwarded for a client; after a refusal it has received nothing. `judge` answers reviews as the
test sets it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, globalLogPublisher

from mcproxy.config import model
from mcproxy.daemon.daemon_log import LineObserver
from mcproxy.identity import review_client
from mcproxy.identity.authentication import token_union
from mcproxy.identity.authorization import access_review
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.tls_contexts import client_context
from mcproxy.observe.access_log import FORMATTERS
from tests.identity import issuer
from tests.identity.certificates import CLIENT, NO_AUTHORITY, Held, authority, user
from tests.proxy.harness import (
    CA,
    NAME,
    OK,
    Client,
    Harness,
    Upstream,
    UpstreamEnd,
    always,
    cluster,
    config,
    plain,
    reviewing,
)

OTHER = "other.test"
ALL = "all.wild.test"
NAMES = (NAME, OTHER, ALL)

ALICE_TOKEN = b"alice-0123456789-very-secret-token"
BOSS_TOKEN = b"boss-0123456789-very-secret-token"
MALLORY_TOKEN = b"mallory-0123456789-secret-token"  # of a line with system:masters
ROOT_TOKEN = b"root-0123456789-very-secret-token"  # of a line that names system:admin
LENT = b"lent-0123456789-the-proxys-own-token"

BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
UNAUTHORIZED = (
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized",'
    b'"reason":"Unauthorized","code":401}\n'
)


@cache
def ca(name: str) -> Held:
    """One of the authorities: "clients", "others", "front"."""
    return authority(f"the authority of {name}", valid=(-400, 3600))


@cache
def holder(of: str, common_name: str, *groups: str) -> Held:
    """A client certificate and its key."""
    return issued(of, user(common_name, *groups))


def issued(of: str, subject: x509.Name) -> Held:
    return ca(of).issue(subject, NO_AUTHORITY, CLIENT, valid=(-400, 3600))


def client_pair(held: Held | None) -> tuple[bytes, bytes] | None:
    """PEM of a client's certificate and key."""
    if held is None:
        return None
    return held.pem, held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _context(held: Held | None) -> SSL.Context:
    return client_context(CA.cert_pem.bytes(), client_pair(held), verify=False)


def id_token(**changed: Any) -> bytes:
    """A good token of the issuer, or one with other claims."""
    return issuer.token(claims(**changed))


def claims(**changed: Any) -> dict[str, Any]:
    now = time.time()
    return issuer.claims(**{"exp": now + 600, "iat": now - 5, **changed})


def pem(name: str) -> model.PEMFile:
    return model.PEMFile(f"{name}.crt", ca(name).pem)


def corp(**changed: Any) -> model.Authentication:
    def line(token: bytes, user: str, *groups: str) -> model.StaticToken:
        return model.StaticToken(model.Secret(token.decode()), user, groups=groups)

    tokens = (
        line(ALICE_TOKEN, "alice", "dev"),
        line(BOSS_TOKEN, "boss"),
        line(MALLORY_TOKEN, "mallory", "system:masters", "dev"),
        line(ROOT_TOKEN, "system:admin"),
    )
    usual: dict[str, Any] = {
        "client_ca": pem("clients"),
        "request_header": model.RequestHeader(ca=pem("front"), allowed_names=("front",)),
        "token_file": model.TokenFileConfig("tokens.csv", tokens),
        "oidc": (issuer.config(username_prefix="", groups_claim="groups"),),
        "token_review": model.TokenReview(cluster="judge"),
    }
    return model.Authentication(name="corp", **{**usual, **changed})


_EVERYTHING: dict[str, Any] = {"api_groups": ("*",), "resources": ("*",), "non_resource_urls": ("*",)}
_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "post", "put", "options", "head")
RULES = model.Authorization(
    name="rules",
    rules=(
        model.Rule(verbs=_VERBS, **_EVERYTHING),
        model.Rule(users=("boss",), verbs=("impersonate",), **_EVERYTHING),
    ),
)


class AuthenticatingProxy(Harness):
    """The proxy of this module's docstring; `east`, `west`, … are the endpoints of its clusters."""

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        self.east, self.west, self.pass_, self.own, self.headers, self.judge = (self.upstream() for _ in range(6))
        self.asked: list[dict[str, Any]] = []  # the reviews that came to `judge`
        self.reviewed: list[dict[str, Any]] = []  # the specs of SubjectAccessReviews that came to other clusters
        self.allows: Callable[[dict[str, Any]], bool] = lambda spec: spec["user"] == "boss"
        self.verdict: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _: {"authenticated": False}
        self.lines: list[str] = []  # the daemon's log
        self.events: list[LogEvent] = []
        self._observer = LineObserver(self.lines.append, "debug")
        globalLogPublisher.addObserver(cast(Any, self._observe))

    def _observe(self, event: LogEvent) -> None:
        if event.get("log_namespace", "").startswith("mcproxy") or "log_failure" in event:
            self._observer(event)
            self.events.append(event)

    def configuration(self, east: dict[str, Any] | None = None, **changed: Any) -> model.Config:
        """`east` has fields of that cluster, `changed` those of the configuration."""

        def own(upstream: Upstream, name: str, identity: model.UpstreamIdentity, **more: Any) -> model.ClusterConfig:
            credentials = model.Credentials(token=model.Secret(LENT.decode()))
            if identity is model.UpstreamIdentity.PASSTHROUGH:
                credentials = model.Credentials()
            return cluster(upstream.endpoint(), name=name, identity=identity, credentials=credentials, **more)

        kinds = model.UpstreamIdentity
        clusters = (
            own(self.east, "east", kinds.IMPERSONATE, **{"impersonate_extras": ("scopes",), **(east or {})}),
            own(self.west, "west", kinds.IMPERSONATE),
            own(self.pass_, "pass", kinds.PASSTHROUGH),
            own(self.own, "own", kinds.PROXY),
            own(self.headers, "headers", kinds.REQUEST_HEADER),
            own(self.judge, "judge", kinds.IMPERSONATE),
        )

        def server(name: str, backend: model.Backend, authentication: str, **more: Any) -> model.Server:
            return model.Server(
                name=name,
                listeners=("tls",),
                server_names=(name,),
                backend=backend,
                authentication=authentication,
                authorization="rules",
                **more,
            )

        everything = model.ClustersBackend(tuple(each.name for each in clusters))
        usual: dict[str, Any] = {
            "authentication": (corp(), model.Authentication(name="guests", client_ca=pem("others"))),
            "authorization": (RULES,),
            "servers": (
                server(NAME, model.ClusterBackend("east"), "corp", default=True),
                server(OTHER, model.ClusterBackend("west"), "guests"),
                server(ALL, everything, "corp"),
            ),
            "logging": model.Logging(access=model.AccessLogConfig()),
        }
        usual.update(changed)
        return config(clusters, usual.pop("servers"), **usual)

    async def open(self, **changed: Any) -> None:
        await self.serve(self.configuration(**changed))
        for upstream in self.upstreams:
            upstream.reply = self.answering(always(OK))
        self.judge.reply = self._review
        await self.ready()

    def waiting(self) -> int:
        """How many tokens and decisions wait for a place among those that are reviewed."""
        runtime = self.service.runtime
        assert runtime is not None
        return sum(load.waiting for _, _, load in runtime.identity.loads())

    async def ready(self) -> None:
        """Return when health checks of all clusters have succeeded: until then they may come amid clients' requests."""
        ready = "takes requests"
        await self.until(lambda: sum(ready in line for line in self.lines) == len(self.upstreams) + 1, "readiness")
        self.lines.clear()

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        """Those that receive clients' requests; `judge` receives reviews as well."""
        return self.east, self.west, self.pass_, self.own, self.headers

    @property
    def forwarded(self) -> bytes:
        """What the upstreams have received, but for Audit-IDs."""
        return plain(b"".join(upstream.received for upstream in self.upstreams))

    def _review(self, end: UpstreamEnd) -> None:
        """Answer reviews by `verdict`, which may leave one without an answer, and anything else with OK."""
        while True:
            head, separator, rest = end.received[end.answered :].partition(b"\r\n\r\n")
            if not separator:
                return
            lines = (line.lower().partition(b":") for line in head.split(b"\r\n")[1:])
            length = int({name: value for name, _, value in lines}.get(b"content-length", b"0"))
            if len(rest) < length:
                return
            end.answered += len(head) + 4 + length
            if b"reviews HTTP/" not in head:
                end.send(OK)
                continue
            review = json.loads(rest[:length])
            self.asked.append(review)
            status = self.verdict(review)
            if status is not None:
                self.answer_review(end, {**review, "status": status})

    def answering(self, reply: Callable[[UpstreamEnd], None]) -> Callable[[UpstreamEnd], None]:
        """A `reply` that answers SubjectAccessReviews by `allows`, as if unheard, and anything else by `reply`."""

        def allowed(spec: dict[str, Any]) -> bool:
            self.reviewed.append(spec)
            return self.allows(spec)

        return reviewing(reply, allowed)

    def judge_breaks(self) -> None:
        """From now on answer reviews with 500."""
        self.judge.reply = lambda end: end.send(BROKEN) if end.received.endswith(b"}") else None

    def answer_review(self, end: UpstreamEnd, review: dict[str, Any]) -> None:
        body = json.dumps(review).encode()
        end.send(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def client(
        self, server_name: str = NAME, *, port: int = 0, tls: bool = True, certificate: Held | None = None
    ) -> Client:
        """A connected client, with a certificate or without; with server_name "127.0.0.1" it sends no name."""
        client = Client()
        settings = ClientTLS(_context(certificate), server_name, verify=False, sessions=None)
        await connect(self.reactor, "127.0.0.1", port or self.port(), client, tls=settings, timeout=60.0)
        self._clients.append(client)
        return client

    async def answer(self, raw: bytes, **how: Any) -> tuple[int, bytes]:
        """The status and body that the proxy gives to `raw`, sent by a new client."""
        client = await self.asks(raw, **how)
        return await self.answered(client)

    async def answered(self, client: Client) -> tuple[int, bytes]:
        def whole() -> bool:
            head, separator, body = client.received.partition(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            return bool(separator) and (not length or len(body) >= int(length[0][15:]))

        await self.until(whole, "an answer")
        status, _, body = client.answer()
        return status, body

    async def passes(self, raw: bytes, **how: Any) -> None:
        """Send `raw`, which must be answered well."""
        status, body = await self.answer(raw, **how)
        assert (status, body) == (200, b"{}")

    async def refuses(self, raw: bytes, code: int, body: bytes, **how: Any) -> None:
        """Send `raw`, which must be refused so, not forwarded, with one record, and at most one line."""
        records, lines, forwarded = len(self.records), len(self.log_lines()), self.forwarded
        answer = await self.answer(raw, **how)
        assert answer == (code, body)
        await self.turns(2)
        assert self.forwarded == forwarded

        def counts() -> tuple[int, int]:
            return len(self.records) - records, len(self.log_lines()) - lines

        await self.until(lambda: any(counts()), "a record or a line")
        # Of what is no proper request there is no record but a line.
        assert counts() in ((1, 0), (1, 1), (0, 1)), self.log_lines()[lines:]

    def log_lines(self) -> list[str]:
        """The lines that an operator has at the usual level."""
        return [line for line in self.lines if " level=debug " not in line]

    def output(self) -> str:
        """Everything that was written or could be: log lines, events with all they hold, records in each format."""
        return "\n".join([*self.lines, *map(repr, self.events), *self.access_lines()])

    def access_lines(self) -> list[str]:
        """The records, in each format of the access log."""
        formats = [make("") for make in FORMATTERS.values()]
        return [write(record) for record in self.records for write in formats]

    async def close(self) -> None:
        globalLogPublisher.removeObserver(cast(Any, self._observe))
        await super().close()


@pytest.fixture
def patient_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no review end by itself while a machine that is busy makes the hundred connections of a flood."""
    for module, name in ((review_client, "TIMEOUT"), (review_client, "_ENDPOINT_TIMEOUT"), (access_review, "TIMEOUT")):
        monkeypatch.setattr(module, name, 100.0)
    monkeypatch.setattr(token_union, "_TIMEOUT", 100.0)


@pytest.fixture
def authenticating_proxy(reactor: Any, nothing_left_open: None) -> Iterator[AuthenticatingProxy]:
    proxy = AuthenticatingProxy(reactor)
    pytest_twisted.blockon(Deferred.fromCoroutine(proxy.open()))
    yield proxy
    pytest_twisted.blockon(Deferred.fromCoroutine(proxy.close()))


def bearer(token: bytes) -> bytes:
    return b"Authorization: Bearer " + token


def status(code: int, reason: str, message: str, **more: Any) -> bytes:
    """A Status as the proxy writes it."""
    content = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason:
        content["reason"] = reason
    return json.dumps({**content, **more, "code": code}, separators=(",", ":")).encode() + b"\n"


def request(*fields: bytes, host: str = NAME, target: bytes = b"/api/v1/pods", method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", b"Host: " + host.encode(), *fields, b"", b""])


__all__ = ["AuthenticatingProxy", "authenticating_proxy", "bearer", "request", "status"]
