"""Active health checks, over real sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.config.model import BackendHealthCheck
from mcproxy.services.ingress import endpoint_health
from tests.proxy.harness import Upstream, UpstreamEnd
from tests.services.ingress.config import backend, ingress, path, rule
from tests.services.ingress.whole import HOST, Whole, ingress_config

CHECK = BackendHealthCheck(path="/healthz?x", interval=0.05, timeout=2.0, unhealthy_after=2, healthy_after=2)


def checked(check: BackendHealthCheck | None = CHECK, **more: Any) -> model.Config:
    return ingress_config(ingress("web", rule(HOST, path("/", backend("web", health_check=check)))), **more)


class Checked:
    """A pod whose health a test decides; `checks` counts."""

    def __init__(self, whole: Whole, name: str) -> None:
        self.name = name
        self.checks = 0
        self.answer: bytes | None = b"200 OK"
        self.pod: Upstream = whole.upstream()
        self.pod.reply = self._reply

    def _reply(self, end: UpstreamEnd) -> None:
        while b"\r\n\r\n" in (rest := end.received[end.answered :]):
            head = rest.partition(b"\r\n\r\n")[0]
            end.answered += len(head) + 4
            answer: bytes | None = b"200 OK"
            if head.startswith(b"GET /healthz?x HTTP/1.1\r\n"):
                self.checks += 1
                answer = self.answer
            if answer is None:
                end.abort()
            elif answer:
                end.send(b"HTTP/1.1 %b\r\nContent-Length: 2\r\nServer: %b\r\n\r\nok" % (answer, self.name.encode()))


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"500 Internal Server Error", "it answers 500"),
        (b"404 Not Found", "it answers 404"),
        pytest.param(b"", "no answer within 2 s", marks=pytest.mark.slow),
        (None, "no answer"),
    ],
)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_endpoint_that_fails_is_out_until_it_is_well(whole: Whole, answer: bytes | None, cause: str) -> None:
    await whole.serve(checked())
    bad, good = Checked(whole, "bad"), Checked(whole, "good")
    whole.endpoints("web", bad.pod, good.pod)
    assert {await whole.who() for _ in range(2)} == {"bad", "good"}
    bad.answer = answer

    def out() -> Any:
        return whole.service.figures["ingressServices"][0]["outEndpoints"]

    await whole.until(out)
    assert out()[0]["cause"].startswith(cause)
    assert {await whole.who() for _ in range(4)} == {"good"}
    bad.answer = b"204 No Content" if answer == b"" else b"302 Found"
    await whole.until(lambda: not out())
    assert {await whole.who() for _ in range(2)} == {"bad", "good"}


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_checks_use_kept_connections_and_are_no_requests_in_flight(whole: Whole) -> None:
    await whole.serve(checked())
    one = Checked(whole, "one")
    whole.endpoints("web", one.pod)
    await whole.until(lambda: one.checks > 5)
    assert len(one.pod.connections) == 1
    assert b"User-Agent: mcproxy-health-check\r\n" in one.pod.received
    assert whole.service.figures["ingressServices"][0]["inFlight"] == 0


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_checks_end_with_their_endpoint_and_with_the_configuration(whole: Whole) -> None:
    await whole.serve(checked())
    one, two = Checked(whole, "one"), Checked(whole, "two")
    whole.endpoints("web", one.pod, two.pod)
    await whole.until(lambda: one.checks and two.checks)
    whole.endpoints("web", one.pod, terminating=(two.pod,))
    await whole.turns()
    before = two.checks
    count = one.checks
    await whole.until(lambda: one.checks > count + 3)
    assert two.checks == before
    await whole.serve(checked(None))
    await whole.turns()
    before = one.checks
    await whole.turns(50)
    assert one.checks == before


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_reload_that_changes_nothing_of_it_keeps_what_checks_have_found(whole: Whole) -> None:
    await whole.serve(checked())
    bad, good = Checked(whole, "bad"), Checked(whole, "good")
    whole.endpoints("web", bad.pod, good.pod)
    bad.answer = b"500 Internal Server Error"
    await whole.until(lambda: whole.service.figures["ingressServices"][0]["outEndpoints"])
    await whole.serve(checked(daemon=model.DaemonConfig(drain_timeout=7.0)))
    assert {await whole.who() for _ in range(4)} == {"good"}
    count = bad.checks
    await whole.until(lambda: bad.checks > count)


class Stream:
    """The stream of a check."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.mark.parametrize(("status", "found"), [(200, ""), (399, ""), (199, "it answers 199"), (400, "it answers 400")])
@pytest.mark.parametrize("size", [10, 200_000])
def test_of_a_long_body_only_the_beginning_is_read(status: int, found: str, size: int) -> None:
    stream, results = Stream(), list[str]()
    answer = endpoint_health._Answer(cast("Any", stream))
    answer.result.addCallback(results.append)
    answer.response_head(cast("Any", SimpleNamespace(status=status)))
    for _ in range(size // 10):
        answer.response_data(b"x" * 10)
    long = size > endpoint_health._MOST_BODY
    assert (stream.cancelled, results) == ((1, [found]) if long else (0, []))
    answer.response_end([])
    assert (stream.cancelled, results) == (int(long), [found])
