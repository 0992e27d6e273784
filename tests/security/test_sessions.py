"""A watch does not outlive the credential that opened it: certificates, tokens and reviews, over real TLS."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.proxy import sessions
from tests.identity.certificates import CLIENT, NO_AUTHORITY, NOW, user
from tests.proxy.harness import Client
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    AuthenticatingProxy,
    bearer,
    ca,
    corp,
    holder,
    id_token,
    pem,
    request,
)

WATCH = b"/api/v1/pods?watch=1"
EVENT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_CHECK_INTERVAL", 0.2)
    monkeypatch.setattr(sessions, "_RELOAD_SPREAD", 0.05)


async def serve(proxy: AuthenticatingProxy, *, ends: bool = True, **changed: Any) -> None:
    """`changed` are fields of the authentication set."""
    guests = model.Authentication(name="guests", client_ca=pem("others"))
    made = proxy.configuration(authentication=(corp(**changed), guests))
    limits = model.SessionsConfig(end_with_credential=ends)
    await proxy.serve(replace(made, servers=tuple(replace(server, sessions=limits) for server in made.servers)))


async def watch(proxy: AuthenticatingProxy, *fields: bytes, **how: Any) -> Client:
    proxy.east.reply = lambda end: end.send(EVENT) if end.received.endswith(b"\r\n\r\n") else None
    client = await proxy.asks(request(*fields, target=WATCH), **how)
    await proxy.until(lambda: client.received.endswith(b"{}\n\r\n"), "the watch")
    return client


async def ends(proxy: AuthenticatingProxy, client: Client) -> None:
    await proxy.until(lambda: client.received.endswith(b"\r\n0\r\n\r\n"), "the clean end")
    await proxy.until(lambda: proxy.records[-1:] and proxy.records[-1].reason == "credential_ended", "its record")


async def goes_on(proxy: AuthenticatingProxy, client: Client) -> None:
    await proxy.turns(200)
    assert not client.over
    assert client.received.endswith(b"{}\n\r\n")


async def test_a_ca_that_a_reload_removes(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    await serve(proxy)
    client = await watch(proxy, certificate=holder("clients", "alice", "dev"))
    await serve(proxy)
    await goes_on(proxy, client)
    await serve(proxy, client_ca=pem("others"))
    await ends(proxy, client)


@pytest.mark.slow
async def test_a_certificate_that_expires(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    await serve(proxy)
    until = (time.time() + 10.0 - NOW) / 86400  # days
    short = ca("clients").issue(user("alice"), NO_AUTHORITY, CLIENT, valid=(-400, until))
    client = await watch(proxy, certificate=short)
    await ends(proxy, client)


async def test_a_line_of_the_token_file(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    await serve(proxy)
    client = await watch(proxy, bearer(ALICE_TOKEN))
    await goes_on(proxy, client)
    await serve(proxy, token_file=None)
    await ends(proxy, client)


async def test_an_id_token_of_an_issuer_that_a_reload_removes(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    await serve(proxy)
    client = await watch(proxy, bearer(id_token(exp=time.time() + 600)))
    await goes_on(proxy, client)
    await serve(proxy, oidc=())
    await ends(proxy, client)


async def test_a_token_that_its_reviewer_accepts_no_longer(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    proxy.verdict = lambda _: {"authenticated": True, "user": {"username": "carol"}}
    await serve(proxy, token_review=model.TokenReview(cluster="judge", cache_success=0.3, cache_failure=0.3))
    client = await watch(proxy, bearer(b"reviewed-0123456789"))
    await proxy.until(lambda: len(proxy.asked) >= 2, "another review, since the cached answer has lapsed")
    await goes_on(proxy, client)
    proxy.verdict = lambda _: {"authenticated": False}
    await ends(proxy, client)


async def test_a_reviewer_that_is_down_ends_nothing(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    proxy.verdict = lambda _: {"authenticated": True, "user": {"username": "carol"}}
    await serve(proxy, token_review=model.TokenReview(cluster="judge", cache_success=0.3, cache_failure=0.3))
    client = await watch(proxy, bearer(b"reviewed-0123456789"))
    proxy.judge_breaks()
    await goes_on(proxy, client)


async def test_without_the_setting_it_goes_on(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = authenticating_proxy
    await serve(proxy, ends=False)
    client = await watch(proxy, bearer(ALICE_TOKEN))
    await serve(proxy, ends=False, token_file=None)
    await goes_on(proxy, client)
