"""A TokenReview webhook over real TLS: what it is asked, what of its answers is believed, and when it is down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme

from mcproxy.config import model
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused, Unavailable
from mcproxy.identity.authentication.token_review import TokenReviewer, webhook
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import settled
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.identity.conftest import Logged
from tests.upstream.fakes import real_pools
from tests.upstream.https_server import HTTPSServer


class Site:
    """A webhook that knows one token."""

    def __init__(self, reactor: Any) -> None:
        self.server = HTTPSServer(reactor, trustme.CA(), "127.0.0.1", respond=self._respond)
        self.server.start()
        self.shared = UpstreamContext.of(reactor, real_pools(reactor))
        self.user: dict[str, Any] = {"username": "alice", "uid": "7", "groups": ["dev"]}
        self.status = 200
        self.raw: bytes | None = None

    def config(self, **more: Any) -> model.Webhook:
        endpoint = model.EndpointConfig(
            name="w", scheme="https", host="127.0.0.1", port=self.server.port, path="/v1/review"
        )
        usual = {
            "kubeconfig": model.KubeconfigReference("/etc/webhook.kubeconfig", "default"),
            "endpoint": endpoint,
            "tls": model.ClusterTLS(ca=model.PEMFile("ca.crt", self.server.ca.cert_pem.bytes())),
            "credentials": model.Credentials(token=model.Secret("proxys-own")),
        }
        return model.Webhook(**{**usual, **more})

    def _respond(self, request: Any) -> bytes:
        request.setResponseCode(self.status)
        if self.raw is not None:
            return self.raw
        review = json.loads(self.server.seen[-1].body)
        good = review["spec"]["token"] == "good"
        review["status"] = {"authenticated": True, "user": self.user} if good else {"error": "unknown token"}
        return json.dumps(review).encode()


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.server.stop()


@pytest.fixture
def make(site: Site) -> Iterator[Callable[..., TokenReviewer]]:
    made: list[TokenReviewer] = []

    def make(**more: Any) -> TokenReviewer:
        made.append(webhook(site.config(**more), site.shared))
        return made[-1]

    yield make
    for one in made:
        one.stop(())


async def test_it_is_asked_at_its_own_url_with_the_credential_of_its_kubeconfig(site: Site, make: Any) -> None:
    authenticator = make(cache_success=60.0, cache_failure=5.0)
    assert await authenticator.authenticate(b"good") == Accepted(UserInfo("alice", ("dev",), "7"))
    (seen,) = site.server.seen
    assert (seen.method, seen.uri) == ("POST", "/v1/review")
    assert json.loads(seen.body) == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": "good"},
    }
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["authorization"] == "Bearer proxys-own"
    assert (authenticator.name, authenticator.cluster, authenticator.cache_times) == (
        "webhook",
        "",
        CacheTimes(60.0, 5.0),
    )


@pytest.mark.parametrize("asked", list(model.ReviewVersion))
@pytest.mark.parametrize("answered", list(model.ReviewVersion))
async def test_it_is_asked_in_the_version_of_the_file_and_may_answer_in_either(
    site: Site, make: Any, asked: model.ReviewVersion, answered: model.ReviewVersion
) -> None:
    status = {"authenticated": True, "user": site.user}
    said = {"apiVersion": f"authentication.k8s.io/{answered}", "kind": "TokenReview", "status": status}
    site.raw = json.dumps(said).encode()
    assert await make(version=asked).authenticate(b"good") == Accepted(UserInfo("alice", ("dev",), "7"))
    assert json.loads(site.server.seen[0].body)["apiVersion"] == f"authentication.k8s.io/{asked}"


@pytest.mark.parametrize(
    "version", ["authentication.k8s.io/v1alpha1", "authentication.k8s.io/v2", "v1", "", None, 7, []]
)
async def test_any_other_version_is_no_answer(site: Site, make: Any, version: Any) -> None:
    said = {"apiVersion": version, "kind": "TokenReview", "status": {"authenticated": True, "user": site.user}}
    site.raw = json.dumps(said).encode()
    assert isinstance(await make().authenticate(b"good"), Unavailable)


async def test_a_token_that_it_does_not_know_is_refused(site: Site, make: Any, logged: Logged) -> None:
    assert await make().authenticate(b"bad") == Refused("unknown token")
    assert await make().authenticate(b"\xff\xfe") == Refused("the token is no text")
    assert len(site.server.seen) == 1
    assert logged == []


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_an_answer_that_blames_the_question_is_about_the_token(
    site: Site, make: Any, logged: Logged, status: int
) -> None:
    site.status = status
    assert isinstance(await make().authenticate(b"good"), Refused)
    assert logged == []


@pytest.mark.parametrize("status", [301, 302, 401, 403, 404, 429, 500, 503])
async def test_any_other_status_is_a_webhook_that_cannot_judge(
    site: Site, make: Any, logged: Logged, status: int
) -> None:
    site.status = status
    authenticator = make()
    for _ in range(2):
        result = await authenticator.authenticate(b"s3cret-token")
        assert isinstance(result, Unavailable)
        assert str(status) in result.cause
    (line,) = logged.texts("warn")
    assert "reviewer=webhook" in line
    assert ' cause="it ' in line
    if status in (401, 403):
        assert "/etc/webhook.kubeconfig" in logged[0]["todo"]
    site.status = 200
    await authenticator.authenticate(b"s3cret-token")
    assert [line.split(" msg=")[0] for line in logged.texts("info")] == ["level=info event=reviewer_ready"]
    assert "s3cret" not in logged.everything()
    assert "proxys-own" not in logged.everything()


@pytest.mark.parametrize("raw", [b"", b"<html>", b"{}", b'{"kind":"TokenReview"}', b"[" * 5000, b"\xff"])
async def test_an_answer_that_is_no_review_is_not_believed(site: Site, make: Any, raw: bytes) -> None:
    site.raw = raw
    assert isinstance(await make().authenticate(b"good"), Unavailable)


async def test_an_answer_without_end_is_cut_off(site: Site, make: Any) -> None:
    site.raw = b" " * (1024 * 1024 + 1)
    result = await make().authenticate(b"good")
    assert isinstance(result, Unavailable)
    assert "more than" in result.cause


async def test_a_webhook_that_is_not_who_it_should_be_gets_no_token(site: Site, make: Any) -> None:
    other = model.ClusterTLS(ca=model.PEMFile("other", trustme.CA().cert_pem.bytes()))
    named = model.ClusterTLS(ca=site.config().tls.ca, server_name="webhook.example.com")
    for tls in (other, named):
        assert isinstance(await make(tls=tls).authenticate(b"good"), Unavailable)
    assert site.server.seen == []


async def test_nobody_there_is_a_webhook_that_is_down(site: Site, make: Any, logged: Logged) -> None:
    await site.server.stop()
    result = await make().authenticate(b"good")
    assert isinstance(result, Unavailable)
    assert "refused the connection" in result.cause
    assert len(logged.texts("warn")) == 1


async def test_in_a_chain_it_may_name_no_system_user(site: Site) -> None:
    site.user = {"username": "system:admin", "groups": ["system:masters"]}
    config = model.Authentication(name="corp", webhook=site.config())
    union = UnionTokenAuthenticator.build(config, cluster=None, live=None, shared=site.shared)
    assert union is not None
    with pytest.raises(StatusError) as caught:
        await settled(union.authenticate(b"good"))
    assert caught.value.code == 401
    union.stop()


async def test_in_a_chain_it_is_asked_once_and_its_system_groups_are_dropped(site: Site) -> None:
    site.user = {"username": "alice", "groups": ["system:masters", "dev"]}
    config = model.Authentication(name="corp", webhook=site.config())
    union = UnionTokenAuthenticator.build(config, cluster=None, live=None, shared=site.shared)
    assert union is not None
    for _ in range(3):
        caller = await settled(union.authenticate(b"good"))
        assert caller.user.groups == ("dev", "system:authenticated")
    assert len(site.server.seen) == 1
    union.stop()
