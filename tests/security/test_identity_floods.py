"""Floods of reviews: what a stranger, or one user, leaves to the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.protocol import ClientFactory
from twisted.internet.ssl import CertificateOptions

from mcproxy.config import model
from mcproxy.http.exchange import UnreadBodies
from mcproxy.identity.authentication import token_union
from tests.proxy.harness import NAME, Client, UpstreamEnd
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    BOSS_TOKEN,
    UNAUTHORIZED,
    AuthenticatingProxy,
    bearer,
    request,
)

STRANGER, LEGITIMATE = "127.0.0.2", "127.0.0.3"


async def client_from(proxy: AuthenticatingProxy, source: str, raw: bytes) -> Client:
    """A client with a source address that has sent `raw`; it names no server by TLS, so it reaches the default one."""
    client = Client()
    factory = ClientFactory.forProtocol(lambda: client)
    factory.noisy = False
    proxy.reactor.connectSSL(
        "127.0.0.1", proxy.port(), factory, CertificateOptions(verify=False), bindAddress=(source, 0)
    )
    await proxy.until(lambda: client.transport is not None, "a connection")
    client.send(raw)
    proxy._clients.append(client)
    return client


class Reviews:
    """Reviews that came to a cluster, each answered when the test says."""

    def __init__(self, proxy: AuthenticatingProxy) -> None:
        self.proxy = proxy
        self.held: list[tuple[UpstreamEnd, dict[str, Any]]] = []
        self.came: list[dict[str, Any]] = []

    def reply(self, end: UpstreamEnd) -> None:
        head, separator, rest = end.received[end.answered :].partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if not separator or not length or len(rest) < int(length[0][15:]):
            return
        end.answered = len(end.received)
        review = json.loads(rest)
        self.came.append(review["spec"])
        self.held.append((end, review))

    async def answer_first(self, **status: Any) -> None:
        """Answer the one that has waited longest, and wait for the next, which has its place now."""
        before = len(self.came)
        self.answer(0, **status)
        await self.proxy.until(lambda: len(self.came) > before, "the next review")

    def answer(self, index: int, **status: Any) -> None:
        end, review = self.held.pop(index)
        self.proxy.answer_review(end, {**review, "status": status})


def token(kind: str, number: int) -> bytes:
    return f"{kind}-token-of-nobody-in-particular-{number}".encode()


@pytest.mark.usefixtures("patient_reviews")
async def test_strangers_tokens_leave_places_to_others(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    reviews = Reviews(proxy)
    proxy.judge.reply = reviews.reply
    for number in range(80):  # more than the 64 places that an address may hold
        await client_from(proxy, STRANGER, request(bearer(token("made-up", number))))
    await proxy.until(lambda: len(reviews.came) >= 64)
    legitimate = await client_from(proxy, LEGITIMATE, request(bearer(token("good", 0))))
    await proxy.until(lambda: len(reviews.came) == 65)
    assert reviews.came[64]["token"] == token("good", 0).decode()
    reviews.answer(64, authenticated=True, user={"username": "carol"})
    assert (await proxy.answered(legitimate))[0] == 200


@pytest.mark.usefixtures("patient_reviews")
async def test_a_queue_that_strangers_filled_makes_room_and_gives_a_turn(
    authenticating_proxy: AuthenticatingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,300 tokens against 256 places and a queue of 960, on the scale of 4 places and a queue of 8."""
    for name, value in (("_PLACES", 4), ("_SHARE", 1), ("_MAX_WAITING", 8)):
        monkeypatch.setattr(token_union, name, value)
    proxy = authenticating_proxy
    reviews = Reviews(proxy)
    proxy.judge.reply = reviews.reply
    # Another set of authenticators than the fixture's, since one that did not change would be kept.
    stage_configuration = proxy.configuration()
    corp, guests = stage_configuration.authentication
    changed = model.Authentication(name="guests", client_ca=guests.client_ca)
    await proxy.serve(proxy.configuration(authentication=(with_reviews(corp, cache_failure=0.0), changed)))
    strangers = [
        await client_from(proxy, f"127.0.1.{source}", request(bearer(token(f"made-up-{source}", number))))
        for number in range(6)
        for source in range(1, 5)
    ]
    await proxy.until(lambda: len(reviews.came) == 4)
    await proxy.until(lambda: sum(b" 503 " in each.received for each in strangers) == 12)
    legitimate = await client_from(proxy, LEGITIMATE, request(bearer(token("good", 0))))
    await proxy.until(lambda: sum(b" 503 " in each.received for each in strangers) == 13, "room for it")
    assert legitimate.received == b""  # it waits, and has not been refused
    for _ in range(5):
        await reviews.answer_first(authenticated=False)
        if reviews.came[-1]["token"] == token("good", 0).decode():
            break
    assert reviews.came[-1]["token"] == token("good", 0).decode()
    reviews.answer(-1, authenticated=True, user={"username": "carol"})
    assert (await proxy.answered(legitimate))[0] == 200


def with_reviews(corp: model.Authentication, **settings: Any) -> model.Authentication:
    return model.Authentication(
        name="corp", token_file=corp.token_file, token_review=model.TokenReview(cluster="judge", **settings)
    )


@pytest.mark.usefixtures("patient_reviews")
async def test_an_address_whose_tokens_fail_waits_behind_others(
    authenticating_proxy: AuthenticatingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_PLACES", 1), ("_SHARE", 1)):
        monkeypatch.setattr(token_union, name, value)
    proxy = authenticating_proxy
    corp, guests = proxy.configuration().authentication
    await proxy.serve(proxy.configuration(authentication=(with_reviews(corp), guests)))
    for number in range(5):
        stranger = await client_from(proxy, STRANGER, request(bearer(token("made-up", number))))
        assert await proxy.answered(stranger) == (401, UNAUTHORIZED)
    reviews = Reviews(proxy)
    proxy.judge.reply = reviews.reply
    await client_from(proxy, "127.0.0.9", request(bearer(token("slow", 0))))
    await proxy.until(lambda: len(reviews.came) == 1)
    for number in range(5, 8):
        await client_from(proxy, STRANGER, request(bearer(token("made-up", number))))
    for number in range(3):
        await client_from(proxy, LEGITIMATE, request(bearer(token("good", number))))
    await proxy.until(lambda: proxy.waiting() == 6, "those that wait")
    for _ in range(4):
        await reviews.answer_first(authenticated=True, user={"username": "carol"})
    assert [spec["token"].split("-")[0] for spec in reviews.came] == ["slow", "good", "good", "good", "made"]


@pytest.mark.usefixtures("patient_reviews")
async def test_one_users_reviews_of_access_leave_another_his_turn(authenticating_proxy: AuthenticatingProxy) -> None:
    """900 requests of one user, on the scale of 100."""
    proxy = authenticating_proxy
    delegated = model.Authorization(name="rules", subject_access_review=model.SubjectAccessReview(cluster="judge"))
    await proxy.serve(proxy.configuration(authorization=(delegated,)))
    reviews = Reviews(proxy)
    proxy.judge.reply = reviews.reply
    for number in range(100):
        target = f"/api/v1/namespaces/n{number}/pods".encode()
        await client_from(proxy, STRANGER, request(bearer(ALICE_TOKEN), target=target))
    await proxy.until(lambda: len(reviews.came) == 64)
    boss = await client_from(proxy, LEGITIMATE, request(bearer(BOSS_TOKEN)))
    await proxy.until(lambda: proxy.waiting() == 37, "those that wait")
    assert len(reviews.came) == 64
    for _ in range(2):
        await reviews.answer_first(allowed=True)
    assert "boss" in [spec["user"] for spec in reviews.came[64:]]
    index = next(number for number, (_, review) in enumerate(reviews.held) if review["spec"]["user"] == "boss")
    reviews.answer(index, allowed=True)
    assert (await proxy.answered(boss))[0] == 200


@pytest.mark.usefixtures("patient_reviews")
async def test_bodies_that_wait_for_a_review_are_bounded_over_all_connections(
    authenticating_proxy: AuthenticatingProxy,
) -> None:
    proxy = authenticating_proxy
    factory = proxy.service.listeners[0].factory
    bodies = factory.unread_bodies = UnreadBodies(most=1000)
    waiting: list[dict[str, Any]] = []
    proxy.verdict = lambda review: waiting.append(review)  # and says nothing
    post = b"POST /api/v1/namespaces/a/pods HTTP/1.1\r\nHost: %b\r\n%b\r\nContent-Length: 500\r\n\r\n"
    held = [
        await proxy.asks(post % (NAME.encode(), bearer(b"a-token-that-is-reviewed-%d" % number)) + b"x" * 240)
        for number in range(2)
    ]
    await proxy.until(lambda: bodies.size == 480, "two bodies that wait")
    for number in range(2, 4):
        client = await proxy.asks(post % (NAME.encode(), bearer(b"a-token-that-is-reviewed-%d" % number)) + b"x" * 100)
        await proxy.answered(client)
        code, fields, body = client.answer()
        assert (code, fields["retry-after"], json.loads(body)["reason"]) == (503, "1", "ServiceUnavailable")
    assert [line for line in proxy.log_lines() if "unread_bodies_limit_reached" in line] == proxy.log_lines()[-1:]
    for client in held:
        client.abort()
    for end in proxy.judge.connections:
        proxy.answer_review(end, {**waiting[0], "status": {"authenticated": False}})
    await proxy.until(lambda: bodies.size == 0, "all is given back")
    assert proxy.forwarded == b""
