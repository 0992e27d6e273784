"""The cases of the Gateway API's HTTPRoute conformance that an ingress by file can be held to, by name, over real
sockets. Their conditions and statuses, which are of objects, have no counterpart here; ExactPathMatching and the order
of matches without a wire are in test_router.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config.model import (
    Affinity,
    HeaderEdits,
    IngressPath,
    PathType,
    Redirect,
    RouteFilters,
    WeightedBackend,
    WildcardLabels,
)
from tests.proxy.harness import certificate
from tests.services.ingress.config import backend, ingress, path, rule, shares
from tests.services.ingress.whole import HOST, Whole, ingress_config, tls_listener

EXACT, REGEX = PathType.EXACT, PathType.REGEX


async def serve(whole: Whole, *paths: IngressPath, host: str = "", **more: Any) -> None:
    await whole.serve(ingress_config(ingress("web", rule(host, *paths)), **more))
    for service in ("v1", "v2", "v3"):
        whole.endpoints(service, whole.pod(service))


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_matching(whole: Whole) -> None:
    await serve(
        whole,
        path("/", "v1"),
        path("/v2", "v2"),
        path("/", "v2", headers=(("version", "two"),)),
    )
    for target, fields, service in [
        ("/", (), "v1"),
        ("/example", (), "v1"),
        ("/", ("Version: one",), "v1"),
        ("/", ("Version: two",), "v2"),
        ("/v2", (), "v2"),
        ("/v2/", (), "v2"),
        ("/v2/example", (), "v2"),
        ("/v2example", (), "v1"),
        ("/foo/v2/example", (), "v1"),
    ]:
        assert await whole.who(target, *fields) == service, (target, fields)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_matching_across_routes(whole: Whole) -> None:
    two = (path("/v2", "v2"), path("/", "v2", headers=(("version", "two"),)))
    await whole.serve(
        ingress_config(
            ingress("one", rule("example.com", path("/", "v1")), rule("example.net", path("/", "v1"))),
            ingress("two", rule("example.com", *two)),
        )
    )
    for service in ("v1", "v2"):
        whole.endpoints(service, whole.pod(service))
    assert await whole.who("/v2", host="example.com") == "v2"
    assert await whole.who("/", "Version: two", host="example.com") == "v2"
    assert await whole.who("/v2", host="example.net") == "v1"
    assert await whole.who("/v2example", host="example.com") == "v1"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_method_and_query_param_matching(whole: Whole) -> None:
    await serve(
        whole,
        path("/", "v1", methods=("POST",)),
        path("/", "v2", query=(("animal", "whale"),)),
        path("/path", "v3", methods=("PATCH",), headers=(("version", "four"),)),
    )
    assert await whole.who("/", "Content-Length: 0", method="POST") == "v1"
    assert await whole.who("/?animal=whale") == "v2"
    assert await whole.who("/?animal=whale", "Content-Length: 0", method="POST") == "v1"
    assert await whole.who("/") == "404"
    assert await whole.who("/", method="DELETE") == "404"
    assert await whole.who("/path", "Version: four", "Content-Length: 0", method="PATCH") == "v3"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_hostname_intersection(whole: Whole) -> None:
    await whole.serve(
        ingress_config(
            ingress(
                "web",
                rule("very.specific.com", path("/", "v1")),
                rule("*.wildcard.io", path("/", "v2")),
                wildcard_labels=WildcardLabels.ANY,
            )
        )
    )
    for service in ("v1", "v2"):
        whole.endpoints(service, whole.pod(service))
    assert await whole.who(host="very.specific.com:1234") == "v1"
    assert await whole.who(host="foo.bar.wildcard.io") == "v2"
    assert await whole.who(host="wildcard.io") == "404"
    assert await whole.who(host="specific.com") == "404"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_weight(whole: Whole) -> None:
    await serve(whole, path("/", None, backends=shares(v1=70, v2=30, v3=0)))
    assert Counter([await whole.who() for _ in range(100)]) == {"v1": 70, "v2": 30}
    assert {record.service for record in whole.records} == {"demo/v1", "demo/v2"}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_partially_invalid_backend_refs(whole: Whole) -> None:
    """What exists gets its share and no more."""
    await serve(whole, path("/", None, backends=shares(v1=1, empty=1, missing=2)))
    whole.endpoints("empty")
    whole.endpoints("missing", missing=True)
    assert Counter([await whole.who() for _ in range(20)]) == {"v1": 5, "503": 5, "500": 10}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_spilt_shares(whole: Whole) -> None:
    await serve(whole, path("/", None, backends=shares(v1=1, empty=1, missing=2, v2=1), spill=True))
    whole.endpoints("empty")
    whole.endpoints("missing", missing=True)
    assert Counter([await whole.who() for _ in range(20)]) == {"v1": 10, "v2": 10}
    whole.endpoints("v1")
    whole.endpoints("v2")
    assert {await whole.who() for _ in range(20)} == {"503", "500"}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_no_backend_with_a_weight(whole: Whole) -> None:
    await serve(whole, path("/", None, backends=shares(v1=0, v2=0)))
    assert await whole.who() == "500"
    assert whole.records[-1].reason == "no_endpoint"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_request_and_response_header_modifier(whole: Whole) -> None:
    filters = RouteFilters(
        request_headers=HeaderEdits(
            set_=(("X-Set", "new"), ("X-Absent", "there")), add=(("X-Add", "second"),), remove=("X-Remove",)
        ),
        response_headers=HeaderEdits(set_=(("Server", "front"),), add=(("X-New", "a"), ("X-Other", "b"))),
    )
    await serve(whole, path("/", "v1", filters=filters))
    status, fields, body = await whole.get(
        "/", "x-set: old", "X-Set: older", "x_set: sly", "X-Add: first", "x-remove: 1", "X-Kept: k", "X-Settle: s"
    )
    lines = body.decode().split("\r\n")
    assert status == 200
    assert [line for line in lines if line.lower().replace("_", "-").startswith("x-set:")] == ["X-Set: new"]
    assert "X-Absent: there" in lines
    assert [line for line in lines if line.startswith("X-Add")] == ["X-Add: first", "X-Add: second"]
    assert not [line for line in lines if line.lower().startswith("x-remove")]
    assert {"X-Kept: k", "X-Settle: s", "X-Forwarded-For: 127.0.0.1"} <= set(lines)
    assert (fields["server"], fields["x-new"], fields["x-other"]) == ("front", "a", "b")


@pytest.mark.parametrize(
    ("redirect", "target", "code", "location"),
    [
        (Redirect(host="example.org"), "/a?b=c", 302, "http://example.org/a?b=c"),
        (Redirect(host="example.org", code=301), "/", 301, "http://example.org/"),
        (Redirect(path="/full"), "/p/x?b", 302, f"http://{HOST}/full?b"),
        (Redirect(prefix="/new"), "/p/x/y", 303, f"http://{HOST}/new/x/y"),
        (Redirect(prefix="/"), "/p", 307, f"http://{HOST}/"),
        (Redirect(port=8083), "/p", 308, f"http://{HOST}:8083/p"),
        (Redirect(port=80), "/p", 302, f"http://{HOST}/p"),
        (Redirect(scheme="https"), "/p", 302, f"https://{HOST}/p"),
        (Redirect(scheme="https", port=8443), "/p", 302, f"https://{HOST}:8443/p"),
        (Redirect(scheme="https", port=443), "/p", 302, f"https://{HOST}/p"),
        (Redirect(scheme="http", host="example.org"), "/p", 302, "http://example.org/p"),
        (Redirect(prefix="/"), "/p//evil.example/x", 302, f"http://{HOST}/evil.example/x"),
    ],
)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_redirects(whole: Whole, redirect: Redirect, target: str, code: int, location: str) -> None:
    prefix = "/p" if target.startswith("/p") else "/"
    filters = RouteFilters(redirect=replace(redirect, code=code))
    await serve(whole, path(prefix, None, filters=filters))
    status, fields, _ = await whole.get(target)
    assert (status, fields["location"]) == (code, location)
    assert whole.records[-1].reason == "redirected"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_redirect_keeps_the_client_s_port_unless_the_scheme_changes(whole: Whole) -> None:
    await serve(
        whole,
        path("/same", None, filters=RouteFilters(redirect=Redirect(host="example.org"))),
        path("/other", None, filters=RouteFilters(redirect=Redirect(scheme="https"))),
    )
    assert (await whole.get("/same", host="a.test:8080"))[1]["location"] == "http://example.org:8080/same"
    assert (await whole.get("/other", host="a.test:8080"))[1]["location"] == "https://a.test/other"
    assert (await whole.get("/same", host="a.test:80"))[1]["location"] == "http://example.org/same"


@pytest.mark.parametrize(
    ("kind", "rule_path", "filters", "target", "sent"),
    [
        (PathType.PREFIX, "/strip", {"rewrite_prefix": "/"}, "/strip/x?q=/strip", "/x?q=/strip"),
        (PathType.PREFIX, "/strip", {"rewrite_prefix": "/"}, "/strip", "/"),
        (PathType.PREFIX, "/strip", {"rewrite_prefix": "/"}, "/strip/", "/"),
        (PathType.PREFIX, "/strip/", {"rewrite_prefix": "/new/"}, "/strip/x", "/new/x"),
        (PathType.PREFIX, "/a", {"rewrite_prefix": "/b"}, "/a", "/b"),
        (PathType.PREFIX, "/a", {"rewrite_prefix": "/b"}, "/a/", "/b/"),
        (PathType.PREFIX, "/a", {"rewrite_prefix": "/b"}, "/a/%2F%20;v=1", "/b/%2F%20;v=1"),
        (PathType.PREFIX, "/a", {"rewrite_prefix": "/b"}, "/%61/c%20d", "/b/c%20d"),
        (PathType.PREFIX, "/a", {"rewrite_prefix": "/"}, "/a//x", "/x"),
        (PathType.PREFIX, "/", {"rewrite_prefix": "/b"}, "/a", "/b/a"),
        (PathType.PREFIX, "/a", {"rewrite_path": "/whole"}, "/a/b?c", "/whole?c"),
        (EXACT, "/a", {"rewrite_path": "/b"}, "/a?c", "/b?c"),
        (REGEX, "/a(/|$)(.*)", {"rewrite_path": r"/\2"}, "/a/b/c?d", "/b/c?d"),
        (REGEX, "/a(/|$)(.*)", {"rewrite_path": r"/\2"}, "/a", "/"),
        (REGEX, "/a/(.*)", {"rewrite_path": r"/x/\1/$1"}, "/a/%41%20%3Fb%2F%0D%0A%C3%A4",
         "/x/A%20%3Fb%2F%0D%0A%C3%A4/$1"),
        (REGEX, "/a(.*)", {"rewrite_path": r"/\1"}, "/a//b", "/b"),
    ],
)  # fmt: skip
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_rewrite_path(
    whole: Whole, kind: PathType, rule_path: str, filters: dict[str, Any], target: str, sent: str
) -> None:
    await serve(whole, path(rule_path, "v1", kind, filters=RouteFilters(**filters)))
    status, _, body = await whole.get(target)
    assert (status, body.decode().split("\r\n")[0]) == (200, f"v1\nGET {sent} HTTP/1.1")


@pytest.mark.parametrize("target", ["/a./x", "/a.%2E/x", "/a/..;/x", "/a%2e"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_no_rewrite_makes_a_dot_segment(whole: Whole, target: str) -> None:
    await serve(whole, path("/a(.*)", "v1", REGEX, filters=RouteFilters(rewrite_path=r"/secret/\1")))
    assert await whole.who(target) == "400"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_rewrite_host(whole: Whole) -> None:
    await serve(whole, path("/", "v1", filters=RouteFilters(rewrite_host="one.example.org")))
    _, _, body = await whole.get(host="two.example.org:80")
    lines = body.decode().split("\r\n")
    assert "Host: one.example.org" in lines
    assert "X-Forwarded-Host: two.example.org:80" in lines


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_timeout_request(whole: Whole) -> None:
    """Over all attempts, and whatever the method; a response that has begun is not cut."""
    own = backend("v1", response_timeout=0.0)
    await serve(whole, path("/slow", own, filters=RouteFilters(timeout=0.5)), path("/", "v1"))
    pod = whole.upstream()
    pod.reply = lambda end: None
    whole.endpoints("v1", pod)
    assert await whole.who("/slow", "Content-Length: 0", method="POST") == "504"
    assert whole.records[-1].reason == "upstream_timeout"
    found, fields, _ = await whole.get("/slow", "Content-Type: application/grpc", "Content-Length: 0", method="POST")
    assert (found, fields["grpc-status"]) == (200, "4")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_body_size(whole: Whole) -> None:
    await serve(whole, path("/small", "v1", filters=RouteFilters(body_bytes=10)), path("/", "v1"))
    assert await whole.who("/small", "Content-Length: 11", method="PUT") == "413"
    assert await whole.who("/", "Content-Length: 1048577", method="PUT") == "413"
    call = ("Content-Type: application/grpc", "Content-Length: 1048577")
    found, fields, _ = await whole.get("/small", *call, method="POST")
    assert (found, fields["grpc-status"]) == (200, "8")  # RESOURCE_EXHAUSTED: no client chooses whether a limit counts
    client = await whole.asks(
        b"PUT /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n3\r\nabc\r\n0\r\n\r\n",
        tls=False,
        port=whole.port(0),
    )
    assert (await whole.answer(client))[0] == 413


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_https_listener_detect_misdirected_requests(whole: Whole) -> None:
    names = ("example.org", "second-example.org")
    await whole.serve(
        ingress_config(
            ingress("web", rule(names[0], path("/", "v1")), rule(names[1], path("/", "v2"))),
            listeners=(tls_listener(hosts=tuple((name, name) for name in names)),),
            certificates=(certificate(HOST), *(certificate(name) for name in names)),
        )
    )
    for service in ("v1", "v2"):
        whole.endpoints(service, whole.pod(service))
    for server_name, host, expected in [
        ("example.org", "example.org", "v1"),
        ("example.org", "second-example.org", "421"),
        ("example.org", "unknown-example.org", "404"),
        ("second-example.org", "second-example.org", "v2"),
        ("second-example.org", "example.org", "421"),
        ("second-example.org", "unknown-example.org", "404"),
    ]:
        assert await whole.who(host=host, tls=True, server_name=server_name) == expected, (server_name, host)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_turns_of_weights_go_on_over_a_reload(whole: Whole) -> None:
    one = path("/", None, backends=shares(v1=3, v2=1))
    await serve(whole, one)
    before = [await whole.who() for _ in range(2)]
    await serve(whole, one, path("/new", "v3"))
    assert Counter(before + [await whole.who() for _ in range(2)]) == {"v1": 3, "v2": 1}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_client_stays_with_the_backend_of_its_cookie(whole: Whole) -> None:
    sticky = tuple(
        WeightedBackend(weight=weight, backend=backend(name, affinity=Affinity.COOKIE))
        for name, weight in (("v1", 9), ("v2", 1))
    )
    await serve(whole, path("/", None, backends=sticky))
    while True:
        _, fields, _ = await whole.get()
        if fields["server"] == "v2":
            break
    cookie = fields["set-cookie"].partition(";")[0]
    assert {await whole.who("/", f"Cookie: {cookie}") for _ in range(10)} == {"v2"}
