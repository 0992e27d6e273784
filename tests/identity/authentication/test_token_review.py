"""TokenReview by a cluster: when it is unavailable, what is logged, and that a reload's cluster is used.

The wire is real TLS where it matters: to the golden answers, and for the credential that is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused, TokenResult, Unavailable
from mcproxy.identity.authentication.token_review import TokenReviewer, token_review_authenticator
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.requests.coroutines import known, settled
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlResponse
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.identity.conftest import Logged
from tests.identity.fake_review_cluster import FakeCluster
from tests.support.clock import Clock
from tests.upstream.fakes import cluster_config, real_pools
from tests.upstream.https_server import HTTPSServer

GOLDEN = Path(__file__).parents[2] / "golden" / "auth"


def recorded(name: str) -> tuple[bytes, Any]:
    """Return the token that was asked about, and the response."""
    content = json.loads((GOLDEN / f"tokenreview-{name}.json").read_text())
    return json.loads(content["request"]["body"])["spec"]["token"].encode(), content["response"]


SUCCESS = ControlResponse(201, (), recorded("valid-static")[1]["body"].encode())


class Bench:
    def __init__(self, **answers: Any) -> None:
        self.clock = Clock()
        self.cluster: FakeCluster = FakeCluster(self.clock, answers)
        self.authenticator = token_review_authenticator(
            model.TokenReview(), "east", lambda: cast(Any, self.cluster), self.clock
        )

    def ask(self, token: bytes = b"s3cret-token") -> TokenResult:
        result: list[TokenResult] = []
        Deferred.fromCoroutine(self.authenticator.authenticate(token)).addCallback(result.append)
        return result[0]

    @property
    def asked(self) -> list[str]:
        return [name for name, _ in self.cluster.asked]


def test_a_cluster_that_refuses_the_proxy_itself_cannot_judge(logged: Logged) -> None:
    bench = Bench(a=ControlResponse(401, (), b"{}"), b=SUCCESS)
    for _ in range(3):
        assert isinstance(bench.ask(), Unavailable)
    assert bench.asked == ["a"] * 3
    assert len(logged.texts("warn")) == 1
    assert "tokenReview by cluster east" in logged.texts("warn")[0]
    assert "s3cret" not in logged.everything()


def test_a_cluster_that_blames_the_question_can_still_judge(logged: Logged) -> None:
    assert isinstance(Bench(a=ControlResponse(400, (), b"{}")).ask(), Refused)
    assert logged == []


def test_one_line_tells_of_trouble_of_one_kind_and_one_of_its_end(logged: Logged) -> None:
    bench = Bench()
    for _ in range(5):
        assert isinstance(bench.ask(), Unavailable)  # with another number of seconds each time
        bench.clock.advance(1)
    assert len(logged) == 1
    bench.cluster = FakeCluster(bench.clock, {"a": CredentialError("cannot read the token file /x")})
    bench.ask()
    bench.ask()
    assert len(logged) == 2
    bench.cluster = FakeCluster(bench.clock, {"a": SUCCESS})
    bench.ask()
    bench.ask()
    assert [event["log_level"].name for event in logged] == ["warn", "warn", "info"]


def test_the_cluster_of_now_is_asked() -> None:
    bench = Bench(a=SUCCESS)
    old = bench.cluster
    bench.cluster = FakeCluster(bench.clock, {"b": SUCCESS})
    bench.ask()
    assert bench.asked == ["b"]
    assert old.asked == []


# over the wire


class Site:
    """A cluster's API server that answers as recorded."""

    def __init__(self, reactor: Any) -> None:
        self.server = HTTPSServer(reactor, trustme.CA(), "127.0.0.1", respond=self._respond)
        self.server.start()
        self.shared = UpstreamContext.of(reactor, real_pools(reactor))
        endpoint = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=self.server.port)
        tls = model.ClusterTLS(ca=model.PEMFile("ca.crt", self.server.ca.cert_pem.bytes()))
        credentials = model.Credentials(token=model.Secret("proxys-own"))
        self.cluster = Cluster(cluster_config(endpoint, tls=tls, credentials=credentials), self.shared)
        self.answer: Any = {}

    def authenticator(self, **more: Any) -> TokenReviewer:
        return token_review_authenticator(model.TokenReview(**more), "east", lambda: self.cluster, self.shared.reactor)

    def _respond(self, request: Any) -> bytes:
        request.setResponseCode(self.answer["status"])
        body: bytes = self.answer["body"].encode()
        return body


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.cluster.stop()
    site.server.stop()


async def test_a_review_over_the_wire_is_what_was_recorded(site: Site) -> None:
    token, site.answer = recorded("valid-sa")
    authenticator = site.authenticator(cache_success=60.0, cache_failure=5.0)
    result = await authenticator.authenticate(token)
    assert isinstance(result, Accepted)
    assert result.user.name == "system:serviceaccount:demo:builder"
    (seen,) = site.server.seen
    assert (seen.method, seen.uri) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert seen.headers["authorization"] == "Bearer proxys-own"
    assert json.loads(seen.body)["spec"] == {"token": token.decode()}
    assert (authenticator.cluster, authenticator.cache_times) == ("east", CacheTimes(60.0, 5.0))


async def test_audiences_are_asked_for(site: Site) -> None:
    token, site.answer = recorded("audience")
    audiences = ("https://other.example.com",)
    assert isinstance(await site.authenticator(audiences=audiences).authenticate(token), Refused)
    assert json.loads(site.server.seen[0].body)["spec"]["audiences"] == list(audiences)


async def test_without_the_right_to_review_it_is_503_and_the_right_is_named(site: Site, logged: Logged) -> None:
    token, site.answer = recorded("forbidden")
    assert isinstance(await site.authenticator().authenticate(token), Unavailable)
    assert "mcproxy rbac" in logged[0]["todo"]


async def test_a_service_account_counts_towards_the_cluster_that_knows_it(site: Site) -> None:
    token, site.answer = recorded("valid-sa")
    for share in (False, True):
        config = model.Authentication(name="c", token_review=model.TokenReview(), share_service_accounts=share)
        union = UnionTokenAuthenticator.build(
            config, cluster=site.cluster.config, live=lambda: site.cluster, shared=site.shared
        )
        assert union is not None
        found = await settled(union.authenticate(token))
        assert (found.cluster, found.shares_accounts) == ("east", share)
        assert known(union.authenticate(token)) == await settled(union.authenticate(token))
        union.stop()
    assert len(site.server.seen) == 2
