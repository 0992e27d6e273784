"""The attack tables of API listeners on an Ingress listener: malformed requests, hosts and paths of two readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from tests.http.h1.malformed import CASES, SMUGGLED, TOLERATED, Case
from tests.proxy.harness import OK
from tests.services.ingress.config import ingress, path, rule
from tests.services.ingress.whole import Whole, ingress_config

OF_AN_API = {
    "an empty segment",
    "an empty segment inside",
    "an empty name",
    "a dot segment",
    "an encoded slash in a name",
    "an encoded slash in a resource",
    "the whole path encoded",
    "an encoded first segment",
    "a name encoded twice",
    "Host of another server",
    "impersonation where rights are lent",
    "impersonation with an underscore",
}
"""Refused where rights depend on the path, the host or a field; a pod gets them once, and as they came."""


class Played:
    """One proxy for all tables: every host has /api, `open.test` has /public alone, and `secret.test` has all paths."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.pod, self.public, self.secret = (whole.upstream() for _ in range(3))

    async def start(self) -> None:
        everyone = ingress("every", rule("k8s.test", path("/", "echo")), default="echo")
        named = ingress("named", rule("open.test", path("/public", "public")), rule("secret.test", path("/", "secret")))
        await self.whole.serve(ingress_config(everyone, named))
        for service, pod in (("echo", self.pod), ("public", self.public), ("secret", self.secret)):
            self.whole.endpoints(service, pod)

    def forget(self) -> None:
        for pod in (self.pod, self.public, self.secret):
            pod.forget()


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    from twisted.internet import reactor

    ready: Any = reactor
    pytest_twisted.blockon(deferLater(ready, 0))
    played = Played(Whole(ready))
    pytest_twisted.blockon(Deferred.fromCoroutine(played.start()))
    yield played
    pytest_twisted.blockon(Deferred.fromCoroutine(played.whole.close()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_malformed_request_is_refused_and_the_pod_is_spared(played: Played, case: Case) -> None:
    whole, pod = played.whole, played.pod
    played.forget()
    pod.reply = answers
    client = await whole.asks(case.raw, tls=False)
    await whole.until(lambda: b"\r\n\r\n" in client.received or client.over, "an answer")
    code, fields, _ = client.answer()
    if case.name in OF_AN_API:
        assert (code, pod.received.count(b" HTTP/1.1\r\n")) == (200, 1)
        client.abort()
        return
    assert code == case.status
    assert fields["content-type"].startswith("text/plain")
    assert ("connection" in fields) is case.closes
    if case.closes:
        await whole.until(lambda: client.over, "the end of the connection")
    if case.begun:
        await whole.until(lambda: all(each.lost for each in pod.connections), "the end at the pod")
        assert b"0\r\n\r\n" not in pod.received
    else:
        await whole.turns(2)
        assert pod.received == b""
    assert SMUGGLED not in pod.received
    client.abort()


ODD = [
    row for row in TOLERATED if not row[1].startswith(b"OPTIONS *")
]  # which is for the server itself, not for a rule


@pytest.mark.parametrize(("raw", "seen"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
async def test_what_is_odd_but_has_one_meaning_is_served(played: Played, raw: bytes, seen: bytes) -> None:
    whole, pod = played.whole, played.pod
    played.forget()
    client = await whole.asks(raw, tls=False)
    await whole.until(lambda: seen in pod.received, "the request")
    head = pod.received.lower()
    assert b"\r\nx-forwarded-for: 127.0.0.1\r\n" in head
    assert not any(word in head for word in (b"h2c", b"http2-settings", b"gzip"))
    pod.last.send(OK)
    await whole.until(lambda: client.received.endswith(b"{}"), "an answer")
    assert client.answer()[0] == 200
    client.abort()


TARGETS = [
    b"/public/../admin",
    b"/public/%2e%2e/admin",
    b"/public/%2E%2e/admin",
    b"/public/.%2e/admin",
    b"/public/..;/admin",
    b"/public/..;a=b/admin",
    b"/public/..%2fadmin",
    b"/public/..%5cadmin",
    b"/public\\..\\admin",
    b"/public/..",
    b"/public/%2e%2e",
    b"/public/x/..//../admin",
    b"/%70ublic/../admin",
    b"//public/../admin",
    b"/admin",
    b"/publicadmin",
    b"/Public/x",
    b"//admin",
    b"/./admin",
    b"/admin;/public/",
    b"/admin%2f..%2fpublic",
    b"/public%00/../admin",
    b"http://open.test/admin",
    b"http://open.test/public/../admin",
    b"*",
]


@pytest.mark.parametrize("target", TARGETS)
async def test_no_spelling_of_a_path_gets_out_of_its_rule(played: Played, target: bytes) -> None:
    """What no rule has is 404, what servers read differently is 400; no pod gets either."""
    status = await asked(played, target, b"open.test")
    assert status in (400, 404)
    assert b"".join(pod.received for pod in (played.pod, played.public, played.secret)) == b""


HOSTS = [
    b"open.test, secret.test",
    b"open.test@secret.test",
    b"secret.test#open.test",
    b"open.test/secret.test",
    b"open.test:80:80",
    b"open.test secret.test",
    b"open.test\tsecret.test",
    b"[secret.test]",
    b"open.test\x00.secret.test",
    b"%73ecret.test",
]


@pytest.mark.parametrize("host", HOSTS)
async def test_no_spelling_of_a_host_leads_to_the_service_of_another(played: Played, host: bytes) -> None:
    await asked(played, b"/public", host)
    assert played.secret.received == b""


@pytest.mark.parametrize(
    "field",
    [
        b"X-Forwarded-Host",
        b"X-Host",
        b"Forwarded",
        b"X-Original-URL",
        b"X-Rewrite-URL",
        b"X-Original-Host",
        b":authority",
    ],
)
async def test_no_field_but_host_chooses_the_service(played: Played, field: bytes) -> None:
    value = b"host=secret.test" if field == b"Forwarded" else b"secret.test"
    await asked(played, b"/public", b"open.test", field + b": " + value + b"\r\n")
    assert played.secret.received == b""


async def asked(played: Played, target: bytes, host: bytes, fields: bytes = b"") -> int:
    """Return the status of a request that any pod would answer."""
    whole = played.whole
    played.forget()
    for pod in (played.pod, played.public, played.secret):
        pod.reply = answers
    head = b"GET %b HTTP/1.1\r\nHost: %b\r\n%bConnection: close\r\n\r\n" % (target, host, fields)
    client = await whole.asks(head, tls=False)
    await whole.until(lambda: client.over, "the end")
    client.close()
    return client.answer()[0]


def answers(end: Any) -> None:
    end.send(OK)
