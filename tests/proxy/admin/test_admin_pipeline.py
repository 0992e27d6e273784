"""An Admin listener over real connections: who gets which answer, and what attackers get."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.kube.healthz import Check
from mcproxy.proxy.admin.admin_pipeline import MAX_AT_ONCE
from tests.proxy.admin.conftest import Source
from tests.proxy.harness import CA, NAME, Client, Harness, cluster, config, get, listener
from tests.proxy.http2_peers import h2_client
from tests.support.logged import captured_logs

SECRET = "readers-token"
API = replace(listener("api", tls=False), bind=model.TCPBind("127.0.0.2", 0))
AWAY = model.EndpointConfig(name="a", scheme="http", host="127.0.0.1", port=1)
USERS = model.Authentication(
    name="users",
    token_file=model.TokenFileConfig(
        "/etc/users.csv",
        (
            model.StaticToken(model.Secret(SECRET), "prometheus"),
            model.StaticToken(model.Secret("others-token"), "somebody"),
        ),
    ),
)
READERS = model.Authorization(
    name="readers",
    rules=(model.Rule(verbs=("get",), users=("prometheus",), non_resource_urls=("/metrics", "/readyz/*")),),
)


def admin(*, tls: bool = False, **fields: Any) -> model.ListenerConfig:
    return listener("admin", tls=tls, serves=model.Serves.ADMIN, **fields)


async def serve(harness: Harness, *, listeners: tuple[model.ListenerConfig, ...] = (), **fields: Any) -> None:
    """Serve an Admin listener: that with `fields`, or those that are given."""
    listeners = listeners or (admin(**fields),)
    await harness.serve(config([], listeners=listeners, authentication=(USERS,), authorization=(READERS,)))


async def ask(
    harness: Harness, target: bytes = b"/metrics", *fields: bytes, host: bytes = b"localhost", **how: Any
) -> tuple[int, dict[str, str], bytes]:
    """Return status, fields and body of the answer to a request on a connection of its own."""
    method = how.pop("method", b"GET")
    raw = get(target, *fields, b"Connection: close", method=method).replace(NAME.encode(), host)
    client = await harness.asks(raw, **{"tls": False, **how})
    await harness.until(lambda: client.over, "the answer")
    return whole(client)


def whole(client: Client) -> tuple[int, dict[str, str], bytes]:
    status, fields, body = client.answer()
    if fields.get("transfer-encoding") == "chunked":
        pieces, at = [], 0
        while at < len(body):
            line = body.index(b"\r\n", at)
            size = int(body[at:line], 16)
            pieces.append(body[line + 2 : line + 2 + size])
            at = line + 2 + size + 2
        body = b"".join(pieces)
    return status, fields, body


def refusal(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Return code and reason of a refusal, which is a Status object."""
    status, fields, body = answer
    document = json.loads(body)
    assert (document["kind"], document["code"], fields["content-type"]) == ("Status", status, "application/json")
    return status, document.get("reason", "")


async def test_each_path_is_answered_in_its_form(harness: Harness) -> None:
    await serve(harness)
    forms = {
        b"/": "text/html; charset=utf-8",
        b"/status": "application/json",
        b"/config": "text/plain; charset=utf-8",
        b"/debug/requests": "application/json",
        b"/debug/requests?format=table": "text/plain; charset=utf-8",
        b"/metrics": "text/plain; version=0.0.4; charset=utf-8",
        b"/healthz": "text/plain; charset=utf-8",
        b"/livez": "text/plain; charset=utf-8",
        b"/readyz": "text/plain; charset=utf-8",
    }
    for target, form in forms.items():
        status, fields, body = await ask(harness, target)
        assert (status, fields["content-type"]) == (200, form), target
        assert body
        assert fields["cache-control"] == "no-cache, private"
        assert fields["x-content-type-options"] == "nosniff"
        assert fields["x-frame-options"] == "DENY"
        assert "default-src 'none'" in fields["content-security-policy"]
        assert "access-control-allow-origin" not in fields
        assert len(fields["audit-id"]) == 36


async def test_metrics_are_text_or_openmetrics_as_asked(harness: Harness) -> None:
    await serve(harness)
    assert (await ask(harness))[2] == b"a 1\nb 2\n"
    _, fields, body = await ask(harness, b"/metrics", b"Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert fields["content-type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_head_has_the_fields_of_get_and_no_body(harness: Harness) -> None:
    await serve(harness)
    for target in (b"/metrics", b"/livez", b"/", b"/config"):
        status, fields, body = await ask(harness, target, method=b"HEAD")
        assert (status, body) == (200, b"")
        assert int(fields["content-length"]) > 0
    assert (await ask(harness, b"/metrics", method=b"HEAD"))[1]["content-length"] == "8"


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"PROPFIND"])
async def test_every_other_method_is_refused(harness: Harness, source: Source, method: bytes) -> None:
    await serve(harness)
    answer = await ask(harness, b"/metrics", b"Content-Length: 0", method=method)
    assert refusal(answer) == (405, "MethodNotAllowed")
    assert answer[1]["allow"] == "GET, HEAD"
    assert source.asked == 0


async def test_a_body_that_never_comes_keeps_nobody_waiting(harness: Harness) -> None:
    await serve(harness)
    client = await harness.asks(
        b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nabc", tls=False
    )
    await harness.until(lambda: client.received.endswith(b"}\n"), "the refusal")
    assert refusal(client.answer())[0] == 405
    assert client.answer()[1]["connection"] == "close"


async def test_only_listed_paths_are_served(harness: Harness) -> None:
    await serve(harness, paths=("/metrics", "/readyz"))
    for target in (b"/", b"/config", b"/livez", b"//metrics", b"/metrics/", b"/%6detrics", b"/metrics;a", b"/readyz/x"):
        assert refusal(await ask(harness, target)) == (404, "NotFound"), target
    assert (await ask(harness, b"/metrics"))[0] == 200
    assert (await ask(harness, b"/readyz/ping"))[0] == 200


async def test_a_large_answer_is_compressed_for_who_takes_it(harness: Harness, source: Source) -> None:
    source.metrics_text = [b"metric %d\n" % number for number in range(20_000)]
    text = b"".join(source.metrics_text)
    await serve(harness)
    _, fields, body = await ask(harness, b"/metrics", b"Accept-Encoding: gzip")
    assert fields["content-encoding"] == "gzip"
    assert gzip.decompress(body) == text
    for coding in (b"identity", b"gzip;q=0", b"br"):
        _, fields, body = await ask(harness, b"/metrics", b"Accept-Encoding: " + coding)
        assert "content-encoding" not in fields
        assert body == text


async def test_a_scrape_is_compressed_though_it_is_not_large(harness: Harness, source: Source) -> None:
    """A scrape of some KB each few seconds adds up; the 128 KiB from which an aggregate compresses are for lists."""
    source.metrics_text = [b"metric %d\n" % number for number in range(500)]
    await serve(harness)
    _, fields, body = await ask(harness, b"/metrics", b"Accept-Encoding: gzip")
    assert fields["content-encoding"] == "gzip"
    assert gzip.decompress(body) == b"".join(source.metrics_text)
    _, fields, body = await ask(harness, b"/", b"Accept-Encoding: gzip")
    assert fields["content-encoding"] == "gzip"
    assert gzip.decompress(body).endswith(b"</html>\n")


async def test_requests_in_flight_are_a_page_for_browsers_and_a_table_for_scripts(harness: Harness) -> None:
    await serve(harness)
    for target, accept, form in (
        (b"/debug/requests", b"text/html,*/*", "text/html; charset=utf-8"),
        (b"/debug/requests?requests.sort=age", b"text/html,*/*", "text/html; charset=utf-8"),
        (b"/debug/requests?format=table", b"text/html,*/*", "text/plain; charset=utf-8"),
        (b"/debug/requests", b"text/plain", "text/plain; charset=utf-8"),
        (b"/debug/requests", b"*/*", "application/json"),
    ):
        status, fields, _ = await ask(harness, target, b"Accept: " + accept)
        assert (status, fields["content-type"]) == (200, form), (target, accept)


async def test_a_client_that_reads_slowly_is_waited_for_and_others_are_answered(
    harness: Harness, source: Source
) -> None:
    source.metrics_text = [b"x" * 100_000] * 60
    await serve(harness)
    slow = await harness.client(tls=False)
    slow.transport.pauseProducing()  # type: ignore[union-attr]
    slow.send(get(b"/metrics", b"Connection: close").replace(NAME.encode(), b"localhost"))
    await harness.until(lambda: source.asked == 1)
    assert (await ask(harness, b"/livez"))[0] == 200
    await harness.turns(20)
    slow.transport.resumeProducing()  # type: ignore[union-attr]
    await harness.until(lambda: slow.over, "the rest")
    assert len(whole(slow)[2]) == 6_000_000


async def test_http2_gets_the_same(harness: Harness) -> None:
    both = (model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1)
    await serve(harness, tls=True, protocols=both, paths=("/metrics", "/readyz"))
    client = await h2_client(harness)
    streams = [
        client.ask(path=b"/metrics"),
        client.ask(method=b"HEAD", path=b"/metrics"),
        client.ask(method=b"POST", path=b"/metrics"),
        client.ask(path=b"//metrics"),
        client.ask(path=b"/readyz?verbose"),
    ]
    await harness.until(lambda: all(stream.ended for stream in streams), "the answers")
    assert [stream.status for stream in streams] == [200, 200, 405, 404, 200]
    assert [stream.data for stream in streams[:2]] == [b"a 1\nb 2\n", b""]
    assert client.problem is None


# -- browsers ---------------------------------------------------------------------------------------------------------


async def test_on_loopback_only_names_of_this_machine_are_answered(harness: Harness, source: Source) -> None:
    await serve(harness)
    for host in (b"localhost", b"127.0.0.1:9901", b"[::1]:1", b"LOCALHOST"):
        assert (await ask(harness, host=host))[0] == 200
    for host in (b"evil.example", b"evil.example:9901", b"10.1.2.3", b"localhost.evil.example"):
        for target in (b"/metrics", b"/livez", b"/nothing"):
            assert refusal(await ask(harness, target, host=host)) == (403, "Forbidden")
    forwarded = await ask(harness, b"/metrics", b"X-Forwarded-Host: localhost", host=b"evil.example")
    assert forwarded[0] == 403
    assert source.asked == 4


async def test_two_hosts_or_an_absolute_target_change_nothing(harness: Harness) -> None:
    await serve(harness)
    two = await harness.asks(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", tls=False)
    absolute = await harness.asks(b"GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", tls=False)
    await harness.until(lambda: two.over and absolute.received, "the refusals")
    assert two.answer()[0] == 400
    assert absolute.answer()[0] in (400, 403)


async def test_pages_of_other_sites_are_refused(harness: Harness, source: Source) -> None:
    await serve(harness)
    for fields in ([b"Sec-Fetch-Site: cross-site"], [b"Origin: http://evil.example"], [b"Origin: null"]):
        assert refusal(await ask(harness, b"/status", *fields)) == (403, "Forbidden")
    assert source.asked == 0
    link = (b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Mode: navigate", b"Sec-Fetch-Dest: document")
    assert (await ask(harness, b"/", *link))[0] == 200


async def test_a_certificate_of_its_own_name_makes_any_host_good(harness: Harness) -> None:
    await serve(harness, tls=True)
    assert (await ask(harness, host=NAME.encode(), tls=True))[0] == 200


# -- users ------------------------------------------------------------------------------------------------------------


async def test_without_a_good_credential_nothing_is_told(harness: Harness, source: Source) -> None:
    await serve(harness, authentication="users")
    for target in (b"/metrics", b"/livez", b"/nothing", b"/readyz/x"):
        for fields in ((), (b"Authorization: Bearer wrong",), (b"Authorization: Basic YTpi",)):
            answer = await ask(harness, target, *fields)
            assert refusal(answer) == (401, "Unauthorized")
            assert b"metrics" not in answer[2]
    assert refusal(await ask(harness, b"/metrics", b"Content-Length: 0", method=b"POST")) == (401, "Unauthorized")
    assert source.asked == 0
    assert (await ask(harness, b"/metrics", b"Authorization: Bearer " + SECRET.encode()))[0] == 200


async def test_who_is_refused_is_logged_without_the_credential(harness: Harness) -> None:
    await serve(harness, authentication="users", authorization="readers")
    with captured_logs() as logged:
        await ask(harness, b"/metrics")
        await ask(harness, b"/config?secret", b"Authorization: Bearer others-token")
        await ask(harness, b"/metrics", host=b"evil.example")
        await ask(harness, b"/nothing", b"Authorization: Bearer others-token")
    lines = [event for event in logged if event.get("event") == "admin_request_refused"]
    assert [(each["status"], each["client"], each["listener"]) for each in lines] == [
        (401, "127.0.0.1", "admin"),
        (403, "127.0.0.1", "admin"),
        (403, "127.0.0.1", "admin"),
    ]
    assert "somebody" in lines[1]["cause"]
    assert not any("others-token" in str(each) or "secret" in str(each) for each in lines)


async def test_headers_name_no_user(harness: Harness) -> None:
    await serve(harness, authentication="users")
    token = b"Authorization: Bearer others-token"
    assert refusal(await ask(harness, b"/metrics", b"X-Remote-User: prometheus"))[0] == 401
    assert refusal(await ask(harness, b"/metrics", token, b"Impersonate-User: prometheus")) == (403, "Forbidden")
    assert refusal(await ask(harness, b"/metrics", token, b"Impersonate_User: prometheus")) == (403, "Forbidden")
    assert refusal(await ask(harness, b"/metrics", token, token)) == (400, "BadRequest")


async def test_an_authorizer_decides_by_user_and_path(harness: Harness, source: Source) -> None:
    await serve(harness, authentication="users", authorization="readers")
    good, other = b"Authorization: Bearer " + SECRET.encode(), b"Authorization: Bearer others-token"
    assert (await ask(harness, b"/metrics", good))[0] == 200
    assert (await ask(harness, b"/metrics", good, method=b"HEAD"))[0] == 200
    assert (await ask(harness, b"/readyz/ping", good))[0] == 200
    assert source.asked == 2
    answer = await ask(harness, b"/config", good)
    assert refusal(answer) == (403, "Forbidden")
    assert json.loads(answer[2])["message"] == 'forbidden: User "prometheus" cannot get path "/config"'
    for target in (b"/metrics", b"/", b"/readyz", b"/debug/requests"):
        assert refusal(await ask(harness, target, other)) == (403, "Forbidden")
    assert source.asked == 2


async def test_anonymous_requests_see_the_paths_that_the_set_names(harness: Harness) -> None:
    anonymous = model.Anonymous(enabled=True, paths=("/readyz",))
    users = replace(USERS, anonymous=anonymous)
    await harness.serve(config([], listeners=(admin(authentication="users"),), authentication=(users,)))
    assert (await ask(harness, b"/readyz"))[0] == 200
    for target in (b"/metrics", b"/readyz/ping", b"/readyz/", b"//readyz", b"/readyz/../config"):
        assert refusal(await ask(harness, target))[0] == 401


async def test_client_certificates_are_checked_against_the_set(harness: Harness) -> None:
    certificates = model.Authentication(name="users", client_ca=model.PEMFile("ca", CA.cert_pem.bytes()))
    await harness.serve(
        config([], listeners=(admin(tls=True, authentication="users"),), authentication=(certificates,))
    )
    assert refusal(await ask(harness, tls=True))[0] == 401


async def test_a_reload_changes_who_may_see_it_on_open_connections(harness: Harness) -> None:
    first = admin(port=0)
    await serve(harness, listeners=(first,))
    client = await harness.asks(get(b"/metrics").replace(NAME.encode(), b"localhost"), tls=False)
    await harness.until(lambda: client.received.endswith(b"b 2\n"))
    await serve(harness, listeners=(replace(first, authentication="users"),))
    client.received = b""
    client.send(get(b"/metrics").replace(NAME.encode(), b"localhost"))
    await harness.until(lambda: client.received.endswith(b"}\n"))
    assert client.answer()[0] == 401


# -- answers that fail ------------------------------------------------------------------------------------------------


async def test_a_bug_tells_nothing_to_clients(harness: Harness, source: Source) -> None:
    source.error = ValueError(f"the token {SECRET}")
    await serve(harness)
    with captured_logs() as logged:
        for target in (b"/", b"/status", b"/metrics", b"/config", b"/debug/requests"):
            answer = await ask(harness, target)
            assert refusal(answer) == (500, "InternalError")
            assert SECRET.encode() not in answer[2]
    assert len([event for event in logged if "log_failure" in event]) == 5


async def test_too_many_at_once_are_refused_but_probes_never(harness: Harness, source: Source) -> None:
    source.waiting = Deferred()
    await serve(harness)
    raw = get(b"/config", b"Connection: close").replace(NAME.encode(), b"localhost")
    clients = [await harness.asks(raw, tls=False) for _ in range(MAX_AT_ONCE)]
    await harness.until(lambda: source.asked == MAX_AT_ONCE)
    for target in (b"/metrics", b"/status", b"/"):
        answer = await ask(harness, target)
        assert refusal(answer) == (429, "TooManyRequests")
        assert answer[1]["retry-after"] == "1"
    assert (await ask(harness, b"/livez"))[0] == 200
    clients.pop().abort()  # its answer is made all the same, and its place is free then
    source.waiting.callback(None)
    await harness.until(lambda: all(client.over for client in clients))
    assert {whole(client)[2] for client in clients} == {b"version: 1\n"}
    source.waiting = None
    assert (await ask(harness))[0] == 200


async def test_a_flood_of_scrapes_is_made_one_at_a_time(harness: Harness, source: Source) -> None:
    source.waiting = Deferred()
    await serve(harness)
    raw = get(b"/metrics", b"Connection: close").replace(NAME.encode(), b"localhost")
    clients = [await harness.asks(raw, tls=False) for _ in range(MAX_AT_ONCE)]
    await harness.turns(20)
    assert source.asked == 1
    source.waiting.callback(None)
    await harness.until(lambda: all(client.over for client in clients))
    assert {whole(client)[2] for client in clients} == {b"a 1\nb 2\n"}
    source.waiting = None
    assert (await ask(harness))[0] == 200
    assert source.asked == 2


# -- probes -----------------------------------------------------------------------------------------------------------


async def test_readiness_has_listeners_and_clusters_and_the_checks_of_the_daemon(
    harness: Harness, source: Source
) -> None:
    upstream = harness.upstream()
    source.checked = [Check("reload", "it was refused", needed=False)]
    east, west = cluster(upstream.endpoint()), cluster(AWAY, name="west")
    await harness.serve(config([east, west], listeners=(admin(), API)))
    clusters = harness.service.runtime
    assert clusters is not None
    await harness.until(lambda: clusters.clusters["east"].endpoints[0].ready, "the first check")
    status, _, body = await ask(harness, b"/readyz?verbose")
    assert (status, body.decode()) == (
        200,
        "[+]ping ok\n[+]shutdown ok\n[+]listener/admin ok\n[+]listener/api ok\n[+]cluster/east ok\n"
        "[-]cluster/west not needed: reason withheld\n[-]reload not needed: reason withheld\nreadyz check passed\n",
    )
    assert (await ask(harness, b"/readyz"))[2] == b"ok"
    assert (await ask(harness, b"/readyz/cluster/west"))[0] == 500
    assert (await ask(harness, b"/readyz/cluster/north"))[0] == 404
    harness.service.begin_shutdown()
    status, _, body = await ask(harness, b"/readyz")
    assert (status, body.splitlines()[1]) == (500, b"[-]shutdown failed: reason withheld")
    assert (await ask(harness, b"/healthz"))[0] == (await ask(harness, b"/livez"))[0] == 200


async def test_without_any_ready_cluster_readiness_fails(harness: Harness) -> None:
    away = cluster(AWAY)
    await harness.serve(config([away], listeners=(admin(), API)))
    assert (await ask(harness, b"/readyz"))[0] == 500
    assert (await ask(harness, b"/readyz?exclude=cluster/east"))[0] == 200
    assert (await ask(harness, b"/livez"))[0] == 200
    assert refusal(await ask(harness, b"/readyz?" + b"&".join([b"exclude=a"] * 200))) == (400, "BadRequest")
