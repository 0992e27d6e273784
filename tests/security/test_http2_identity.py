"""Over HTTP/2 nobody becomes somebody else: each stream has the identity of its own request, judged as in HTTP/1.1."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from mcproxy.config import model
from tests.http.h2 import raw
from tests.http.h2.raw import END_HEADERS, END_STREAM, PROTOCOL_ERROR, Field, indexing, literal
from tests.proxy.harness import NAME, OK, plain
from tests.security.authenticating_proxy import (
    ALICE_TOKEN,
    ALL,
    BOSS_TOKEN,
    MALLORY_TOKEN,
    OTHER,
    AuthenticatingProxy,
    holder,
)
from tests.security.http2_attacker import (
    H2_LISTENER,
    POD,
    HTTP1Request,
    answering_bodies,
    attacker,
    http1_requests,
)

TOKENS = {b"alice": ALICE_TOKEN, b"boss": BOSS_TOKEN, b"mallory": MALLORY_TOKEN}


def bearer(token: bytes) -> Field:
    return b"authorization", b"Bearer " + token


ALICE, BOSS = bearer(ALICE_TOKEN), bearer(BOSS_TOKEN)


async def opened(proxy: AuthenticatingProxy, **changed: Any) -> AuthenticatingProxy:
    """The proxy of the fixture with HTTP/2 on its listener."""
    proxy.service.abort()
    proxy.lines.clear()
    await proxy.serve(proxy.configuration(listeners=(H2_LISTENER,), **changed))
    await proxy.ready()
    return proxy


def _forwarded(received: bytes) -> list[tuple[bytes, bytes, list[Field]]]:
    """Method, target and fields of the requests; without what names a connection or its client's port."""
    return [(one.method, one.target, sorted(one.fields)) for one, _, _ in http1_requests(received)]


# -- the same as in HTTP/1.1 ----------------------------------------------------------------------------------------

FIELDS: tuple[tuple[Field, ...], ...] = (
    (),
    (ALICE,),
    (ALICE, ALICE),
    (ALICE, BOSS),
    ((b"authorization", b""),),
    ((b"authorization", b"Basic YTpi"),),
    ((b"authorization", b"bearer " + ALICE_TOKEN),),
    ((b"authorization", b"Bearer  " + ALICE_TOKEN),),
    ((b"authorization", b"Bearer " + ALICE_TOKEN + b", Bearer " + BOSS_TOKEN),),
    ((b"authorization", b"Bearer\t" + ALICE_TOKEN),),
    ((b"Authorization".lower(), b"Bearer " + ALICE_TOKEN + b"x"),),
    ((b"proxy-authorization", b"Bearer " + BOSS_TOKEN), ALICE),
    ((b"sec-websocket-protocol", b"base64url.bearer.authorization.k8s.io." + BOSS_TOKEN.hex().encode()),),
    (ALICE, (b"impersonate-user", b"root")),
    (BOSS, (b"impersonate-user", b"root")),
    (BOSS, (b"impersonate-user", b"root"), (b"impersonate-user", b"carol")),
    (
        BOSS,
        (b"impersonate-user", b""),
    ),
    (BOSS, (b"impersonate-group", b"system:masters")),
    (BOSS, (b"impersonate-user", b"carol"), (b"impersonate-group", b"a"), (b"impersonate-group", b"b")),
    (BOSS, (b"impersonate-user", b"carol"), (b"impersonate-extra-scopes", b"x")),
    (BOSS, (b"impersonate-user", b"carol"), (b"impersonate-extra-a%2fb", b"x")),
    (BOSS, (b"impersonate-user", b"carol"), (b"impersonate-uid", b"7")),
    (ALICE, (b"impersonate_user", b"root")),
    (ALICE, (b"impersonate-user_", b"root")),
    (ALICE, (b"impersonate_group", b"system:masters")),
    (BOSS, (b"impersonate_user", b"root"), (b"impersonate-user", b"carol")),
    (ALICE, (b"impersonate", b"root")),
    (ALICE, (b"impersonate-", b"root")),
    (ALICE, (b"x-remote-user", b"root")),
    (ALICE, (b"x_remote_user", b"root"), (b"x-remote-group", b"system:masters"), (b"x-remote-extra-a", b"b")),
    (ALICE, (b"x-forwarded-for", b"6.6.6.6"), (b"forwarded", b"for=6.6.6.6"), (b"x-real-ip", b"6.6.6.6")),
    (ALICE, (b"x-forwarded-host", b"other.test"), (b"x-forwarded-proto", b"http"), (b"x-original-url", b"/x")),
    (ALICE, (b"cookie", b"a=b"), (b"via", b"1.1 x"), (b"x-http-method-override", b"DELETE")),
    (ALICE, (b"expect", b"100-continue")),
    (ALICE, (b"expect", b"something")),
    (ALICE, (b"te", b"trailers"), (b"x-a", b"1"), (b"x-a", b"2")),
    (ALICE, (b"accept-encoding", b"gzip"), (b"accept", b"application/json"), (b"user-agent", b"kubectl")),
)


async def test_fields_mean_what_they_mean_in_http1(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = await opened(authenticating_proxy)
    client = await attacker(proxy)
    for fields in FIELDS:
        lines = [name + b": " + value for name, value in fields]
        proxy.east.forget()
        proxy.east.reply = proxy.answering(answering_bodies(OK))
        head = b"\r\n".join([b"GET " + POD + b" HTTP/1.1", b"Host: " + NAME.encode(), *lines, b"", b""])
        expected = await proxy.answer(head)
        forwarded = _forwarded(plain(proxy.east.received))
        proxy.east.forget()
        proxy.east.reply = proxy.answering(answering_bodies(OK))
        assert await client.answer(*fields) == expected, fields
        assert _forwarded(plain(proxy.east.received)) == forwarded, fields
    assert client.lost is None


TARGETS = (
    b"/api/v1/pods",
    b"/api/v1/namespaces/a/pods/b?watch=1&watch=0",
    b"/clusters/west/api/v1/pods",
    b"/clusters/east/../west/api/v1/pods",
    b"/clusters/east/%2e%2e/west/api/v1/pods",
    b"/clusters/east/..%2fwest/api/v1/pods",
    b"/clusters/east/..;/west/api",
    b"/clusters/east\\..\\west/api",
    b"/clusters//west/api",
    b"//clusters/west/api",
    b"/clusters/west",
    b"/clusters/west/",
    b"/clusters/WEST/api",
    b"/clusters/nobody/api",
    b"/clusters/%77est/api/v1/pods",
    b"/%63lusters/west/api/v1/pods",
    b"/clusters/west%2fapi",
    b"/clusters/west?x=/clusters/east/",
    b"/clusters/west/api/v1/pods#x",
    b"/clusters/west/api/v1/pods%00",
    b"/clusters/west/api/v1/pods%0d%0aImpersonate-User:%20root",
    b"https://all.wild.test/clusters/west/api/v1/pods",
    b"https://k8s.test/clusters/west/api/v1/pods",
    b"*",
    b"/api/v1/pods;a=b",
    b"/a" * 17000,
)


async def test_targets_mean_what_they_mean_in_http1(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = await opened(authenticating_proxy)
    client = await attacker(proxy, ALL)
    every = (*proxy.upstreams, proxy.judge)

    def forget() -> None:
        for upstream in every:
            reply = upstream.reply
            upstream.forget()
            upstream.reply = reply

    for target in TARGETS:
        forget()
        head = b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"Host: " + ALL.encode(), b": ".join(ALICE), b"", b""])
        expected = await proxy.answer(head, server_name=ALL)
        forwarded = [_forwarded(plain(upstream.received)) for upstream in proxy.upstreams]
        forget()
        status, body = await client.answer(ALICE, authority=ALL.encode(), path=target)
        if status < 0:  # malformed by RFC 9113 8.3.1, where HTTP/1.1 has a form for it or says 400
            assert status == -PROTOCOL_ERROR
            assert not target.startswith(b"/"), target
            assert not proxy.forwarded
        else:
            assert (status, body) == expected, target
            assert [_forwarded(plain(upstream.received)) for upstream in proxy.upstreams] == forwarded, target
    assert client.lost is None


# -- what HTTP/2 has and HTTP/1.1 has not ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"Impersonate-User", b"IMPERSONATE-USER", b"impersonate-User", b"Authorization"])
async def test_upper_case_does_not_hide_a_name(authenticating_proxy: AuthenticatingProxy, name: bytes) -> None:
    proxy = await opened(authenticating_proxy)
    client = await attacker(proxy)
    assert await client.answer(ALICE, (name, b"root")) == (-PROTOCOL_ERROR, b"")
    assert proxy.forwarded == b""
    assert await client.answer(ALICE) == (200, b"{}")


async def test_trailers_carry_no_identity(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = await opened(authenticating_proxy)
    proxy.east.reply = proxy.answering(answering_bodies(OK))
    client = await attacker(proxy)
    stream = client.ask(ALICE, method=b"POST", flags=END_HEADERS)
    hidden = (
        (b"impersonate-user", b"root"),
        (b"impersonate_group", b"system:masters"),
        (b"x-remote-user", b"root"),
        (b"authorization", b"Bearer " + BOSS_TOKEN),
        (b"x-forwarded-for", b"6.6.6.6"),
        (b"content-length", b"0"),
        (b"host", b"other.test"),
        (b"x-sum", b"1"),
    )
    client.send(raw.data(stream, b"body") + raw.headers(stream, raw.fields(*hidden)))
    assert await client.outcome(stream) == (200, b"{}")
    ((one, body, trailers),) = http1_requests(proxy.east.received)
    assert one.one(b"impersonate-user") == b"alice"
    assert body == b"body"
    assert [line.lower() for line in trailers] in ([], [b"x-sum: 1"])


async def test_interleaved_streams_keep_their_users(authenticating_proxy: AuthenticatingProxy) -> None:
    """600 requests of three users and nobody on one connection: their tokens in the dynamic table or not, in pieces,
    with bodies between them, some reset; each arrives as its own user."""
    proxy = await opened(authenticating_proxy)
    proxy.east.reply = proxy.answering(answering_bodies(OK))
    client = await attacker(proxy)
    chance = random.Random(7)
    table: list[bytes] = []  # of which users the dynamic table has tokens, the newest first
    asked: dict[int, bytes] = {}
    bodies: dict[int, bytes] = {}
    for number in range(600):
        user = chance.choice([*TOKENS, b""])
        method = chance.choice((b"GET", b"POST"))
        target = b"/api/v1/namespaces/%b/pods/p%d" % (user or b"nobody", number)
        block = raw.request(method=method, path=target)
        if chance.random() < 0.7:  # as curl and browsers do it: all but the path recurs
            block = (b"\x82" if method == b"GET" else b"\x83") + b"\x87\x01" + raw.string(NAME.encode())
            block += b"\x04" + (raw.huffman(target) if number % 2 else raw.string(target))
        if user in table and chance.random() < 0.7:
            block += raw.indexed(62 + table.index(user))
        elif user:
            field = bearer(TOKENS[user])
            how = chance.choice((literal, indexing, raw.never_indexed))
            if how is indexing:
                table.insert(0, user)
            block += how(*field)
            del table[30:]
        stream = client.begins()
        end = END_STREAM if method == b"GET" else 0
        cut = chance.randrange(len(block))
        if chance.random() < 0.3:
            client.send(raw.headers(stream, block[:cut], end) + raw.continuation(stream, block[cut:]))
        else:
            client.send(raw.headers(stream, block, end | END_HEADERS))
        asked[stream] = user
        if not end:
            bodies[stream] = b""
        for other in chance.sample(list(bodies), min(len(bodies), 2)):
            piece = b"%d of %b." % (other, asked[other])
            bodies[other] += piece
            ending = chance.random() < 0.5
            client.send(raw.data(other, piece, END_STREAM if ending else 0))
            if ending:
                del bodies[other]
        if number % 10 == 0:
            await proxy.turns(1)
    for stream in list(bodies):
        client.send(raw.data(stream, b"", END_STREAM))
    await client.until(lambda: all(client.over(stream) for stream in asked), 120)
    assert {stream: client.seen.status(stream) for stream in asked} == {
        stream: 200 if user else 401 for stream, user in asked.items()
    }
    found = http1_requests_of(proxy)
    assert len(found) == sum(1 for user in asked.values() if user)
    for one, body in found:
        user = one.target.split(b"/")[4]
        assert one.one(b"impersonate-user") == user
        assert one.one(b"authorization") is not None
        assert TOKENS[user] not in b"".join(value for _, value in one.fields)
        assert all(b" of %b." % other not in body for other in (*TOKENS, b"nobody") if other != user)


def http1_requests_of(proxy: AuthenticatingProxy) -> list[tuple[HTTP1Request, bytes]]:
    """The clients' requests that "east" has received by all its connections."""
    return [
        (one, body)
        for connection in proxy.east.connections
        for one, body, _ in http1_requests(connection.received)
        if one.target.startswith(b"/api/")
    ]


async def test_a_slow_review_answers_its_own_stream(authenticating_proxy: AuthenticatingProxy) -> None:
    """Tokens under review at the same time on one connection, whose reviews are answered the other way round."""
    proxy = await opened(authenticating_proxy)
    waiting: list[tuple[Any, dict[str, Any]]] = []

    def hold(end: Any) -> None:
        original = proxy.verdict
        proxy.verdict = lambda review: waiting.append((end, review)) or None  # type: ignore[func-returns-value]
        proxy._review(end)
        proxy.verdict = original

    proxy.judge.reply = hold
    client = await attacker(proxy)
    streams = {
        client.ask(
            bearer(b"reviewed-token-of-%d-0123456789" % number), path=b"/api/v1/namespaces/u%d/pods/x" % number
        ): number
        for number in range(6)
    }
    await proxy.until(lambda: len(waiting) == len(streams), "six reviews")
    for end, review in reversed(waiting):
        name = "u" + review["spec"]["token"].split("-")[3]
        proxy.answer_review(end, {**review, "status": {"authenticated": True, "user": {"username": name}}})
        await proxy.turns(2)
    for stream in streams:
        assert await client.outcome(stream) == (200, b"{}")
    for one, _ in http1_requests_of(proxy):
        assert one.one(b"impersonate-user") == one.target.split(b"/")[4]


async def test_a_stream_that_is_reset_while_its_token_is_reviewed_is_not_forwarded(
    authenticating_proxy: AuthenticatingProxy,
) -> None:
    proxy = await opened(authenticating_proxy)
    waiting: list[tuple[Any, dict[str, Any]]] = []
    proxy.verdict = lambda review: waiting.append((proxy.judge.last, review)) or None  # type: ignore[func-returns-value]
    client = await attacker(proxy)
    stream = client.ask(bearer(b"a-token-that-is-reviewed-0123456789"))
    await proxy.until(lambda: waiting, "a review")
    client.send(raw.rst_stream(stream))
    await client.settled()
    end, review = waiting[0]
    if end.lost is None:
        proxy.answer_review(end, {**review, "status": {"authenticated": True, "user": {"username": "late"}}})
    await proxy.turns(5)
    assert proxy.forwarded == b""
    assert len(proxy.records) == 1
    assert await client.answer(ALICE) == (200, b"{}")


# -- which server, as whom -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server_name", [NAME, OTHER, ALL, "127.0.0.1"])
async def test_authority_and_server_name_as_in_http1(
    authenticating_proxy: AuthenticatingProxy, server_name: str
) -> None:
    """One connection, many authorities: what a browser does that coalesces connections (RFC 9113 9.1.1)."""
    proxy = await opened(authenticating_proxy)
    for who in (None, holder("clients", "alice"), holder("others", "alice")):
        client = await attacker(proxy, server_name, certificate=who)
        for host in (
            NAME,
            OTHER,
            ALL,
            "sub.wild.test",
            "nobody.test",
            "127.0.0.1",
            NAME + ":443",
            NAME + ".",
            NAME.upper(),
            "[::1]",
        ):
            before = forwarded_counts(proxy)
            lines = b"GET /clusters/west/api HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode()
            expected = await proxy.answer(lines, server_name=server_name, certificate=who)
            after = forwarded_counts(proxy)
            reached = [now - one for now, one in zip(after, before, strict=True)]
            for form in ("authority", "host"):
                before = forwarded_counts(proxy)
                fields = () if form == "authority" else ((b"host", host.encode()),)
                authority = host.encode() if form == "authority" else None
                answer = await client.answer(*fields, authority=authority, path=b"/clusters/west/api")
                assert answer == expected, (host, form, who)
                after = forwarded_counts(proxy)
                assert [now - one for now, one in zip(after, before, strict=True)] == reached, (host, form)
        assert client.lost is None


def forwarded_counts(proxy: AuthenticatingProxy) -> list[int]:
    """How many requests for /api each upstream has received: clients', and none of the proxy's own."""
    return [len(re.findall(rb"^GET \S*/api HTTP/1.1\r$", upstream.received, re.M)) for upstream in proxy.upstreams]


async def test_host_beside_authority_never_decides(authenticating_proxy: AuthenticatingProxy) -> None:
    proxy = await opened(authenticating_proxy)
    client = await attacker(proxy)
    for authority, host in ((NAME, OTHER), (OTHER, NAME), (NAME, ""), ("", NAME), (NAME, NAME + ":443"), (NAME, "a b")):
        answer = await client.answer(ALICE, (b"host", host.encode()), authority=authority.encode())
        assert answer == (-PROTOCOL_ERROR, b"") or answer[0] in (400, 421), (authority, host)
    assert proxy.forwarded == b""
    assert await client.answer(ALICE, (b"host", NAME.upper().encode()), authority=NAME.encode()) == (200, b"{}")


async def test_a_certificate_is_of_the_connection_and_a_token_of_its_stream(
    authenticating_proxy: AuthenticatingProxy,
) -> None:
    proxy = await opened(authenticating_proxy)
    client = await attacker(proxy, certificate=holder("clients", "carol"))
    for token, user in ((None, b"carol"), (ALICE, None), (None, b"carol"), (BOSS, None), (None, b"carol")):
        proxy.east.forget()
        proxy.east.reply = proxy.answering(answering_bodies(OK))
        assert (await client.answer(*([token] if token else [])))[0] == 200
        (request,) = (one for one, _ in http1_requests_of(proxy))
        if token is None:
            assert request.one(b"impersonate-user") == user
        else:
            lines = [b"GET " + POD + b" HTTP/1.1", b"Host: " + NAME.encode(), b": ".join(token), b"", b""]
            proxy.east.forget()
            proxy.east.reply = proxy.answering(answering_bodies(OK))
            await proxy.answer(b"\r\n".join(lines), certificate=holder("clients", "carol"))
            (same,) = (one for one, _ in http1_requests_of(proxy))
            assert request.one(b"impersonate-user") == same.one(b"impersonate-user")


# -- flow control ----------------------------------------------------------------------------------------------------


async def test_places_are_each_users_own_and_come_back_from_a_reset_stream(
    authenticating_proxy: AuthenticatingProxy,
) -> None:
    limit = model.FlowControl(name="two", type=model.FlowControlType.MAX_REQUESTS_INFLIGHT, max=2, per=model.Per.USER)
    everything = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), non_resource_urls=("*",))
    server = model.Server(
        name=NAME,
        listeners=("tls",),
        server_names=(NAME,),
        default=True,
        backend=model.ClusterBackend("east"),
        authentication="corp",
        authorization="rules",
        dispatch=(model.Policy(name="all", rules=(everything,), flow_control="two"),),
    )
    proxy = await opened(authenticating_proxy, servers=(server,), flow_controls=(limit,))
    silent = proxy.east.reply
    proxy.east.reply = proxy.answering(lambda _: None)
    client = await attacker(proxy)
    held = [client.ask(ALICE, path=b"/api/v1/namespaces/a/pods/%d" % number) for number in range(2)]
    await proxy.until(lambda: proxy.east.received.count(b"GET /api") == 2, "two requests")
    assert (await client.answer(ALICE))[0] == 429
    boss = client.ask(BOSS)
    await proxy.until(lambda: proxy.east.received.count(b"GET /api") == 3, "the other user's request")
    client.send(raw.rst_stream(held[0]))
    again = client.ask(ALICE, path=b"/api/v1/namespaces/a/pods/again")
    await proxy.until(lambda: b"/pods/again " in proxy.east.received, "the place of the stream that was reset")
    assert (await client.answer(ALICE))[0] == 429
    client.close()
    await client.until(lambda: client.lost)
    proxy.east.reply = silent
    other = await attacker(proxy)
    for _ in range(5):
        assert (await other.answer(ALICE))[0] == 200  # the connection's end gave back all places
    assert len({boss, again, *held}) == 4
