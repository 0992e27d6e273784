"""Secrets are never written: whatever way a token takes, whatever breaks on it, and whoever asks for a dump."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from twisted.python.failure import Failure

from mcproxy.config.dump import effective, to_json, to_yaml
from mcproxy.daemon.log_lines import format_text as format_line
from mcproxy.identity import upstream_identity_headers
from mcproxy.identity.authentication import token_review
from mcproxy.identity.authentication.authenticator import Authenticator
from mcproxy.identity.authentication.oidc.oidc_authenticator import OIDCAuthenticator
from mcproxy.identity.authentication.token_cache import TokenHash
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.identity.authorization.authorizer import Authorizer
from mcproxy.identity.client_identity_headers import IdentityHeaders
from mcproxy.observe.record import AccessRecord
from mcproxy.proxy.client_connection import ClientConnectionInfo
from mcproxy.proxy.forward import Forward
from tests.identity import issuer
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    ALL,
    BOSS_TOKEN,
    LENT,
    MALLORY_TOKEN,
    ROOT_TOKEN,
    AuthenticatingProxy,
    bearer,
    id_token,
    request,
)
from tests.support.attributes import is_compiled

REVIEWED = b"reviewed-0123456789-secret-token"
GUESSED = b"guessed-0123456789-secret-token"
LATE = b"late-0123456789-very-secret-token"  # sent when no reviewer answers
OFFERED = b"Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io."

#: Where the identity room and the pipeline hold a token, or are called by what does.
PLACES: list[tuple[Any, str]] = [
    (Authenticator, "authenticate"),
    (UnionTokenAuthenticator, "authenticate"),
    (UnionTokenAuthenticator, "_ask"),
    (UnionTokenAuthenticator, "_cache_result"),
    (TokenHash, "__call__"),
    (OIDCAuthenticator, "authenticate"),
    (token_review, "encode_review"),
    (token_review, "decode_review"),
    (Authorizer, "decide"),
    (upstream_identity_headers, "upstream_fields_for"),
    (ClientConnectionInfo, "identity_headers"),
    (Forward, "send"),
    (Forward, "_send"),
]


class Tokens:
    """All that is secret in a test, in each form in which it might be written."""

    def __init__(self) -> None:
        self.id = id_token()
        self.expired = id_token(exp=1)
        plain = (ALICE_TOKEN, BOSS_TOKEN, MALLORY_TOKEN, ROOT_TOKEN, LENT, REVIEWED, GUESSED, LATE)
        encoded = [issuer.b64(token).encode() for token in plain]
        parts = [part for token in (self.id, self.expired) for part in token.split(b".")[1:]]
        self.secrets = [secret[:16].decode() for secret in (*plain, *encoded, *parts)]

    def ways(self) -> list[bytes]:
        """Requests with tokens in all ways, good and bad."""
        host: dict[str, Any] = {"host": ALL, "target": b"/clusters/pass/api/v1/pods"}
        tokens = (ALICE_TOKEN, MALLORY_TOKEN, ROOT_TOKEN, REVIEWED, GUESSED, self.id, self.expired)
        offers = [OFFERED + issuer.b64(token).encode() for token in (ALICE_TOKEN, GUESSED)]
        fields = [*map(bearer, tokens), *offers, bearer(GUESSED * 1000), b"Authorization: Basic " + GUESSED]
        return [
            *[request(field) for field in fields],
            *[request(field, **host) for field in fields],
            request(bearer(ALICE_TOKEN), b"Impersonate-User: admin"),
            request(bearer(BOSS_TOKEN), b"Impersonate-User: carol", b"Impersonate-Extra-Scopes: a"),
            request(bearer(ALICE_TOKEN), bearer(BOSS_TOKEN)),
            request(bearer(ALICE_TOKEN), b"Connection: authorization"),
            request(bearer(ALICE_TOKEN) + b"\x00"),
            request(bearer(ALICE_TOKEN) + b"\n"),
            request(target=b"/api/v1/pods?token=" + GUESSED),
            request(bearer(GUESSED * 50_000)),
        ]

    async def go(self, proxy: AuthenticatingProxy) -> None:
        for raw in self.ways():
            name = "127.0.0.1" if b"Host: all" in raw else "k8s.test"
            await proxy.answer(raw, server_name=name)

    def seen_in(self, text: str) -> list[str]:
        return [secret for secret in self.secrets if secret in text]


def reviewing(review: dict[str, Any]) -> dict[str, Any]:
    token = review["spec"]["token"]
    if token == REVIEWED.decode():
        return {"authenticated": True, "user": {"username": "carol", "extra": {"scopes": ["a"]}}}
    return {"authenticated": False, "error": f"no such token: {token[:20]}…"}


def written(proxy: AuthenticatingProxy) -> str:
    """The log at its most talkative, with the longest tracebacks that Twisted writes; access logs; dumps."""
    failures = [event["log_failure"] for event in proxy.events if isinstance(event.get("log_failure"), Failure)]
    tracebacks = [failure.getTraceback(detail=detail) for failure in failures for detail in ("default", "verbose")]
    runtime = proxy.service.runtime
    assert runtime is not None
    document = effective(runtime.config)
    lines = map(format_line, proxy.events)
    return "\n".join([proxy.output(), *lines, *tracebacks, to_json(document), to_yaml(document), repr(runtime.config)])


async def test_no_way_of_a_token_leaves_it_anywhere(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy, tokens = authenticating_proxy, Tokens()
    proxy.verdict = reviewing
    await tokens.go(proxy)
    proxy.judge_breaks()
    await tokens.go(proxy)
    await proxy.answer(request(bearer(LATE)))
    assert {record.status for record in proxy.records} == {200, 400, 401, 403, 503}
    assert tokens.seen_in(written(proxy)) == []


async def test_no_object_shows_one(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy, tokens = authenticating_proxy, Tokens()
    proxy.verdict = reviewing
    held = [await proxy.client() for _ in tokens.ways()[:-1]]
    for client, raw in zip(held, tokens.ways(), strict=False):
        client.send(raw)
        await proxy.answered(client)
    kinds: set[str] = set()
    for thing in gc.get_objects():
        # A record has the query as it was sent; what is written of it is masked.
        if str(type(thing).__module__).startswith("mcproxy.") and not isinstance(thing, AccessRecord):
            kinds.add(type(thing).__name__)
            assert tokens.seen_in(repr(thing)) == []
    assert kinds >= {
        "UnionTokenAuthenticator",
        "Authenticator",
        "OIDCAuthenticator",
        "TokenFileAuthenticator",
        "IdentityHeaders",
        "ClientConnectionInfo",
        "AuthenticatedUser",
    }


# A method of a compiled class cannot be replaced; the interpreted build has the same lines of code.
@pytest.mark.parametrize(
    ("owner", "name"),
    [place for place in PLACES if not is_compiled(place[0])],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_nor_does_a_part_that_breaks(
    authenticating_proxy: AuthenticatingProxy, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    proxy, tokens = authenticating_proxy, Tokens()
    proxy.verdict = reviewing

    def breaks(*arguments: Any, **_: Any) -> Any:
        secret_in_a_local_variable = [getattr(each, "token", each) for each in arguments]
        raise RuntimeError(f"broken with {len(secret_in_a_local_variable)} arguments")

    monkeypatch.setattr(owner, name, breaks)
    answers = [
        await proxy.answer(request(field))
        for field in (bearer(ALICE_TOKEN), bearer(REVIEWED), bearer(tokens.id), bearer(GUESSED))
    ]
    monkeypatch.undo()
    assert 500 in [code for code, _ in answers]
    assert all(tokens.seen_in(body.decode()) == [] for _, body in answers)
    bugs = [line for line in proxy.log_lines() if "traceback=" in line]
    assert bugs
    assert all("broken with" in line and line.count("\n") == 1 for line in bugs)
    assert tokens.seen_in(written(proxy)) == []
    await proxy.passes(request(bearer(ALICE_TOKEN)))  # nothing was left behind that refuses the next


def test_what_a_token_passes_through_shows_nothing() -> None:
    presented = IdentityHeaders(bearer(ALICE_TOKEN))
    presented.token = ALICE_TOKEN
    assert repr(presented) == "<IdentityHeaders>"
