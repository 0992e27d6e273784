"""CORS: which origins are allowed, and the headers of a kube-apiserver on every answer to one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcproxy.config import model
from mcproxy.http.h1.head_parser import parse_request_head
from mcproxy.proxy.cors import CORSPolicy, is_preflight, replace_fields
from tests.proxy.harness import OK, Harness, Upstream, always, cluster, config, get

POLICY = CORSPolicy(model.CORS(("https://headlamp.example.com", "https://*.apps.example.com", "http://localhost:3000")))
ORIGIN = b"https://headlamp.example.com"
HEADERS = {
    "access-control-allow-origin": "https://headlamp.example.com",
    "access-control-allow-methods": "POST, GET, OPTIONS, PUT, DELETE, PATCH",
    "access-control-allow-headers": (
        "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, "
        "If-Modified-Since"
    ),
    "access-control-expose-headers": "Date",
    "access-control-allow-credentials": "true",
}


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (b"https://headlamp.example.com", True),
        (b"https://HEADLAMP.example.com", True),
        (b"https://headlamp.example.com:443", True),
        (b"https://headlamp.example.com:8443", False),
        (b"http://headlamp.example.com", False),
        (b"https://headlamp.example.com.evil.test", False),
        (b"https://evilheadlamp.example.com", False),
        (b"https://a.apps.example.com", True),
        (b"https://a-1.apps.example.com", True),
        (b"https://apps.example.com", False),
        (b"https://.apps.example.com", False),
        (b"https://a.b.apps.example.com", False),
        (b"https://evil.test/.apps.example.com", False),
        (b"https://evil.test#.apps.example.com", False),
        (b"https://user@x.apps.example.com", False),
        (b"https://a.apps.example.com:8443", False),
        (b"https://a.apps.example.com\x00", False),
        (b"http://localhost:3000", True),
        (b"http://localhost", False),
        (b"null", False),
        (b"", False),
        (b"*", False),
        (b"https://" + b"a" * 10_000 + b".apps.example.com", False),
    ],
)
def test_an_origin_is_allowed_whole_or_behind_one_label(origin: bytes, allowed: bool) -> None:
    assert POLICY.allows(origin) is allowed


def test_null_is_not_allowed_even_if_it_were_listed_as_a_wildcard() -> None:
    assert not CORSPolicy(model.CORS(("https://*.example.com",))).allows(b"null")


@pytest.mark.parametrize(
    ("method", "fields", "preflight"),
    [
        (b"OPTIONS", b"Access-Control-Request-Method: GET\r\n", True),
        (b"OPTIONS", b"", False),
        (b"GET", b"Access-Control-Request-Method: GET\r\n", False),
    ],
)
def test_a_preflight_names_the_method_that_is_to_follow(method: bytes, fields: bytes, preflight: bool) -> None:
    raw = method + b" / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.test\r\n" + fields + b"\r\n"
    assert is_preflight(parse_request_head(raw, 1000, 100)) is preflight


def test_the_clusters_own_fields_are_replaced() -> None:
    fields = b"A: b\r\nAccess-Control-Allow-Origin: *\r\nC: access-control-x\r\naccess-control-max-age: 5\r\n"
    assert replace_fields(fields, b"Own: 1\r\n") == b"A: b\r\nC: access-control-x\r\nOwn: 1\r\n"


async def served(harness: Harness, cors: bool = True) -> Upstream:
    """A server that authenticates, with one good token."""
    upstream = harness.upstream()
    users = model.Authentication(
        name="users", token_file=model.TokenFileConfig("t", (model.StaticToken(model.Secret("alice"), "alice"),))
    )
    configuration = config([cluster(upstream.endpoint())], authentication=(users,))
    server = replace(
        configuration.servers[0],
        authentication="users",
        cors=model.CORS(("https://headlamp.example.com",)) if cors else None,
    )
    await harness.serve(replace(configuration, servers=(server,)))
    upstream.reply = always(OK)
    return upstream


PREFLIGHT = (b"Access-Control-Request-Method: GET", b"Access-Control-Request-Headers: authorization")


async def answer(harness: Harness, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    client = await harness.asks(raw)
    await harness.until(lambda: b"\r\n\r\n" in client.received, "an answer")
    assert client.received.lower().count(b"access-control-allow-origin") <= 1
    return client.answer()


async def test_a_preflight_is_answered_before_authentication(harness: Harness) -> None:
    upstream = await served(harness)
    client = await harness.asks(get(b"/api/v1/pods", b"Origin: " + ORIGIN, *PREFLIGHT, method=b"OPTIONS"))
    await harness.until(lambda: client.received.endswith(b"\r\n\r\n"), "the answer")
    code, fields, body = client.answer()
    assert (code, body) == (204, b"")
    assert client.received.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert HEADERS.items() <= fields.items()
    assert {"date", "audit-id", "cache-control"} <= set(fields)
    assert not {"content-length", "content-type", "transfer-encoding"} & set(fields)
    assert not upstream.received
    client.received = b""
    client.send(get(b"/api/v1/pods", b"Authorization: Bearer alice"))  # the connection goes on
    await harness.until(lambda: client.received.endswith(b"{}"), "the next answer")


@pytest.mark.parametrize(
    ("cors", "origin", "more"),
    [
        (False, ORIGIN, PREFLIGHT),  # not configured
        (True, b"https://evil.test", PREFLIGHT),
        (True, b"null", PREFLIGHT),
    ],
)
async def test_any_other_preflight_is_handled_like_any_request(
    harness: Harness, cors: bool, origin: bytes, more: tuple[bytes, ...]
) -> None:
    upstream = await served(harness, cors)
    code, fields, _ = await answer(harness, get(b"/api", b"Origin: " + origin, *more, method=b"OPTIONS"))
    assert code == 401
    assert not any(name.startswith("access-control") for name in fields)
    assert not upstream.received


async def test_options_without_a_method_to_follow_is_no_preflight(harness: Harness) -> None:
    await served(harness)
    code, fields, _ = await answer(harness, get(b"/api", b"Origin: " + ORIGIN, method=b"OPTIONS"))
    assert code == 401
    assert HEADERS.items() <= fields.items()


async def test_every_answer_to_an_allowed_origin_has_the_headers_refusals_too(harness: Harness) -> None:
    upstream = await served(harness)
    upstream.reply = always(OK.replace(b"\r\n\r\n", b"\r\nAccess-Control-Allow-Origin: *\r\n\r\n"))
    for fields, expected in (((b"Authorization: Bearer alice",), 200), ((b"Authorization: Bearer bad",), 401)):
        code, found, _ = await answer(harness, get(b"/api/v1/pods", b"Origin: " + ORIGIN, *fields))
        assert code == expected
        assert HEADERS.items() <= found.items()
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    upstream.reply = lambda end: end.send(chunked)
    code, found, _ = await answer(
        harness, get(b"/api/v1/pods?watch=1", b"Origin: " + ORIGIN, b"Authorization: Bearer alice")
    )
    assert code == 200
    assert HEADERS.items() <= found.items()


async def test_other_origins_and_none_get_what_the_cluster_sends(harness: Harness) -> None:
    await served(harness)
    for more in ((), (b"Origin: https://evil.test",)):
        code, fields, _ = await answer(harness, get(b"/api", b"Authorization: Bearer alice", *more))
        assert code == 200
        assert not any(name.startswith("access-control") for name in fields)
